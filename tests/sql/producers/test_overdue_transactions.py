"""Which transactions of producers are open after their deadline."""

import pytest

from millrace.resources.errors import Malformed
from millrace.resources.producers import ProducerStore
from tests.support.factories import set_clock
from tests.support.producing.messages import LATER, START, do, opened, producer

__all__ = ["producer"]


def found(producer: ProducerStore, late_s: int = 120, limit: int = 100) -> list[tuple[str, int, int]]:
    return [(each.producer_id, each.partition, each.sequence) for each in producer.overdue_transactions(late_s, limit)]


def test_those_that_are_open_so_long_after_their_deadline_are_told_the_oldest_first(producer: ProducerStore) -> None:
    set_clock(producer.connection, START)
    second, first = opened(producer, 0, timeout_s=30), opened(producer, 0, timeout_s=20)
    assert found(producer, 0) == []
    set_clock(producer.connection, LATER)  # a minute
    assert [each.transaction_id for each in producer.overdue_transactions(30)] == [first, second]
    assert [each.transaction_id for each in producer.overdue_transactions(31)] == [first]
    assert [each.transaction_id for each in producer.overdue_transactions(0, 1)] == [first]
    assert found(producer) == []
    assert found(producer, 40) == [("p", 0, 0)]
    assert found(producer, 41) == []


def test_one_that_ended_is_not_told(producer: ProducerStore) -> None:
    set_clock(producer.connection, START)
    opened(producer, 0, timeout_s=20)
    do(producer, 0)
    set_clock(producer.connection, LATER)
    assert found(producer, 0) == [("p", 0, 0)]
    producer.expire_transactions()
    assert found(producer, 0) == []


@pytest.mark.parametrize(("late_s", "limit"), [(-1, 1), (2**31, 1), (0, 0)])
def test_what_is_out_of_range_is_refused(producer: ProducerStore, late_s: int, limit: int) -> None:
    with pytest.raises(Malformed):
        producer.overdue_transactions(late_s, limit)
