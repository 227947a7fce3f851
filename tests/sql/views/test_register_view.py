"""Registering views: settings may change, progress never does."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from millrace.resources.errors import BelongsToReadModel, Malformed, MillraceError, ViewInUse, WrongMode
from millrace.resources.event_store import EventStore, Lease, StreamFailure
from millrace.resources.event_store.refusals import refusals
from tests.support.factories import (
    Connect,
    append,
    append_to,
    at_once,
    give_to_read_model,
    pump,
    refusal,
    rows,
    set_clock,
    start,
    terminate,
    value,
    wait_blocked,
)

UPSTREAM = ["view", "start_at", "lock_timeout_s", "pooling_delay_s", "edge_function_url", "created_at", "updated_at"]


def progress(store: EventStore) -> list[tuple[Any, ...]]:
    return rows(store.connection, "select * from event_store.checkpoints order by view, partition")


def drained(store: EventStore, view: str) -> int:
    leases = store.claim_batch(view, "owner")
    if leases:
        store.commit_batch(view, leases)
    return sum(lease.to_position - lease.from_position for lease in leases)


# A14


@pytest.mark.parametrize("mode", ["rows", "bulk"])
def test_registering_again_never_moves_progress(orders: EventStore, mode: str) -> None:
    append_to(orders, *[f"o-{n}" for n in range(20)])
    orders.register_view("v", "-infinity", mode=mode)
    if mode == "bulk":
        assert drained(orders, "v") == 20
        append_to(orders, "o-1")
        orders.claim_batch("v", "owner")
    else:
        orders.dispatch_events("v")
    before = progress(orders)
    for start_at in ("-infinity", None, "2030-01-01 00:00:00+00"):
        orders.register_view("v", start_at, 60, 5, "http://localhost" if mode == "rows" else None, deciders=["order"])
        assert progress(orders) == before


def test_updating_any_column_never_moves_progress(orders: EventStore) -> None:
    append_to(orders, *[f"o-{n}" for n in range(20)])
    orders.register_view("v", "-infinity", mode="bulk")
    drained(orders, "v")
    before = progress(orders)
    orders.connection.execute(
        """
        update event_store.views set
          start_at = '-infinity', lock_timeout_s = 1, pooling_delay_s = 1, edge_function_url = 'x', created_at = now(),
          updated_at = now(), deciders = '{order}', events = '{placed}', enabled = false, max_attempts = 9
        """
    )
    assert progress(orders) == before


def test_registering_again_changes_the_settings_and_when_they_changed(orders: EventStore) -> None:
    set_clock(orders.connection, "2026-01-01 00:00:00+00")
    first = orders.register_view("v")
    set_clock(orders.connection, "2026-01-02 00:00:00+00")
    assert orders.register_view("v") == first
    second = orders.register_view("v", None, 60, 5, "http://localhost", deciders=["order"], events=["paid"])
    assert (second.lock_timeout_s, second.pooling_delay_s, second.edge_function_url) == (60, 5, "http://localhost")
    assert (second.deciders, second.events) == (["order"], ["paid"])
    assert (second.start_at, second.created_at) == (first.start_at, first.created_at)
    assert (second.updated_at - first.updated_at).days == 1


def test_registering_by_name_leaves_every_setting_as_it_is(orders: EventStore) -> None:
    url = "http://localhost/hook"
    made = orders.register_view("v", None, 60, 5, url, deciders=["order"], events=["paid"], max_attempts=9)
    assert orders.register_view("v") == made
    changed = orders.register_view("v", max_attempts=8)
    assert replace(changed, max_attempts=9, updated_at=made.updated_at) == made
    assert rows(orders.connection, "select * from event_store.register_view('v')")[0][1:5] == (
        made.start_at,
        60,
        5,
        url,
    )
    assert len(orders.audit_log("v")) == 2


def test_what_is_empty_clears_a_url_and_a_filter(orders: EventStore) -> None:
    orders.register_view("v", edge_function_url="http://localhost/hook", deciders=["order"], events=["paid"])
    view = orders.register_view("v", edge_function_url="")
    assert (view.edge_function_url, view.deciders, view.events) == (None, ["order"], ["paid"])
    view = orders.register_view("v", deciders=[])
    assert (view.deciders, view.events) == (None, ["paid"])
    view = orders.register_view("v", events=[])
    assert (view.deciders, view.events) == (None, None)
    # a URL that is cleared makes way for the other mode
    orders.register_view("v", edge_function_url="http://localhost/hook")
    refusal(Malformed, lambda: orders.register_view("v", mode="bulk"))
    assert orders.register_view("v", edge_function_url="", mode="bulk").mode == "bulk"
    new = orders.register_view("w", edge_function_url="", deciders=[], events=[])
    assert (new.edge_function_url, new.deciders, new.events) == (None, None, None)


def test_start_at_counts_with_its_time_zone(orders: EventStore) -> None:
    for hour in (9, 10, 11):
        set_clock(orders.connection, f"2026-01-01 {hour}:00:00+00")
        append(orders, f"o-{hour}")
    orders.connection.execute("set timezone = 'Asia/Tokyo'")
    view = orders.register_view("zoned", "2026-01-01 12:00:00+02", mode="bulk")  # 10:00 UTC
    assert view.start_at == datetime(2026, 1, 1, 10, tzinfo=UTC)
    orders.register_view("local", "2026-01-01 20:00:00", mode="bulk")  # 11:00 UTC in this session's zone
    orders.register_view("after", "2026-01-01 11:00:00.000001+00", mode="bulk")
    assert [drained(orders, view) for view in ("zoned", "local", "after")] == [2, 1, 0]


def test_a_view_starts_now_unless_it_says_otherwise(orders: EventStore) -> None:
    append_to(orders, *[f"o-{n}" for n in range(20)])
    orders.register_view("now", mode="bulk")
    orders.register_view("all", "-infinity", mode="bulk")
    orders.register_view("later", "infinity", mode="bulk")
    append(orders, "o-new")
    assert [drained(orders, view) for view in ("now", "all", "later")] == [1, 21, 1]


# A15


@pytest.mark.parametrize("mode", ["rows", "bulk"])
def test_a_view_registered_while_an_append_is_in_flight_receives_that_event(
    orders: EventStore, connect: Connect, mode: str
) -> None:
    append(orders, "before")
    writer = connect(autocommit=False)
    append(EventStore(writer), "in-flight")
    orders.register_view("v", mode=mode)
    append(orders, "after")
    writer.commit()
    if mode == "rows":
        pump(orders, "v")
        assert {event.decider_id for event in orders.stream_events("v", 10)} == {"in-flight", "after"}
    else:
        assert drained(orders, "v") == 2


def test_a_view_registered_while_somebody_sequences_receives_what_is_not_sequenced(
    orders: EventStore, connect: Connect
) -> None:
    sequencer = connect(autocommit=False)
    EventStore(sequencer).sequence_events()
    set_clock(orders.connection, "2026-01-01 00:00:00+00")
    append(orders, "o-1")
    orders.register_view("v", "2025-01-01 00:00:00+00", mode="bulk")
    sequencer.rollback()
    assert drained(orders, "v") == 1


def test_registering_at_once_registers_once(orders: EventStore, connect: Connect) -> None:
    append_to(orders, *[f"o-{n}" for n in range(20)])
    stores = [EventStore(connect()) for _ in range(4)]
    results = at_once([partial(s.register_view, "v", "-infinity", mode="bulk") for s in stores])
    assert len({str(result.result()) for result in results}) == 1
    assert drained(orders, "v") == 20
    assert len(progress(orders)) == 16


def test_a_view_that_is_removed_while_somebody_registers_it_is_registered_anew(
    orders: EventStore, connect: Connect
) -> None:
    orders.register_view("v", max_attempts=9)
    remover, other = EventStore(connect(autocommit=False)), EventStore(connect())
    remover.unregister_view("v")
    registered = start(lambda: other.register_view("v", "-infinity"))
    wait_blocked(orders.connection, other.connection.info.backend_pid)
    remover.connection.commit()
    assert registered.result(20).max_attempts == 5
    assert orders.view_info("v")[0].behind == 0


def test_the_first_registration_decides_the_start_also_for_one_that_waits(orders: EventStore, connect: Connect) -> None:
    append(orders)
    first, second = connect(autocommit=False), connect()
    EventStore(first).register_view("v", "-infinity", mode="bulk")
    late = start(lambda: EventStore(second).register_view("v", "infinity", mode="bulk"))
    wait_blocked(orders.connection, second.info.backend_pid)
    first.commit()
    assert late.result(20).start_at.year == 1
    assert drained(orders, "v") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"view": ""},
        {"view": None},
        {"lock_timeout_s": 0},
        {"lock_timeout_s": 3601},
        {"lock_timeout_s": -(2**63)},
        {"pooling_delay_s": -1},
        {"pooling_delay_s": 2**31},
        {"view": "x" * 201},
        {"view": "x\0"},
        {"max_attempts": 0},
        {"deciders": [None]},
        {"events": ["paid", None]},
        {"mode": "bulk", "edge_function_url": "http://localhost"},
        {"mode": "both"},
        {"owner": "nobody_of_this_name"},
        {"edge_function_url": "http://" + "x" * 2000},
        {"start_at": "yesterday evening"},
    ],
    ids=str,
)
def test_a_malformed_registration_is_refused(orders: EventStore, arguments: dict[str, Any]) -> None:
    with pytest.raises(Malformed) as refused:
        orders.register_view(**{"view": "v", **arguments})
    by_postgres = "start_at" in arguments or "\0" in str(arguments.get("view"))
    assert by_postgres or (refused.value.detail and refused.value.hint)
    assert progress(orders) == []


@pytest.mark.parametrize("view", ["é" * 200, "a'b\"c\\d%e", "{x}", "NULL", " "])
def test_any_name_is_a_name(orders: EventStore, view: str) -> None:
    append(orders)
    orders.register_view(view, "-infinity", lock_timeout_s=3600, pooling_delay_s=2**31 - 1)
    (event,) = orders.lease_events(view)
    orders.ack_event(view, "o-1", event.offset, event.lease_token)
    orders.enable_view(view, False)
    orders.unregister_view(view)


@pytest.mark.parametrize("change", ["settings", "mode", "enable", "retry", "discard", "unregister", "register"])
def test_what_is_killed_before_its_commit_changed_nothing(orders: EventStore, connect: Connect, change: str) -> None:
    orders.register_view("v", "-infinity", max_attempts=1)
    append_to(orders, "a", "b")
    pump(orders, "v")
    (event,) = orders.lease_events("v")
    orders.fail_event("v", event.decider_id, event.offset, "no", event.lease_token)

    def state() -> list[object]:
        tables = ("views", "checkpoints", "stream_locks", "dispatches", "audit_log")
        return [
            orders.connection.execute(f"select t::text from event_store.{table} t".encode()).fetchall()
            for table in tables
        ]

    before = state()
    operator = EventStore(connect(autocommit=False))
    calls: dict[str, Callable[[], object]] = {
        "settings": lambda: operator.register_view("v", None, 5, 5, "http://localhost", deciders=["order"]),
        "mode": lambda: operator.register_view("v", mode="bulk"),
        "enable": lambda: operator.enable_view("v", False),
        "retry": lambda: operator.retry_dead_letters("v"),
        "discard": lambda: operator.discard_dead_letter("v", "order", event.decider_id, "no"),
        "unregister": lambda: operator.unregister_view("v"),
        "register": lambda: operator.register_view("w", "-infinity"),
    }
    calls[change]()
    terminate(orders.connection, operator.connection.info.backend_pid)
    assert state() == before
    assert len(orders.lease_events("v", 10)) == 1


def test_settings_change_while_a_consumer_keeps_its_transaction_open(orders: EventStore, connect: Connect) -> None:
    orders.register_view("v", "-infinity")
    append_to(orders, "a", "b")
    orders.sequence_events()
    consumer = EventStore(connect(autocommit=False))
    assert consumer.dispatch_events("v") == 2
    assert len(consumer.lease_events("v", 1)) == 1
    orders.connection.execute("set lock_timeout = '2s'")
    assert orders.register_view("v", lock_timeout_s=5).lock_timeout_s == 5
    assert not orders.enable_view("v", False).enabled


@pytest.mark.parametrize(("mode", "other"), [("rows", "bulk"), ("bulk", "rows")])
def test_the_mode_stays_unless_another_one_is_asked_for(orders: EventStore, mode: str, other: str) -> None:
    assert orders.register_view("v", mode=mode).mode == mode
    assert orders.register_view("v").mode == mode
    assert orders.register_view("v", mode=other).mode == other


# A22


def delivered_by_rows(store: EventStore) -> list[str]:
    """Fetch and acknowledge all that a rows view gives."""
    got = []
    pump(store, "v")
    while events := store.lease_events("v", 100):
        for event in events:
            store.ack_event("v", event.decider_id, event.offset, event.lease_token)
            got.append(str(event.event_id))
        pump(store, "v")
    return got


def delivered_by_bulk(store: EventStore) -> list[str]:
    """Claim, read and commit all that a bulk view gives."""
    got = []
    while leases := store.claim_batch("v", "owner"):
        got += [str(event.event_id) for lease in leases for event in store.read_batch("v", lease)]
        store.commit_batch("v", leases)
    return got


def stored(store: EventStore) -> list[str]:
    return [str(row[0]) for row in rows(store.connection, "select event_id from event_store.events order by event_id")]


def test_from_rows_to_bulk_nothing_is_lost_or_delivered_twice(orders: EventStore) -> None:
    """Streams are acknowledged in part, free, given back, backing off, parked, leased by the dead or undispatched."""
    orders.register_view("v", "-infinity", max_attempts=1)
    set_clock(orders.connection, "2030-01-01 00:00:00+00")
    append_to(orders, *["part", "back", "parked", "dead"] * 2)
    pump(orders, "v")
    part, back, parked, _ = orders.lease_events("v", 10, 60)
    orders.ack_event("v", "part", part.offset)
    orders.schedule_nack_event("v", "back", 30_000, back.offset)
    orders.fail_event("v", "parked", parked.offset, "no")
    orders.register_view("v", max_attempts=5)
    append_to(orders, "fails", "free", "fails")
    pump(orders, "v")
    (fails,) = [event for event in orders.lease_events("v", 10, 60) if event.decider_id == "fails"]
    orders.fail_event("v", "fails", fails.offset, "no")
    append_to(orders, "new", "part", "parked")

    set_clock(orders.connection, "2030-01-01 00:02:00+00")
    orders.register_view("v", mode="bulk")
    assert [letter.decider_id for letter in orders.dead_letters("v")] == ["parked"]
    got = delivered_by_bulk(orders)
    held_back = {str(event.event_id) for event in orders.get_events("parked", "order")}
    assert sorted([*got, str(part.event_id)]) == sorted(set(stored(orders)) - held_back)
    assert orders.retry_dead_letters("v") == 1
    rest = delivered_by_bulk(orders)
    assert rest == [str(event.event_id) for event in orders.get_events("parked", "order")]
    assert delivered_by_bulk(orders) == []
    assert value(orders.connection, "select count(*) from event_store.stream_locks") == 0


def test_from_bulk_to_rows_nothing_is_lost_or_delivered_twice(orders: EventStore) -> None:
    orders.register_view("v", "-infinity", mode="bulk", max_attempts=2)
    set_clock(orders.connection, "2030-01-01 00:00:00+00")
    append_to(orders, *["parked", "waits", "good"] * 2)
    got: list[str] = []
    for hour, failing in ((0, ["parked"]), (1, ["parked", "waits"])):
        set_clock(orders.connection, f"2030-01-01 0{hour}:00:00+00")
        append_to(orders, "waits")
        leases = orders.claim_batch("v", "owner")
        for lease in leases:
            events = orders.read_batch("v", lease)
            names = {event.decider_id for event in events} & set(failing)
            got += [str(event.event_id) for event in events if event.decider_id not in names]
            if names:
                failures = [StreamFailure("order", name, "no") for name in names]
                orders.fail_streams("v", lease, failures)
        orders.commit_batch("v", leases)
    append_to(orders, "new", "parked", "good")
    dead = orders.claim_batch("v", "dies", lease_s=60)
    assert dead
    set_clock(orders.connection, "2030-01-01 02:00:00+00")

    orders.register_view("v", mode="rows")
    assert [letter.decider_id for letter in orders.dead_letters("v")] == ["parked"]
    got += delivered_by_rows(orders)
    assert orders.retry_dead_letters("v") == 1
    rest = delivered_by_rows(orders)
    assert rest == [str(event.event_id) for event in orders.get_events("parked", "order")]
    assert sorted(got + rest) == stored(orders)
    assert delivered_by_rows(orders) == []
    assert value(orders.connection, "select count(*) from event_store.stream_locks") == 0


def test_there_and_back_again_while_events_come(orders: EventStore) -> None:
    orders.register_view("v", "-infinity")
    got: list[str] = []
    for n in range(6):
        append_to(orders, *[f"o-{k}" for k in range(9)], *["hot"] * 4)
        if n % 2 == 0:
            pump(orders, "v")
            for event in orders.lease_events("v", 5):  # not all, so that streams are ahead of the checkpoint and behind
                orders.ack_event("v", event.decider_id, event.offset)
                got.append(str(event.event_id))
        else:
            for lease in orders.claim_batch("v", "owner", 20):
                got += [str(event.event_id) for event in orders.read_batch("v", lease)]
                orders.commit_batch("v", [lease])
        orders.register_view("v", mode=("bulk", "rows")[n % 2])
    got += delivered_by_rows(orders)
    assert sorted(got) == stored(orders)
    for decider_id in ("hot", *[f"o-{k}" for k in range(9)]):
        in_order = [str(event.event_id) for event in orders.get_events(decider_id, "order")]
        assert [event_id for event_id in got if event_id in set(in_order)] == in_order


@pytest.mark.parametrize("mode", ["rows", "bulk"])
def test_the_mode_does_not_change_while_something_is_in_flight(orders: EventStore, mode: str) -> None:
    other = "bulk" if mode == "rows" else "rows"
    orders.register_view("v", "-infinity", mode=mode)
    append(orders, "a")
    set_clock(orders.connection, "2030-01-01 00:00:00+00")
    if mode == "rows":
        pump(orders, "v")
        (event,) = orders.lease_events("v", 1, 60)
    else:
        leases = orders.claim_batch("v", "run 7", lease_s=60)
    before = orders.view_info("v")
    refused = refusal(ViewInUse, lambda: orders.register_view("v", lock_timeout_s=1, mode=other))
    assert ("in flight" if mode == "rows" else "run 7") in str(refused.detail)
    assert orders.view_info("v") == before
    assert value(orders.connection, "select lock_timeout_s from event_store.views") == 300
    set_clock(orders.connection, "2030-01-01 00:01:00+00")  # its lock or lease ended
    assert orders.register_view("v", mode=other).mode == other
    late: MillraceError
    if mode == "rows":
        late = refusal(WrongMode, lambda: orders.ack_event("v", "a", event.offset, event.lease_token))
    else:
        late = refusal(WrongMode, lambda: orders.commit_batch("v", leases))
    assert f"mode {other}" in str(late.detail)


def test_an_answer_that_waits_while_the_mode_changes_is_refused(orders: EventStore, connect: Connect) -> None:
    orders.register_view("v", "-infinity")
    append(orders, "a")
    pump(orders, "v")
    late, operator = EventStore(connect()), EventStore(connect(autocommit=False))
    set_clock(late.connection, "2030-01-01 00:00:00+00")
    (event,) = late.stream_events("v", 1, 60)
    set_clock(operator.connection, "2030-01-01 00:01:00+00")
    operator.register_view("v", mode="bulk")
    answered = start(lambda: late.ack_event("v", "a", event.offset))
    wait_blocked(orders.connection, late.connection.info.backend_pid)
    operator.connection.commit()
    refusal(WrongMode, lambda: answered.result(20))
    set_clock(orders.connection, "2030-01-01 00:01:00+00")
    assert delivered_by_bulk(orders) == [str(event.event_id)]


def test_a_consumer_gets_nothing_while_the_mode_changes(orders: EventStore, connect: Connect) -> None:
    orders.register_view("v", "-infinity")
    append(orders, "a")
    pump(orders, "v")
    operator = EventStore(connect(autocommit=False))
    operator.register_view("v", mode="bulk")
    orders.connection.execute("set lock_timeout = '2s'")
    assert orders.stream_events("v") == []
    assert orders.dispatch_events("v") == 0
    operator.connection.rollback()
    assert len(orders.stream_events("v")) == 1


def test_each_mode_refuses_the_others_calls(orders: EventStore) -> None:
    orders.register_view("r")
    orders.register_view("b", mode="bulk")
    for call in (
        lambda: orders.stream_events("b"),
        lambda: orders.lease_events("b"),
        lambda: orders.dispatch_events("b"),
        lambda: orders.ack_event("b", "a", 1),
        lambda: orders.ack_events("b", [1]),
        lambda: orders.nack_event("b", "a"),
        lambda: orders.schedule_nack_event("b", "a", 1),
        lambda: orders.fail_event("b", "a", 1, "no"),
        lambda: orders.extend_lock("b", "a", 1),
        lambda: orders.claim_batch("r", "owner"),
        lambda: orders.claim_partition("r", 0, "owner"),
        lambda: orders.read_batch("r", Lease(0, 0, 0, 1)),
        lambda: orders.fail_streams("r", Lease(0, 0, 0, 1), [StreamFailure("order", "a", "no")]),
        lambda: orders.commit_batch("r", [Lease(0, 0, 0, 1)]),
        lambda: orders.extend_lease("r", [Lease(0, 0, 0, 1)]),
        lambda: orders.release_batch("r", [Lease(0, 0, 0, 1)]),
    ):
        refused = refusal(WrongMode, call)
        assert "this call is for mode" in str(refused.detail)


def test_the_mode_of_a_read_models_view_does_not_change(orders: EventStore) -> None:
    orders.register_view("b", "-infinity", mode="bulk")
    give_to_read_model(orders.connection, "b")
    assert "read model m" in str(refusal(BelongsToReadModel, lambda: orders.register_view("b", mode="rows")).detail)
    assert orders.register_view("b", lock_timeout_s=5).lock_timeout_s == 5


# B9


def test_deleting_a_view_removes_its_state(orders: EventStore) -> None:
    append_to(orders, "o-1", "o-2")
    for view, mode in (("rows", "rows"), ("bulk", "bulk"), ("kept", "bulk")):
        orders.register_view(view, "-infinity", mode=mode)
    orders.stream_events("rows", 2)
    orders.connection.execute("delete from event_store.views where view <> 'kept'")
    assert {row[0] for row in progress(orders)} == {"kept"}
    assert value(orders.connection, "select count(*) from event_store.stream_locks") == 0


def test_it_is_called_with_named_arguments_as_in_fstore_sql(orders: EventStore) -> None:
    cursor = orders.connection.execute(
        """
        select * from event_store.register_view(
          v_view => 'view1', v_start_at => timestamp '2023-01-23 12:17:17.078384', v_lock_timeout_s => 400,
          v_pooling_delay_s => 1, v_edge_function_url => 'http://localhost'
        )
        """
    )
    assert cursor.description is not None
    assert [column.name for column in cursor.description][: len(UPSTREAM)] == UPSTREAM
    with refusals():
        orders.connection.execute("select * from event_store.register_view('view2', '2023-01-23 12:17:17.078384', 400)")


def test_a_lower_version_changes_no_settings_and_a_higher_one_does(orders: EventStore) -> None:
    assert orders.register_view("v", max_attempts=2, version=2).version == 2
    assert (orders.register_view("v", max_attempts=1, version=1).max_attempts, audited(orders)) == (2, 1)
    assert orders.register_view("v", max_attempts=4, version=2).max_attempts == 4
    by_hand = orders.register_view("v", max_attempts=5)
    assert (by_hand.max_attempts, by_hand.version) == (5, 2)
    newer = orders.register_view("v", version=3)
    assert (newer.max_attempts, newer.version, audited(orders)) == (5, 3, 4)
    refusal(Malformed, lambda: orders.register_view("v", version=-1))


def audited(orders: EventStore) -> int:
    return len(orders.audit_log("v"))
