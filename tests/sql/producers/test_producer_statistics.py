"""The counters of a producer add up, whatever its messages became."""

from random import Random
from uuid import UUID

from millrace.resources.errors import MillraceError
from millrace.resources.producers import ProducerStore
from tests.support.factories import refusal, set_clock, value
from tests.support.producing.messages import begin, do, opened, producer, staged, statistics

__all__ = ["producer"]


def test_each_message_is_counted_as_what_it_became(producer: ProducerStore) -> None:
    do(producer, 0)
    producer.abandon_transaction(opened(producer, 1), "why")
    producer.abort_transaction(opened(producer, 2))
    late = opened(producer, 2)
    producer.ingest_events("p", 0, 1, 2)
    producer.commit_transaction(late)
    for sequence, epoch in ((0, 1), (9, 1), (3, 2)):
        begin(producer, sequence, epoch=epoch)
    opened(producer, 3)
    found = statistics(producer)
    assert (found.received, found.duplicates, found.refused, found.opened) == (9, 1, 2, 6)
    assert (found.committed, found.abandoned, found.aborted, found.superseded, found.open) == (2, 1, 1, 1, 1)
    assert (found.producer_id, found.partition, found.epoch, found.next_sequence) == ("p", 0, 1, 3)


def test_one_producer_or_all_in_order(producer: ProducerStore) -> None:
    for name, partition in (("q", 1), ("q", 0), ("a", 0)):
        producer.register_producer(name, partition)
    found = [(each.producer_id, each.partition) for each in producer.producer_statistics()]
    assert found == [("a", 0), ("p", 0), ("q", 0), ("q", 1)]
    assert [each.partition for each in producer.producer_statistics("q")] == [0, 1]
    assert producer.producer_statistics("nobody") == []


def test_counters_add_up_after_any_course(producer: ProducerStore) -> None:
    """Random calls, right and wrong: each refusal undoes its own count, and only that."""
    random = Random(7)
    transactions: list[UUID] = []
    epoch, seconds = 1, 0
    for _ in range(400):
        sequence = statistics(producer).next_sequence + random.choice([0, 0, 0, -1, 1])
        call = random.choice(["begin", "begin", "commit", "commit", "abort", "abandon", "ingest", "register", "expire"])
        transaction = random.choice(transactions) if transactions else None
        try:
            if call == "begin" and sequence >= 0:
                if (begun := begin(producer, sequence, epoch=epoch, timeout_s=30).transaction_id) is not None:
                    transactions.append(begun)
            elif call == "commit" and transaction:
                producer.commit_transaction(transaction)
            elif call == "abort" and transaction:
                producer.abort_transaction(transaction)
            elif call == "abandon" and transaction:
                producer.abandon_transaction(transaction, "why")
            elif call == "ingest" and sequence >= 0:
                producer.ingest_events("p", 0, epoch, sequence, state={"n": sequence})
            elif call == "register" and random.random() < 0.2:
                epoch = producer.register_producer("p").epoch
            elif call == "expire":
                seconds += 20
                set_clock(
                    producer.connection, f"2030-01-01 {seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}+00"
                )
                producer.expire_transactions()
        except MillraceError:
            pass
    found = statistics(producer)
    assert (
        min(
            found.duplicates,
            found.refused,
            found.committed,
            found.aborted,
            found.abandoned,
            found.expired,
            found.superseded,
        )
        > 0
    )
    results = value(
        producer.connection, "select array_agg(sequence order by sequence) from event_store.producer_results"
    )
    assert results == list(range(found.next_sequence))


def test_they_are_refused_together_or_not_at_all(producer: ProducerStore) -> None:
    staged_transaction = staged(producer, 0)
    before = statistics(producer)
    refusal(MillraceError, lambda: producer.abandon_transaction(staged_transaction, ""))
    assert statistics(producer) == before
