"""A message that is given up for good: final, with a reason, and the next one is accepted."""

import pytest

from millrace.resources.errors import Malformed, TransactionEnded
from millrace.resources.producers import ProducerStore, SettledMessage
from tests.support.factories import refusal, rows
from tests.support.producing.messages import begin, do, effects, opened, producer, staged, state_of, statistics

__all__ = ["producer"]


def test_an_abandoned_message_is_final_and_the_next_one_is_accepted(producer: ProducerStore) -> None:
    transaction = staged(producer, 0, total=1)
    settled = producer.abandon_transaction(transaction, "line 1 is no order")
    assert settled == SettledMessage(False, "abandoned", None, [], [], 1)
    assert (effects(producer)["events"], state_of(producer)) == ([], {})
    again = begin(producer, 0)
    assert (again.status, again.outcome, again.result, again.offsets) == ("duplicate", "abandoned", None, [])
    query = "select reason from event_store.producer_results"
    assert rows(producer.connection, query) == [("line 1 is no order",)]
    do(producer, 1)
    found = statistics(producer)
    assert (found.abandoned, found.committed) == (1, 1)


def test_again_it_gives_the_same_answer(producer: ProducerStore) -> None:
    transaction = opened(producer, 0)
    first = producer.abandon_transaction(transaction, "why")
    assert producer.abandon_transaction(transaction, "another why") == first
    assert statistics(producer).abandoned == 1


def test_what_is_committed_cannot_be_abandoned_nor_the_other_way_round(producer: ProducerStore) -> None:
    committed = opened(producer, 0)
    producer.commit_transaction(committed)
    assert "committed" in str(refusal(TransactionEnded, lambda: producer.abandon_transaction(committed, "why")))
    abandoned = opened(producer, 1)
    producer.abandon_transaction(abandoned, "why")
    assert "abandoned" in str(refusal(TransactionEnded, lambda: producer.commit_transaction(abandoned)))


def test_of_a_commit_and_an_abandonment_of_one_message_the_first_one_counts(producer: ProducerStore) -> None:
    commits, abandons = staged(producer, 0, total=1), opened(producer, 0)
    producer.abandon_transaction(abandons, "why")
    assert producer.commit_transaction(commits) == SettledMessage(True, "abandoned", None, [], [], 1)
    commits, abandons = staged(producer, 1, total=1), opened(producer, 1)
    settled = producer.commit_transaction(commits, "done")
    assert producer.abandon_transaction(abandons, "why") == SettledMessage(
        True, "committed", "done", settled.offsets, settled.appended, 2
    )
    assert state_of(producer) == {"total": 1}
    assert statistics(producer).superseded == 2


@pytest.mark.parametrize("reason", [None, ""])
def test_a_reason_is_needed(producer: ProducerStore, reason: str) -> None:
    transaction = opened(producer, 0)
    refusal(Malformed, lambda: producer.abandon_transaction(transaction, reason))
    assert statistics(producer).open == 1
