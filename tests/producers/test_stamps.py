"""Numbering messages: unique, rising, and known for ever."""

from millrace.resources.producers import IdempotentProducer, ProducerStamp, RegisteredProducer
from tests.support.factories import at_once


def numbered(next_sequence: int) -> IdempotentProducer:
    return IdempotentProducer(RegisteredProducer("p", 3, 7, next_sequence))


def test_stamps_are_unique_and_rise_from_where_the_instance_before_was() -> None:
    producer = numbered(5)
    assert producer.current_sequence == 5
    assert [producer.issue() for _ in range(3)] == [ProducerStamp("p", 3, 7, n) for n in (5, 6, 7)]
    assert producer.current_sequence == 8


def test_a_message_that_is_sent_again_has_its_old_stamp_and_moves_the_next_one_past_it() -> None:
    producer = numbered(5)
    assert producer.reissue(2) == ProducerStamp("p", 3, 7, 2)
    assert producer.current_sequence == 5
    assert producer.reissue(9) == ProducerStamp("p", 3, 7, 9)
    assert producer.issue().sequence == 10


def test_whether_a_number_was_issued_is_known_for_any_age() -> None:
    producer = numbered(10**6)
    assert all(producer.was_issued(n) for n in (0, 1, 10**6 - 1))
    assert not producer.was_issued(10**6)
    assert not producer.was_issued(-1)
    producer.issue()
    assert producer.was_issued(10**6)


def test_threads_that_share_a_producer_never_get_the_same_number() -> None:
    producer = numbered(0)
    results = at_once([lambda: [producer.issue().sequence for _ in range(1000)] for _ in range(4)])
    taken = [result.result() for result in results]
    assert sorted(n for each in taken for n in each) == list(range(4000))
    assert all(each == sorted(each) for each in taken)
