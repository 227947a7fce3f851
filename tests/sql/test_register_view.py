"""Registering views: settings may change, progress never does."""

from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from resources.errors import Malformed, refusals
from resources.event_store import EventStore
from tests.factories import Connect, append, append_to, at_once, pump, rows, set_clock, start, value, wait_blocked

UPSTREAM = ["view", "start_at", "lock_timeout_s", "pooling_delay_s", "edge_function_url", "created_at", "updated_at"]


def progress(store: EventStore) -> list[tuple[Any, ...]]:
    return rows(store.connection, "select * from event_store.checkpoints order by view, partition")


def drained(store: EventStore, view: str) -> int:
    leases = store.claim_batch(view, "owner")
    if leases:
        store.commit_batch(view, leases)
    return sum(lease.to_offset - lease.from_offset for lease in leases)


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
        {"lock_timeout_s": None},
        {"pooling_delay_s": -1},
        {"mode": "both"},
        {"deciders": []},
        {"events": []},
        {"start_at": "yesterday evening"},
    ],
    ids=str,
)
def test_a_malformed_registration_is_refused(orders: EventStore, arguments: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        orders.register_view(**{"view": "v", **arguments})
    assert progress(orders) == []


@pytest.mark.parametrize(("mode", "other"), [("rows", "bulk"), ("bulk", "rows")])
def test_the_mode_stays_unless_another_one_is_asked_for(orders: EventStore, mode: str, other: str) -> None:
    assert orders.register_view("v", mode=mode).mode == mode
    assert orders.register_view("v").mode == mode
    assert orders.register_view("v", mode=other).mode == other


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
