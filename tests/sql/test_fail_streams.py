"""A stream that fails waits by itself: the rest of its batch goes on, and its own order is kept."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from resources.errors import (
    LeaseLost,
    Malformed,
    MillraceError,
    NotInFlight,
    OffsetOutOfRange,
    UnknownView,
    WrongMode,
    refusals,
)
from resources.event_store import EventStore, Lease, LogEvent, StreamFailure
from tests.factories import (
    Connect,
    append,
    append_to,
    at_once,
    ids_of_one_partition,
    rows,
    set_clock,
    terminate,
    value,
)
from tests.sql.test_claim_batch import bulk

__all__ = ["bulk"]

Delivered = list[tuple[str, UUID]]


def at(store: EventStore, seconds: int) -> None:
    """Move this session's clock to so many seconds after its beginning."""
    set_clock(store.connection, (datetime(2030, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)).isoformat())


def failure(decider_id: str, error: str = "no such customer") -> StreamFailure:
    return StreamFailure("order", decider_id, error)


def read(store: EventStore, leases: list[Lease], view: str = "v") -> list[LogEvent]:
    return [event for lease in leases for event in store.read_batch(view, lease)]


def finish(store: EventStore, leases: list[Lease], poisoned: Collection[str] = (), view: str = "v") -> Delivered:
    """Do as a drain does with its leases: streams that are poisoned fail; return what was acknowledged."""
    done: Delivered = []
    with store.connection.transaction():
        for lease in leases:
            events = store.read_batch(view, lease)
            done += [(e.decider_id, e.event_id) for e in events if e.decider_id not in poisoned]
            failed = [failure(each) for each in sorted({e.decider_id for e in events} & set(poisoned))]
            if failed:
                store.fail_streams(view, lease, failed)
        store.commit_batch(view, leases)
    return done


def state(store: EventStore) -> object:
    return (
        rows(store.connection, "select * from event_store.checkpoints order by view, partition"),
        rows(store.connection, "select * from event_store.stream_locks order by view, decider_id, decider"),
    )


def locks(store: EventStore) -> list[tuple[str, int]]:
    return rows(store.connection, "select decider_id, attempts from event_store.stream_locks order by 1")


@pytest.fixture
def streams(bulk: EventStore) -> list[str]:
    """Three streams of log partition 0, at the beginning of the clock."""
    at(bulk, 0)
    return ids_of_one_partition(bulk.connection, 3)


# A21


def test_a_poisoned_stream_waits_and_the_others_of_its_batch_are_acknowledged(
    bulk: EventStore, streams: list[str]
) -> None:
    bad, good, other = streams
    a, b, c, d = (event.event_id for event in append_to(bulk, bad, good, bad, other))
    assert finish(bulk, bulk.claim_batch("v", "me"), {bad}) == [(good, b), (other, d)]
    assert value(bulk.connection, "select position from event_store.checkpoints where partition = 0") == 4
    assert locks(bulk) == [(bad, 1)]
    at(bulk, 5)
    assert finish(bulk, bulk.claim_batch("v", "me")) == [(bad, a), (bad, c)]
    assert locks(bulk) == []


def test_later_events_of_a_failed_stream_wait_behind_it(bulk: EventStore, streams: list[str]) -> None:
    bad, good, _ = streams
    first = [event.event_id for event in append_to(bulk, bad, bad)]
    finish(bulk, bulk.claim_batch("v", "me"), {bad})
    second = [event.event_id for event in append_to(bulk, bad, good, bad)]
    at(bulk, 4)
    assert finish(bulk, bulk.claim_batch("v", "me")) == [(good, second[1])]
    assert bulk.view_lag("v")[0].pending == 4
    at(bulk, 5)
    third = [event.event_id for event in append_to(bulk, good, bad)]
    assert finish(bulk, bulk.claim_batch("v", "me")) == [
        *[(bad, event_id) for event_id in (*first, second[0], second[2], third[1])],
        (good, third[0]),
    ]
    assert locks(bulk) == []
    assert bulk.view_lag("v")[0].pending == 0


def test_a_failing_stream_is_tried_later_each_time_then_parked(bulk: EventStore, streams: list[str]) -> None:
    bulk.register_view("v", mode="bulk", max_attempts=4)
    append_to(bulk, streams[0])
    finish(bulk, bulk.claim_batch("v", "me"), streams)
    due = 0
    for attempt, delay in enumerate((5, 10, 20), start=1):
        assert locks(bulk) == [(streams[0], attempt)]
        at(bulk, due + delay - 1)
        assert bulk.claim_batch("v", "me") == []
        due += delay
        at(bulk, due)
        (lease,) = bulk.claim_batch("v", "me")
        assert (lease.from_offset, lease.to_offset) == (1, 1)
        assert finish(bulk, [lease], streams) == []
    (dead,) = bulk.dead_letters("v")
    assert (dead.decider_id, dead.attempts, dead.last_error, dead.waiting) == (streams[0], 4, "no such customer", 1)
    at(bulk, 10**9)
    assert bulk.claim_batch("v", "me") == []
    assert bulk.poll_views()[0].lag == 0


def parked(store: EventStore, decider_id: str, others: Collection[str] = ()) -> Delivered:
    """Park a stream of three events; return them."""
    store.register_view("v", mode="bulk", max_attempts=1)
    events = [(decider_id, event.event_id) for event in append_to(store, decider_id, decider_id)]
    assert finish(store, store.claim_batch("v", "me"), {decider_id}) == []
    events += [(decider_id, event.event_id) for event in append_to(store, decider_id)]
    if others:
        append_to(store, *others)
    finish(store, store.claim_batch("v", "me"))
    assert [dead.decider_id for dead in store.dead_letters()] == [decider_id]
    assert store.claim_batch("v", "me") == []
    return events


def test_a_parked_stream_that_is_retried_resumes_in_order(bulk: EventStore, streams: list[str]) -> None:
    events = parked(bulk, streams[0], streams[1:])
    assert bulk.retry_dead_letters("v") == 1
    assert finish(bulk, bulk.claim_batch("v", "me")) == events
    assert locks(bulk) == []


def test_a_discarded_event_is_skipped_and_only_that_one(bulk: EventStore, streams: list[str]) -> None:
    events = parked(bulk, streams[0])
    discarded = bulk.discard_dead_letter("v", "order", streams[0], "a test order")
    assert discarded is not None
    assert (streams[0], discarded.event_id) == events[0]
    assert finish(bulk, bulk.claim_batch("v", "me")) == events[1:]
    assert locks(bulk) == []


def test_a_retry_has_all_attempts_again_after_a_success(bulk: EventStore, streams: list[str]) -> None:
    bulk.register_view("v", mode="bulk", max_attempts=2)
    append_to(bulk, streams[0])
    finish(bulk, bulk.claim_batch("v", "me"), streams)
    at(bulk, 5)
    finish(bulk, bulk.claim_batch("v", "me"))
    append_to(bulk, streams[0])
    finish(bulk, bulk.claim_batch("v", "me"), streams)
    assert bulk.dead_letters() == []
    assert locks(bulk) == [(streams[0], 1)]


def test_many_streams_fail_and_how_many_are_parked_is_returned(bulk: EventStore, streams: list[str]) -> None:
    append_to(bulk, *streams)
    (lease,) = bulk.claim_batch("v", "me")
    bulk.fail_streams("v", lease, [failure(streams[0])])
    bulk.commit_batch("v", [lease])
    bulk.register_view("v", mode="bulk", max_attempts=2)
    at(bulk, 5)
    append_to(bulk, *streams)
    (lease,) = bulk.claim_batch("v", "me")
    assert bulk.fail_streams("v", lease, [failure(each, "é" * 10_000) for each in streams]) == 1
    bulk.commit_batch("v", [lease])
    assert [(dead.decider_id, dead.waiting) for dead in bulk.dead_letters()] == [(streams[0], 2)]
    assert {len(dead.last_error) for dead in bulk.dead_letters()} == {10_000}


# A19


@pytest.mark.parametrize("failing", [False, True])
def test_twenty_pending_events_of_one_stream_come_in_one_claim_in_order(
    bulk: EventStore, streams: list[str], failing: bool
) -> None:
    events = [(streams[0], event.event_id) for event in append_to(bulk, *[streams[0]] * 20)]
    if failing:
        assert finish(bulk, bulk.claim_batch("v", "me"), streams) == []
        at(bulk, 5)
    assert finish(bulk, bulk.claim_batch("v", "me")) == events


# Killed and taken over


@pytest.mark.parametrize("ending", ["rollback", "kill"])
def test_between_fail_and_commit_a_crash_changes_nothing(
    bulk: EventStore, streams: list[str], connect: Connect, ending: str
) -> None:
    append_to(bulk, *streams)
    finish(bulk, bulk.claim_batch("v", "me"), streams[:1])
    at(bulk, 5)
    append_to(bulk, *streams)
    (lease,) = bulk.claim_batch("v", "me")
    events, before = read(bulk, [lease]), state(bulk)
    connection = connect(autocommit=False)
    doomed = EventStore(connection)
    assert doomed.fail_streams("v", lease, [failure(each) for each in streams]) == 0
    if ending == "kill":
        terminate(bulk.connection, connection.info.backend_pid)
    else:
        doomed.commit_batch("v", [lease])
        connection.rollback()
    assert state(bulk) == before
    assert read(bulk, [lease]) == events
    finish(bulk, [lease])
    assert locks(bulk) == []


def test_after_a_crash_the_next_claim_delivers_the_same(bulk: EventStore, streams: list[str], connect: Connect) -> None:
    append_to(bulk, *streams)
    finish(bulk, bulk.claim_batch("v", "me"), streams[:1])
    append_to(bulk, *streams)
    at(bulk, 5)
    lost = read(bulk, bulk.claim_batch("v", "me", lease_s=60))
    other = EventStore(connect())
    at(other, 64)
    assert other.claim_batch("v", "them") == []
    at(other, 65)
    leases = other.claim_batch("v", "them")
    assert read(other, leases) == lost
    assert len(lost) == 4
    finish(other, leases)
    assert other.claim_batch("v", "them") == []


def test_a_lease_that_was_taken_over_neither_reads_nor_fails_nor_commits(
    bulk: EventStore, streams: list[str], connect: Connect
) -> None:
    append_to(bulk, *streams)
    (late,) = bulk.claim_batch("v", "me", lease_s=60)
    other = EventStore(connect())
    at(other, 60)
    leases = other.claim_batch("v", "them")
    before = state(bulk)
    for call in (
        lambda: bulk.read_batch("v", late),
        lambda: bulk.fail_streams("v", late, [failure(streams[0])]),
        lambda: bulk.commit_batch("v", [late]),
        lambda: bulk.extend_lease("v", [late]),
    ):
        with pytest.raises(LeaseLost, match=f"token {late.lease_token} stated") as refused:
            call()
        assert refused.value.hint is not None
        assert state(bulk) == before
    finish(other, leases)
    with pytest.raises(LeaseLost, match="no lease"):
        bulk.read_batch("v", late)


def test_a_retry_that_was_taken_over_is_not_acknowledged_by_its_former_owner(
    bulk: EventStore, streams: list[str], connect: Connect
) -> None:
    append_to(bulk, streams[0])
    finish(bulk, bulk.claim_batch("v", "me"), streams)
    at(bulk, 5)
    (late,) = bulk.claim_batch("v", "me", lease_s=60)
    other = EventStore(connect())
    at(other, 65)
    leases = other.claim_batch("v", "them")
    with pytest.raises(LeaseLost):
        bulk.commit_batch("v", [late])
    assert [e.decider_id for e in read(other, leases)] == [streams[0]]
    finish(other, leases, streams)
    assert locks(bulk) == [(streams[0], 2)]


# What a lease does not deliver


def test_only_streams_that_the_lease_delivers_can_fail(bulk: EventStore, streams: list[str]) -> None:
    behind, waiting, delivered = streams
    (elsewhere,) = ids_of_one_partition(bulk.connection, 1, partition=1)
    append_to(bulk, behind, waiting)
    finish(bulk, bulk.claim_batch("v", "me"), {waiting})
    append_to(bulk, waiting, delivered, elsewhere)
    leases = {lease.partition: lease for lease in bulk.claim_batch("v", "me")}
    append_to(bulk, behind)  # after the claim
    before = state(bulk)
    for decider_id in (behind, waiting, elsewhere, "unknown"):
        with pytest.raises(NotInFlight, match=decider_id):
            bulk.fail_streams("v", leases[0], [failure(delivered), failure(decider_id)])
    with pytest.raises(NotInFlight):
        bulk.fail_streams("v", leases[0], [StreamFailure("invoice", delivered, "other decider")])
    assert state(bulk) == before
    bulk.fail_streams("v", leases[0], [failure(delivered)])
    with pytest.raises(NotInFlight, match=delivered):
        bulk.fail_streams("v", leases[0], [failure(delivered)])


@pytest.mark.parametrize(
    "failures",
    [
        None,
        "{}",
        "[]",
        "null",
        '"text"',
        "[1]",
        "[null]",
        '[{"decider": "order", "decider_id": "o-1"}]',
        '[{"decider": "order", "decider_id": "o-1", "error": ""}]',
        '[{"decider": "order", "decider_id": "o-1", "error": null}]',
        '[{"decider": "order", "decider_id": 1, "error": "e"}]',
        '[{"decider": null, "decider_id": "o-1", "error": "e"}]',
        '[{"decider": "order", "decider_id": "o-1", "error": "e"}, {"decider": "order", "decider_id": "o-1", "error": "f"}]',
    ],
    ids=str,
)
def test_malformed_failures_are_refused(bulk: EventStore, failures: str | None) -> None:
    append_to(bulk, "o-1")
    (lease,) = bulk.claim_batch("v", "me")
    before = state(bulk)
    with pytest.raises(Malformed) as refused, refusals():
        bulk.connection.execute(
            "select event_store.fail_streams('v', %s, %s, %s::jsonb)", (lease.partition, lease.lease_token, failures)
        )
    assert refused.value.detail
    assert refused.value.hint
    assert state(bulk) == before


def test_a_wrong_view_or_lease_is_refused(bulk: EventStore) -> None:
    bulk.register_view("rows")
    append_to(bulk, "o-1")
    (lease,) = bulk.claim_batch("v", "me")
    wrong: list[tuple[str, Lease, type[MillraceError]]] = [
        ("unknown", lease, UnknownView),
        ("rows", lease, WrongMode),
        ("v", replace(lease, lease_token=lease.lease_token + 1), LeaseLost),
        ("v", replace(lease, lease_token=0), LeaseLost),
        ("v", replace(lease, partition=99), LeaseLost),
    ]
    for view, stated, error in wrong:
        with pytest.raises(error):
            bulk.fail_streams(view, stated, [failure("o-1")])
        with pytest.raises(error):
            bulk.read_batch(view, stated)


def test_two_failures_of_one_batch_at_once_count_once(bulk: EventStore, streams: list[str], connect: Connect) -> None:
    append_to(bulk, streams[0])
    (lease,) = bulk.claim_batch("v", "me")
    stores = [EventStore(connect()) for _ in range(3)]
    results = at_once([lambda s=s: s.fail_streams("v", lease, [failure(streams[0])]) for s in stores])  # type: ignore[misc]
    assert sorted(type(result.exception()).__name__ for result in results) == ["NoneType", "NotInFlight", "NotInFlight"]
    assert locks(bulk) == [(streams[0], 1)]


# Parts of a batch


def test_a_part_of_a_range_with_a_retry_in_it_loses_and_doubles_nothing(bulk: EventStore, streams: list[str]) -> None:
    bad, good, other = streams
    first = [event.event_id for event in append_to(bulk, bad, good)]
    finish(bulk, bulk.claim_batch("v", "me"), {bad})
    second = [event.event_id for event in append_to(bulk, other, bad, good, bad)]
    at(bulk, 5)
    (lease,) = bulk.claim_batch("v", "me")
    assert (lease.from_offset, lease.to_offset) == (2, 6)
    assert [e.event_id for e in bulk.read_batch("v", lease)] == [first[0], second[1], second[3], second[0], second[2]]
    bulk.commit_batch("v", [replace(lease, to_offset=3)])  # the first of bad, one event of the range
    (lease,) = bulk.claim_batch("v", "me")
    assert (lease.from_offset, lease.to_offset) == (3, 6)
    assert [e.event_id for e in bulk.read_batch("v", lease)] == [second[1], second[3], second[2]]
    bulk.commit_batch("v", [lease])
    assert locks(bulk) == []
    assert bulk.claim_batch("v", "me") == []


def test_a_stream_may_fail_beyond_the_part_that_is_committed(bulk: EventStore, streams: list[str]) -> None:
    good, bad, _ = streams
    a, b, c = (event.event_id for event in append_to(bulk, good, bad, good))
    (lease,) = bulk.claim_batch("v", "me")
    with bulk.connection.transaction():
        bulk.fail_streams("v", lease, [failure(bad)])
        bulk.commit_batch("v", [replace(lease, to_offset=1)])
    assert [e.event_id for e in read(bulk, bulk.claim_batch("v", "me"))] == [c]
    bulk.release_owner("me")
    at(bulk, 5)
    assert finish(bulk, bulk.claim_batch("v", "me")) == [(bad, b), (good, c)]
    assert bulk.claim_batch("v", "me") == []
    assert a not in (b, c)


def test_nothing_beyond_the_leased_range_can_be_committed(bulk: EventStore, streams: list[str]) -> None:
    append_to(bulk, *streams)
    finish(bulk, bulk.claim_batch("v", "me"), streams)
    at(bulk, 5)
    (lease,) = bulk.claim_batch("v", "me")  # only retries
    append_to(bulk, *streams)
    bulk.sequence_events()
    for offset in (4, 6, 10**9, 2, -1):
        with pytest.raises(OffsetOutOfRange, match="position 3, leased up to 3, high-water mark 6"):
            bulk.commit_batch("v", [replace(lease, to_offset=offset)])
    finish(bulk, [lease])
    assert len(finish(bulk, bulk.claim_batch("v", "me"))) == 3


# A20


def test_a_stream_whose_next_event_has_no_partition_offset_yet_is_not_due(
    bulk: EventStore, streams: list[str], connect: Connect
) -> None:
    bad = streams[0]
    append_to(bulk, bad)
    finish(bulk, bulk.claim_batch("v", "me"), {bad})
    at(bulk, 5)
    leases = bulk.claim_batch("v", "me")
    append_to(bulk, bad)
    with bulk.connection.transaction():
        bulk.commit_batch("v", leases)
    somebody = connect(autocommit=False)
    somebody.execute("select from event_store.sequencer for update")  # nobody else sequences
    assert bulk.claim_batch("v", "me") == []
    somebody.rollback()
    assert len(finish(bulk, bulk.claim_batch("v", "me"))) == 1
    assert locks(bulk) == []


def test_a_due_retry_in_a_leased_partition_waits_for_the_lease(bulk: EventStore, streams: list[str]) -> None:
    bad, good, _ = streams
    append_to(bulk, bad)
    finish(bulk, bulk.claim_batch("v", "me"), {bad})
    append_to(bulk, good)
    leases = bulk.claim_batch("v", "me")
    at(bulk, 5)
    assert bulk.claim_batch("v", "them") == []
    assert [each[0] for each in finish(bulk, leases)] == [good]
    assert [each[0] for each in finish(bulk, bulk.claim_batch("v", "them"))] == [bad]


def test_a_failed_stream_that_the_view_wants_no_more_of_is_forgotten(bulk: EventStore, streams: list[str]) -> None:
    append_to(bulk, *streams)
    finish(bulk, bulk.claim_batch("v", "me"), streams)
    bulk.register_view("v", mode="bulk", deciders=["invoice"])
    at(bulk, 5)
    assert bulk.claim_batch("v", "me") == []
    assert locks(bulk) == []


def test_unwanted_events_of_a_failed_stream_are_left_out_of_its_retry(orders: EventStore) -> None:
    orders.register_view("v", "-infinity", mode="bulk", events=["paid"])
    at(orders, 0)
    last, wanted = None, []
    for event in ("placed", "paid", "placed", "paid", "placed"):
        last = append(orders, "o-1", last, event=event).event_id
        wanted += [last] if event == "paid" else []
    leases = orders.claim_batch("v", "me")
    orders.fail_streams("v", leases[0], [failure("o-1")])
    orders.commit_batch("v", leases)
    at(orders, 5)
    leases = orders.claim_batch("v", "me")
    assert [e.event_id for e in read(orders, leases)] == wanted
    orders.commit_batch("v", leases)
    assert locks(orders) == []


# Rebuilds


def test_a_rebuild_reads_every_stream_and_frees_those_that_do_not_fail_again(
    bulk: EventStore, streams: list[str]
) -> None:
    recovered, dead, _ = streams
    bulk.register_view("v", mode="bulk", max_attempts=1)
    (elsewhere,) = ids_of_one_partition(bulk.connection, 1, partition=1)
    events = [event.event_id for event in append_to(bulk, *streams, *streams, elsewhere)]
    finish(bulk, bulk.claim_batch("v", "me"), {recovered, dead, elsewhere})
    assert len(bulk.dead_letters()) == 3
    lease = bulk.claim_partition("v", 0, "me")
    assert [e.event_id for e in bulk.read_batch("v", lease)] == events[:6]
    before = state(bulk)
    with pytest.raises(OffsetOutOfRange, match="leased up to 6"):
        bulk.commit_batch("v", [replace(lease, to_offset=5)])
    assert bulk.release_batch("v", [lease]) == 1
    assert len(bulk.dead_letters()) == 3  # until it commits, nothing is freed
    assert before != state(bulk)
    lease = bulk.claim_partition("v", 0, "me")
    with bulk.connection.transaction():
        assert bulk.fail_streams("v", lease, [failure(dead, "again")]) == 1
        bulk.commit_batch("v", [lease])
    assert {(each.decider_id, each.last_error, each.attempts) for each in bulk.dead_letters()} == {
        (dead, "again", 2),
        (elsewhere, "no such customer", 1),
    }
    assert bulk.claim_batch("v", "me") == []
    assert bulk.retry_dead_letters("v", "order", dead) == 1
    # its rows were made anew without it
    assert [each for _, each in finish(bulk, bulk.claim_batch("v", "me"))] == [events[1], events[4]]


def test_a_stream_that_was_half_retried_is_read_whole_by_a_rebuild_and_retried_whole_after_it(
    bulk: EventStore, streams: list[str]
) -> None:
    bad = streams[0]
    events = [event.event_id for event in append_to(bulk, bad)]
    finish(bulk, bulk.claim_batch("v", "me"))
    events += [event.event_id for event in append_to(bulk, bad)]
    finish(bulk, bulk.claim_batch("v", "me"), {bad})
    lease = bulk.claim_partition("v", 0, "me")
    assert [e.event_id for e in bulk.read_batch("v", lease)] == events
    with bulk.connection.transaction():
        bulk.fail_streams("v", lease, [failure(bad)])
        bulk.commit_batch("v", [lease])
    at(bulk, 10)
    assert [each for _, each in finish(bulk, bulk.claim_batch("v", "me"))] == events


# A22


@dataclass
class Model:
    """What should be: per stream all events of the view's time, and how many of them are acknowledged."""

    store: EventStore
    view: str
    ids: list[str]
    events: dict[str, list[UUID]] = field(default_factory=dict)
    acknowledged: dict[str, int] = field(default_factory=dict)
    held: list[list[Lease]] = field(default_factory=list)
    positions: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store.register_view(self.view, mode="bulk", max_attempts=2)
        self.store.seek_view(self.view, "RESET_TO_LATEST")
        self.events = {decider_id: [] for decider_id in self.ids}
        self.acknowledged = dict.fromkeys(self.ids, 0)

    def append(self, a: int, b: int) -> None:
        for event, decider_id in zip(
            append_to(self.store, *(chosen := [self.ids[(a * 7 + n * b) % len(self.ids)] for n in range(1 + a % 5)])),
            chosen,
            strict=True,
        ):
            self.events[decider_id].append(event.event_id)

    def claim(self, a: int, b: int) -> None:
        if leases := self.store.claim_batch(self.view, f"owner {b}", 1 + a % 7):
            self.held.append(leases)

    def commit(self, a: int, b: int) -> None:
        """Commit one of the batches, in part, with failures; a zombie's is refused as a whole."""
        if not self.held:
            return
        leases = self.held.pop(a % len(self.held))
        in_force = {
            tuple(row)
            for row in rows(
                self.store.connection,
                "select partition, lease_token from event_store.checkpoints where view = %s and lease_owner is not null",
                self.view,
            )
        }
        if not {(lease.partition, lease.lease_token) for lease in leases} <= in_force:
            with pytest.raises(LeaseLost):
                self.store.commit_batch(self.view, leases)
            return
        locked = {
            row[0]
            for row in rows(
                self.store.connection, "select decider_id from event_store.stream_locks where view = %s", self.view
            )
        }
        parts = [
            replace(lease, to_offset=lease.to_offset - (a + b) % (lease.to_offset - lease.from_offset + 1) * (b % 2))
            for lease in leases
        ]
        done: list[LogEvent] = []
        with self.store.connection.transaction():
            for lease, part in zip(leases, parts, strict=True):
                events = self.store.read_batch(self.view, lease)
                poisoned = sorted({e.decider_id for e in events if (b >> self.ids.index(e.decider_id)) & 1})
                if poisoned:
                    self.store.fail_streams(self.view, lease, [failure(each) for each in poisoned])
                done += [
                    e
                    for e in events
                    if e.decider_id not in poisoned and (e.decider_id in locked or e.partition_offset < part.to_offset)
                ]
            self.store.commit_batch(self.view, parts)
        for event in done:
            self.acknowledge(event.decider_id, event.event_id)

    def acknowledge(self, decider_id: str, event_id: UUID) -> None:
        """Exactly the next event of the stream: none twice, none out of order."""
        assert self.events[decider_id][self.acknowledged[decider_id]] == event_id
        self.acknowledged[decider_id] += 1

    def release(self, a: int, _: int) -> None:
        if self.held:
            self.store.release_batch(self.view, self.held[a % len(self.held)])

    def wait(self, a: int, b: int) -> None:
        """Let time pass: a moment, or so long that every lease and delay is over."""
        later = 10_000 if b % 3 == 0 else a
        now = value(self.store.connection, "select event_store.clock() + %s * interval '1 second'", later)
        set_clock(self.store.connection, now.isoformat())

    def retry(self, _: int, __: int) -> None:
        self.store.retry_dead_letters(self.view)

    def discard(self, a: int, _: int) -> None:
        if dead := self.store.dead_letters(self.view):
            chosen = dead[a % len(dead)]
            event = self.store.discard_dead_letter(self.view, chosen.decider, chosen.decider_id, "because")
            assert event is not None
            self.acknowledge(chosen.decider_id, event.event_id)

    def rebuild(self, a: int, b: int) -> None:
        """Leave the position where it is: a rebuild that is given up again."""
        try:
            lease = self.store.claim_partition(self.view, a % 2, f"owner {b}")
        except MillraceError:
            return
        self.store.release_batch(self.view, [lease])

    def check(self) -> None:
        """Every event below a checkpoint is acknowledged, or its stream has a lock; checkpoints do not move back."""
        below = rows(
            self.store.connection,
            """
            select e.decider_id, e.event_id, k.view is not null
            from event_store.checkpoints c
            join event_store.event_log l on l.partition = c.partition and l.partition_offset < c.position
            join event_store.events e using ("offset")
            left join event_store.stream_locks k on k.view = c.view and k.decider_id = e.decider_id and k.decider = e.decider
            where c.view = %s and e.event_id = any (%s)
            """,
            self.view,
            [event_id for events in self.events.values() for event_id in events],
        )
        for decider_id, event_id, locked in below:
            if self.events[decider_id].index(event_id) >= self.acknowledged[decider_id]:
                assert locked, f"{decider_id} lost {event_id}"
        positions = dict(
            rows(
                self.store.connection,
                "select partition, position from event_store.checkpoints where view = %s",
                self.view,
            )
        )
        assert all(positions[partition] >= position for partition, position in self.positions.items())
        self.positions = positions

    def drain(self) -> None:
        """With nothing failing any more, everything is acknowledged and no lock is left."""
        self.wait(0, 0)
        self.held.clear()
        self.store.retry_dead_letters(self.view)
        for _ in range(20):
            self.claim(10**6, 0)
            if not self.held:
                break
            self.commit(0, 0)
        assert self.acknowledged == {decider_id: len(events) for decider_id, events in self.events.items()}
        assert rows(self.store.connection, "select * from event_store.stream_locks where view = %s", self.view) == []


STEPS = [
    "append",
    "append",
    "claim",
    "claim",
    "commit",
    "commit",
    "commit",
    "release",
    "wait",
    "wait",
    "retry",
    "discard",
    "rebuild",
]


def test_any_course_of_a_bulk_view_acknowledges_each_event_once_in_order(orders: EventStore) -> None:
    at(orders, 0)
    ids = [*ids_of_one_partition(orders.connection, 3), *ids_of_one_partition(orders.connection, 1, partition=1)]
    views = iter(range(10_000))

    @settings(
        max_examples=60,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate, Phase.shrink],
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 15), st.integers(0, 15)), min_size=8, max_size=30))
    def run(steps: list[tuple[str, int, int]]) -> None:
        model = Model(orders, f"v{next(views)}", ids)
        model.append(4, 1)
        for name, a, b in steps:
            getattr(model, name)(a, b)
            model.check()
        model.drain()
        model.check()

    run()
