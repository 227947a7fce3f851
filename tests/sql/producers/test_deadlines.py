"""Transactions end after their deadline, are reported while open after it, and are forgotten long after it."""

from millrace.errors import TransactionEnded, UnknownTransaction
from millrace.producers import ExpiredTransactions, ProducerStore
from tests.support.factories import Connect, refusal, rows, set_clock
from tests.support.producing.messages import LATER, START, another, do, effects, opened, staged, state_of, statistics


def test_transactions_end_after_their_deadline_and_no_others(producer: ProducerStore) -> None:
    set_clock(producer.connection, START)
    late, in_time = staged(producer, 0, timeout_s=60, total=1), staged(producer, 0, timeout_s=61, total=2)
    assert producer.expire_transactions() == ExpiredTransactions(0, 0)
    set_clock(producer.connection, LATER)
    assert producer.expire_transactions() == ExpiredTransactions(1, 0)
    assert producer.expire_transactions() == ExpiredTransactions(0, 0)
    assert effects(producer)["events"] == []
    assert rows(producer.connection, "select distinct transaction_id from event_store.staged_changes") == [(in_time,)]
    assert "expired" in str(refusal(TransactionEnded, lambda: producer.commit_transaction(late)))
    producer.commit_transaction(in_time)
    assert state_of(producer) == {"total": 2}
    found = statistics(producer)
    assert (found.expired, found.committed) == (1, 1)


def test_what_ended_without_an_effect_is_forgotten_so_many_seconds_later(producer: ProducerStore) -> None:
    set_clock(producer.connection, START)
    aborted, superseded, expired = (opened(producer, 0, timeout_s=60) for _ in range(3))
    producer.abort_transaction(aborted)
    do(producer, 0)
    assert producer.commit_transaction(superseded).duplicate
    for time_, found in (
        (LATER, ExpiredTransactions(1, 0)),
        ("2030-01-01 00:01:59+00", ExpiredTransactions(0, 0)),
        ("2030-01-01 00:02:00+00", ExpiredTransactions(0, 2)),
        ("2030-01-01 00:03:00+00", ExpiredTransactions(0, 1)),
    ):
        set_clock(producer.connection, time_)
        assert producer.expire_transactions(120) == found
    for transaction in (aborted, superseded, expired):
        refusal(UnknownTransaction, lambda t=transaction: producer.commit_transaction(t))  # type: ignore[misc]
    assert statistics(producer).expired == 1


def test_what_somebody_is_at_expires_with_the_next_call(producer: ProducerStore, connect: Connect) -> None:
    set_clock(producer.connection, START)
    transaction = opened(producer, 0, timeout_s=60)
    set_clock(producer.connection, LATER)
    busy = ProducerStore(connect(autocommit=False))
    busy.register_producer("p")
    producer.connection.execute("set lock_timeout = '30s'")
    assert producer.expire_transactions() == ExpiredTransactions(0, 0)
    busy.connection.rollback()
    set_clock(busy.connection, START)
    busy.add_state_change(transaction, "k", 1)
    assert producer.expire_transactions() == ExpiredTransactions(0, 0)
    busy.connection.rollback()
    assert producer.expire_transactions() == ExpiredTransactions(1, 0)


def test_a_call_ends_no_more_than_its_limit(producer: ProducerStore, connect: Connect) -> None:
    set_clock(producer.connection, START)
    other = another(connect)
    other.register_producer("q")
    for _ in range(3):
        opened(producer, 0, timeout_s=60)
        producer.begin_transaction("q", 0, 1, 0, 60)
    set_clock(producer.connection, LATER)
    assert [producer.expire_transactions(0, 4) for _ in range(3)] == [
        ExpiredTransactions(4, 4), ExpiredTransactions(2, 2), ExpiredTransactions(0, 0),
    ]  # fmt: skip
    assert statistics(producer).expired == 3


def found(producer: ProducerStore, late_s: int = 120, limit: int = 100) -> list[tuple[str, int, int]]:
    return [(each.producer_id, each.partition, each.sequence) for each in producer.overdue_transactions(late_s, limit)]


def test_overdue_transactions_are_told_the_oldest_first(producer: ProducerStore) -> None:
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
    do(producer, 0)
    assert found(producer, 40) == [("p", 0, 0)]
    producer.expire_transactions()
    assert found(producer, 0) == []
