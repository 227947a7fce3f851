"""What claim_views leases of many views at once is what claim_batch leases of each alone, whatever came before.

Belongs here: random stores, and whole random lives of views that are consumed in rounds. Not here: single promises
(test_claim_views), sessions that race (test_racing_rounds).
"""

from collections import Counter
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from millrace.resources.archive.store import ArchiveStore
from millrace.resources.event_store import EventStore, Lease, LogEvent, StreamFailure
from tests.long import seeds
from tests.support.factories import new_event, rows, set_clock, value

FILTERS: dict[str, dict[str, list[str]]] = {
    "all": {},
    "orders": {"deciders": ["order"]},
    "paid": {"events": ["paid"]},
    "invoices_paid": {"deciders": ["invoice"], "events": ["paid"]},
    "none": {"deciders": ["nobody"]},
    "also_all": {},
    "off": {},
}
# mostly what some views pass over
RARE = ["placed"] * 8 + ["paid"]
Ranges = dict[str, list[tuple[int, int, int]]]


class RandomPast:
    """A store with views, whose past is random."""

    def __init__(self, store: EventStore, seed: int) -> None:
        self.store, self.random, self.now = store, Random(seed), 0
        self.pass_time(0)
        for view, filters in FILTERS.items():
            store.register_view(view, "-infinity", mode="bulk", max_attempts=3, **filters)  # type: ignore[arg-type]
        store.enable_view("off", False, reason="a test")

    def pass_time(self, seconds: int) -> None:
        self.now += seconds
        set_clock(self.store.connection, (datetime(2030, 1, 1, tzinfo=UTC) + timedelta(seconds=self.now)).isoformat())

    def append(self, most: int = 40) -> None:
        kinds = self.random.choice([RARE, ["placed"], ["paid"]])
        self.store.append_events(
            [
                new_event(
                    f"o-{self.random.randrange(30)}",
                    event=self.random.choice(kinds),
                    decider=self.random.choice(["order", "invoice"]),
                )
                for _ in range(self.random.randrange(1, most))
            ]
        )
        self.store.sequence_events()

    def consume_alone(self) -> None:
        """Let an owner claim something of a view, and commit it, fail a stream of it, or keep it."""
        view = self.random.choice([*FILTERS])
        limit = self.random.choice([1, 3, 10, 1000])
        leases = self.store.claim_batch(view, f"owner {self.random.randrange(3)}", limit, 60)
        for lease in leases:
            fate = self.random.random()
            if fate < 0.3:
                continue
            if fate < 0.6 and (events := self.store.read_batch(view, lease)):
                one = self.random.choice(events)
                self.store.fail_streams(view, lease, [StreamFailure(one.decider, one.decider_id, "no")])
            self.store.commit_batch(view, [lease])

    def shorten(self) -> None:
        """Give up what no view needs of one log partition."""
        partition, mark = self.random.choice(
            rows(
                self.store.connection,
                """
                select p.partition, least(
                  p.high_water_mark, min(case when c.lease_owner is null then c.position else least(c.position, c.leased_from) end)
                )
                from event_store.partitions p join event_store.checkpoints c using (partition)
                where not exists (select from event_store.stream_locks k where k.partition = p.partition)
                group by p.partition, p.high_water_mark
                """,
            )
            or [(0, 0)]
        )
        archive = ArchiveStore(self.store.connection)
        if mark > 0:
            archive.mark_archived(partition, mark)
            archive.raise_low_water_mark(partition, mark)
            while archive.purge_events(partition, 10):
                pass

    def step(self) -> None:
        work = self.random.choice([self.append, self.consume_alone, self.consume_alone, self.shorten, self.wait])
        work()

    def wait(self) -> None:
        self.pass_time(self.random.choice([1, 5, 30, 61]))


def ranges(leases: list[Lease]) -> list[tuple[int, int, int]]:
    """Return the ranges that hold something: a claim of one view has empty ones for streams to try again."""
    return sorted(
        (one.partition, one.from_position, one.to_position) for one in leases if one.to_position > one.from_position
    )


@pytest.mark.parametrize("seed", seeds(6))
def test_many_views_are_leased_what_each_would_be_alone(orders: EventStore, seed: int) -> None:
    life = RandomPast(orders, seed)
    compared: Counter[str] = Counter()
    for step in range(60):
        life.step()
        limit = life.random.choice([1, 2, 7, 25, 20_000])
        views = life.random.sample([*FILTERS], life.random.randrange(1, len(FILTERS) + 1))
        with orders.connection.transaction(force_rollback=True):
            together = {view: ranges(of) for view, of in orders.claim_views([*views, "nobody"], "round", limit).items()}
        alone: Ranges = {}
        for view in views:
            with orders.connection.transaction(force_rollback=True):
                if found := ranges(orders.claim_batch(view, "round", limit)):
                    alone[view] = found
        assert together == alone, f"step {step}"
        compared.update({view: len(of) for view, of in alone.items()})
        due = {row.view: row.due - row.retries > 0 for row in orders.poll_views(views) if row.enabled}
        assert {*alone} <= {view for view, is_due in due.items() if is_due}, f"step {step}"
    assert min(compared[view] for view in ("all", "orders", "paid", "invoices_paid")) > 10
    assert compared["none"] == compared["off"] == 0


@pytest.mark.parametrize("seed", seeds(4))
def test_over_a_life_each_event_is_delivered_as_often_as_it_failed_and_once(orders: EventStore, seed: int) -> None:
    """Rounds take the new events, each view alone its retries; a reader of ranges leaves out streams with a lock."""
    life = RandomPast(orders, seed + 100)
    taken: Counter[tuple[str, int]] = Counter()

    def settle(view: str, lease: Lease, events: list[LogEvent], *, may_fail: bool) -> None:
        failed: set[tuple[str, str]] = set()
        if may_fail and events and life.random.random() < 0.3:
            one = life.random.choice(events)
            failed.add((one.decider, one.decider_id))
            orders.fail_streams(view, lease, [StreamFailure(*stream, "no") for stream in failed])
        orders.commit_batch(view, [lease])
        taken.update((view, event.offset) for event in events if (event.decider, event.decider_id) not in failed)

    def round_of_all(*, may_fail: bool) -> None:
        owner = f"round {life.random.randrange(2)}"
        claimed = orders.claim_views([*FILTERS], owner, life.random.choice([1, 5, 20_000]), 60)
        owned = orders.owned_leases(owner)
        assert all({*of} <= {*owned[view]} for view, of in claimed.items())
        locked = {(one.view, one.decider, one.decider_id) for one in orders.locked_streams(owner)}
        for view, leases in claimed.items():
            for lease in leases:
                events = orders.read_batch(view, lease)
                whole = orders.read_log(lease.partition, lease.from_position, lease.to_position - lease.from_position)
                v = FILTERS[view]
                assert [event.offset for event in events] == [
                    event.offset
                    for event in whole
                    if event.decider in v.get("deciders", [event.decider])
                    and event.event in v.get("events", [event.event])
                    and (view, event.decider, event.decider_id) not in locked
                ]
                if not may_fail or life.random.random() < 0.8:
                    settle(view, lease, events, may_fail=may_fail)

    def retries(view: str, *, may_fail: bool) -> None:
        for lease in orders.claim_batch(view, "alone", 1000, 60):
            settle(view, lease, orders.read_batch(view, lease), may_fail=may_fail)

    for _ in range(50):
        life.append(20)
        round_of_all(may_fail=True)
        if life.random.random() < 0.3:
            retries(life.random.choice([*FILTERS]), may_fail=True)
        life.pass_time(life.random.choice([0, 1, 20]))
    for _ in range(30):
        life.pass_time(3600)
        for view in FILTERS:
            orders.retry_dead_letters(view)
        round_of_all(may_fail=False)
        for row in orders.poll_views():
            if row.retries:
                retries(row.view, may_fail=False)
    wanted = rows(
        orders.connection,
        """
        select v.view, e."offset" from event_store.views v cross join event_store.events e
        where v.enabled and event_store_private.wants(v.deciders, v.events, e.decider, e.event)
        """,
    )
    assert taken == Counter((view, offset) for view, offset in wanted)
    assert {row.view: row.due for row in orders.poll_views() if row.enabled} == dict.fromkeys({*FILTERS} - {"off"}, 0)
    assert value(orders.connection, "select count(*) from event_store.stream_locks") == 0
