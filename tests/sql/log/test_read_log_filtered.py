"""Reading a log partition for some deciders and events only."""

import pytest

from millrace.resources.errors import Malformed
from millrace.resources.event_store import EventStore
from tests.support.factories import append, append_many, buffers, ids_of_one_partition, rows


@pytest.fixture
def log(orders: EventStore) -> EventStore:
    """Log partition 0 holds, twice: an order placed, an order paid, an invoice placed, an invoice paid."""
    for decider_id in ids_of_one_partition(orders.connection, 2):
        for decider in ("order", "invoice"):
            placed = append(orders, decider_id, decider=decider)
            append(orders, decider_id, placed.event_id, decider=decider, event="paid")
    orders.sequence_events()
    return orders


@pytest.mark.parametrize(
    ("deciders", "events", "positions"),
    [
        (None, None, [0, 1, 2, 3, 4, 5, 6, 7]),
        ([], [], [0, 1, 2, 3, 4, 5, 6, 7]),
        (["order"], None, [0, 1, 4, 5]),
        (None, ["paid"], [1, 3, 5, 7]),
        (["invoice"], ["paid"], [3, 7]),
        (["order", "invoice"], ["paid", "placed"], [0, 1, 2, 3, 4, 5, 6, 7]),
        (["unknown"], None, []),
    ],
)
def test_only_what_fits_both_lists_is_read(
    log: EventStore, deciders: list[str] | None, events: list[str] | None, positions: list[int]
) -> None:
    assert [event.position for event in log.read_log(0, 0, deciders=deciders, events=events)] == positions


def test_the_limit_counts_what_fits(log: EventStore) -> None:
    assert [event.position for event in log.read_log(0, 0, 2, ["invoice"], ["paid"])] == [3, 7]
    assert [event.position for event in log.read_log(0, 0, 1, ["invoice"], ["paid"])] == [3]
    assert [event.position for event in log.read_log(0, 4, 1, ["invoice"], ["paid"])] == [7]
    assert log.read_log(0, 8, 1, ["invoice"]) == []


def test_what_is_out_of_range_is_refused_with_a_filter_too(log: EventStore) -> None:
    with pytest.raises(Malformed):
        log.read_log(0, 0, 0, ["order"])


def test_it_reads_no_further_than_the_limit_needs(orders: EventStore) -> None:
    append_many(orders.connection, 16_000)
    orders.sequence_events()
    whole = "select event_store.read_log(0, 0, 1000000, '{order}')"
    page = "select event_store.read_log(0, 100, 10, '{order}')"
    assert len(rows(orders.connection, page)) == 10
    assert buffers(orders.connection, page) < 100
    assert buffers(orders.connection, whole) > 1000
