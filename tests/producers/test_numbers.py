"""The numbers of a producer's messages: unique and rising across threads; none is lost or used twice."""

from uuid import UUID

import pytest

from millrace import producers
from millrace.errors import SequenceGap
from millrace.event_store import Json
from millrace.producers import (
    IdempotentProducer,
    MessageInDoubt,
    ProducerStamp,
    ProducerStore,
    SettledMessage,
    exactly_once,
)
from millrace.producers.exactly_once import ExactlyOnce, Transaction
from tests.support.factories import Connect, at_once, new_event, terminate, value
from tests.support.producing.counting import Counting, total


def test_threads_share_a_producer_and_each_of_their_messages_counts(once: ExactlyOnce) -> None:
    producer = once.register("p")

    def add(transaction: Transaction) -> Json:
        transaction.append_all([new_event("a").alone])
        transaction.set_state("total", (transaction.state("total") or 0) + 1)
        return transaction.stamp.sequence

    sent = at_once([lambda: [once.process_next(producer, add).result for _ in range(25)] for _ in range(4)])
    assert sorted(number for thread in sent for number in thread.result()) == list(range(100))
    assert total(once) == 100


def test_what_fails_gives_its_number_back(once: ExactlyOnce, work: Counting, caplog: pytest.LogCaptureFixture) -> None:
    producer = once.register("p")
    work.fails = [ValueError("no")]
    with caplog.at_level("DEBUG", "millrace.producers"):
        with pytest.raises(ValueError, match="no"):
            once.process_next(producer, work)
        assert producer.current_sequence == 0
        assert once.process_next(producer, work).result == {"total": 1}
        assert producer.current_sequence == 1
        once.process(producer.reissue(0), work)
    assert (work.runs, total(once)) == (2, 1)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "message p/0/0 was given up: ValueError"),
        ("DEBUG", "message p/0/0 is committed: 1 events"),
        ("DEBUG", "message p/0/0 came before: committed"),
    ]


def test_a_number_is_not_given_back_where_a_later_one_was_issued(once: ExactlyOnce) -> None:
    producer = once.register("p")
    later: list[ProducerStamp] = []

    def interrupted(_: Transaction) -> Json:
        later.append(producer.issue())
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        once.process_next(producer, interrupted)
    assert producer.current_sequence == 2
    assert once.process(producer.reissue(0), lambda _: "again").result == "again"
    assert once.process(later[0], lambda _: "later").result == "later"


def test_a_number_in_doubt_is_kept_for_its_message(
    once: ExactlyOnce, work: Counting, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is really lost right after the commit, and a new one is not available."""
    producer = once.register("p")
    observer = connect()
    commit = ProducerStore.commit_transaction

    def lost(store: ProducerStore, transaction_id: UUID, result: Json = None) -> SettledMessage:
        settled = commit(store, transaction_id, result)
        terminate(observer, store.connection.info.backend_pid)
        monkeypatch.setattr(once, "_dsn", "host=/nowhere")
        monkeypatch.setattr(exactly_once, "ATTEMPTS", 1)
        store.connection.execute("select")
        return settled

    monkeypatch.setattr(ProducerStore, "commit_transaction", lost)
    with pytest.raises(MessageInDoubt) as doubt:
        once.process_next(producer, work)
    monkeypatch.undo()
    assert doubt.value.stamp == ProducerStamp("p", 0, 1, 0)
    assert producer.current_sequence == 1
    assert once.process(doubt.value.stamp, work).result == {"total": 1}
    assert once.process_next(producer, work).result == {"total": 2}
    assert (work.runs, total(once)) == (2, 2)


def test_a_doubt_is_cleared_before_the_next_message(
    once: ExactlyOnce, work: Counting, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = once.register("p")
    observer = connect()

    def lost(transaction: Transaction) -> Json:
        terminate(observer, once.store.connection.info.backend_pid)
        monkeypatch.setattr(once, "_dsn", "host=/nowhere")
        monkeypatch.setattr(exactly_once, "ATTEMPTS", 1)
        return work(transaction)

    with pytest.raises(MessageInDoubt) as doubt:
        once.process_next(producer, lost)
    monkeypatch.undo()
    with pytest.raises(SequenceGap) as gap:
        once.process_next(producer, work)
    assert gap.value.expected == doubt.value.stamp.sequence == 0
    assert once.process(doubt.value.stamp, work).result == {"total": 1}
    assert once.process_next(producer, work).result == {"total": 2}
    assert total(once) == 2


def test_work_that_lost_its_session_gives_its_number_back(once: ExactlyOnce, work: Counting, connect: Connect) -> None:
    """The new connection ends the transaction that the first attempt opened."""
    producer = once.register("p")
    observer = connect()
    work.fails = [ValueError("no")]

    def lost_once(transaction: Transaction) -> Json:
        if work.runs == 0:
            work.runs += 1
            terminate(observer, once.store.connection.info.backend_pid)
            transaction.state("total")
        return work(transaction)

    with pytest.raises(ValueError, match="no"):
        once.process_next(producer, lost_once)
    assert producer.current_sequence == 0
    assert value(observer, "select count(*) from event_store.transactions where state = 'open'") == 0
    assert once.process_next(producer, work).result == {"total": 1}


def test_a_source_that_begins_elsewhere_than_at_0_says_so_once(once: ExactlyOnce) -> None:
    producer = once.register("p", initial_sequence=41)
    assert once.process_next(producer, lambda transaction: transaction.stamp.message_id).result == "p/0/41"
    assert once.register("p", initial_sequence=7).current_sequence == 42


def test_a_transaction_that_went_with_a_crash_leaves_no_doubt(once: ExactlyOnce, connect: Connect) -> None:
    producer = once.register("p")

    def crashed(_: Transaction) -> Json:
        connect().execute("delete from event_store.transactions")  # as Postgres does, since the table is unlogged
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        once.process_next(producer, crashed)
    assert producer.current_sequence == 0


# Numbering ---------------------------------------------------------------------------------------------------------


def numbered(next_sequence: int) -> IdempotentProducer:
    return IdempotentProducer(producers.RegisteredProducer("p", 3, 7, next_sequence))


def test_stamps_rise_and_one_that_is_sent_again_moves_the_next_past_it() -> None:
    producer = numbered(5)
    assert producer.current_sequence == 5
    assert [producer.issue() for _ in range(3)] == [ProducerStamp("p", 3, 7, n) for n in (5, 6, 7)]
    for sequence, following in ((2, 8), (9, 10)):
        assert producer.reissue(sequence) == ProducerStamp("p", 3, 7, sequence)
        assert producer.current_sequence == following
    assert producer.issue().sequence == 10


def test_whether_a_number_was_issued_is_known_for_any_age() -> None:
    producer = numbered(10**6)
    assert all(producer.was_issued(n) for n in (0, 1, 10**6 - 1))
    assert not producer.was_issued(10**6)
    assert not producer.was_issued(-1)
    producer.issue()
    assert producer.was_issued(10**6)
