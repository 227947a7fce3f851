"""A transaction that is given up: nothing of it is seen, and its message may be begun again."""

import pytest

from millrace.resources.errors import TransactionEnded
from millrace.resources.producers import ProducerStore
from tests.support.factories import Connect, refusal, rows, set_clock
from tests.support.producing.messages import (
    LATER,
    START,
    another,
    begin,
    do,
    effects,
    opened,
    producer,
    staged,
    state_of,
    statistics,
    two_events,
)

__all__ = ["producer"]


def test_after_an_abort_nothing_is_visible_and_the_same_stamp_is_retryable(producer: ProducerStore) -> None:
    before = effects(producer)
    transaction = staged(producer, 0, total=1)
    producer.abort_transaction(transaction)
    assert effects(producer) == before
    assert rows(producer.connection, "select from event_store.staged_changes") == []
    assert begin(producer, 0).status == "opened"
    do(producer, 0, total=2)
    assert state_of(producer) == {"total": 2}
    assert statistics(producer).aborted == 1


def test_again_it_is_a_no_op(producer: ProducerStore) -> None:
    transaction = opened(producer, 0)
    for _ in range(3):
        producer.abort_transaction(transaction)
    assert statistics(producer).aborted == 1


def test_after_it_the_transaction_takes_no_changes_and_no_commit(producer: ProducerStore) -> None:
    transaction = staged(producer, 0)
    producer.abort_transaction(transaction)
    for call in (
        lambda: producer.commit_transaction(transaction),
        lambda: producer.abandon_transaction(transaction, "why"),
        lambda: producer.add_state_change(transaction, "k", 1),
        lambda: producer.add_events(transaction, two_events()),
    ):
        assert "aborted" in str(refusal(TransactionEnded, call))


@pytest.mark.parametrize("outcome", ["committed", "abandoned"])
def test_what_is_committed_or_abandoned_cannot_be_aborted(producer: ProducerStore, outcome: str) -> None:
    transaction = staged(producer, 0)
    if outcome == "committed":
        producer.commit_transaction(transaction)
    else:
        producer.abandon_transaction(transaction, "why")
    for call in (
        lambda: producer.abort_transaction(transaction),
        lambda: producer.add_state_change(transaction, "k", 1),
    ):
        assert outcome in str(refusal(TransactionEnded, call))


def test_what_has_expired_or_was_superseded_or_fenced_needs_no_abort(producer: ProducerStore, connect: Connect) -> None:
    set_clock(producer.connection, START)
    expired, superseded = opened(producer, 0, timeout_s=60), opened(producer, 0, timeout_s=3600)
    set_clock(producer.connection, LATER)
    producer.expire_transactions()
    do(producer, 0)
    producer.commit_transaction(superseded)
    fenced = opened(producer, 1)
    another(connect).register_producer("p")
    for transaction in (expired, superseded, fenced):
        producer.abort_transaction(transaction)
    found = statistics(producer)
    assert (found.expired, found.superseded, found.aborted) == (1, 1, 1)
