"""What every view is doing, in numbers."""

from millrace.resources.event_store import EventStore
from tests.sql.rows.test_stream_events import view
from tests.sql.views.test_dead_letters import park
from tests.support.factories import append_to, pump, set_clock

__all__ = ["view"]

NUMBERS = "behind", "in_flight", "waiting", "dead_letters", "leased_partitions", "consumers"


def numbers(store: EventStore, view: str = "v") -> tuple[int, ...]:
    (info,) = store.view_info(view)
    return tuple(getattr(info, name) for name in NUMBERS)


def test_of_a_rows_view_it_counts_what_its_streams_do(view: EventStore) -> None:
    set_clock(view.connection, "2030-01-01 00:00:00+00")
    assert numbers(view) == (0, 0, 0, 0, 0, 0)
    append_to(view, "a", "b", "c", "d", "d")
    view.sequence_events()
    assert numbers(view) == (5, 0, 0, 0, 0, 0)
    park(view, "a")
    assert numbers(view) == (0, 0, 3, 1, 0, 0)
    b, c = view.lease_events("v", 2, 60)
    assert numbers(view) == (0, 2, 1, 1, 0, 0)
    view.ack_event("v", "b", b.offset)
    pump(view, "v")
    assert numbers(view) == (0, 1, 1, 1, 0, 0)
    view.schedule_nack_event("v", "c", 60_000, c.offset)
    assert numbers(view) == (0, 0, 2, 1, 0, 0)
    view.lease_events("v", 1, 60)
    assert numbers(view) == (0, 1, 1, 1, 0, 0)
    set_clock(view.connection, "2030-01-01 00:01:00+00")  # the lock ended
    assert numbers(view) == (0, 0, 2, 1, 0, 0)


def test_of_a_bulk_view_it_counts_leases_and_what_lies_ahead(orders: EventStore) -> None:
    orders.register_view("v", "-infinity", mode="bulk")
    append_to(orders, *[f"o-{n}" for n in range(30)])
    orders.sequence_events()
    set_clock(orders.connection, "2030-01-01 00:00:00+00")
    leases = orders.claim_batch("v", "owner", lease_s=60)
    assert numbers(orders) == (30, 0, 0, 0, len(leases), 0)
    set_clock(orders.connection, "2030-01-01 00:00:59+00")
    orders.commit_batch("v", leases[:1])
    lag = 30 - (leases[0].to_position - leases[0].from_position)
    assert numbers(orders) == (lag, 0, 0, 0, len(leases) - 1, 0)
    set_clock(orders.connection, "2030-01-01 00:01:00+00")
    assert numbers(orders) == (lag, 0, 0, 0, 0, 0)


def test_it_counts_live_consumers_and_says_mode_and_whether_it_is_enabled(view: EventStore) -> None:
    view.register_view("b", mode="bulk")
    view.enable_view("b", False)
    view.attach_consumer("v")
    infos = {info.view: info for info in view.view_info()}
    assert list(infos) == ["b", "v"]
    assert (infos["b"].mode, infos["b"].enabled, infos["b"].consumers) == ("bulk", False, 0)
    assert (infos["v"].mode, infos["v"].enabled, infos["v"].consumers) == ("rows", True, 1)
