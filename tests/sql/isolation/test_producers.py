"""Producers in REPEATABLE READ and SERIALIZABLE: right, or right when retried; no message takes effect twice."""

from collections.abc import Callable
from functools import partial
from uuid import UUID

import pytest

from millrace.producers import ProducerStore
from tests.support.factories import Connect, at_once, new_event, value
from tests.support.producing.messages import another, begin, do, effects, staged, state_of, statistics
from tests.support.views.isolation import Session, assert_not_serializable, repeat


def test_a_message_is_done_whole_in_one_transaction_of_the_caller(producer: ProducerStore, snapshot: Session) -> None:
    caller = ProducerStore(snapshot().connection)
    transaction = staged(caller, 0, total=1)
    caller.commit_transaction(transaction, "done")
    assert caller.ingest_events("p", 0, 1, 1, [new_event("a").alone], {"total": 2}).status == "committed"
    assert begin(caller, 0).result == "done"
    caller.connection.commit()
    assert state_of(producer) == {"total": 2}
    assert statistics(producer).committed == 2


CALLS: dict[str, tuple[Callable[[ProducerStore, UUID], object], object]] = {
    "begin": (lambda late, _: begin(late, 0).status, "duplicate"),
    "commit": (lambda late, transaction: late.commit_transaction(transaction).duplicate, True),
    "abort": (lambda late, transaction: late.abort_transaction(transaction), None),
    "abandon": (lambda late, transaction: late.abandon_transaction(transaction, "why").duplicate, True),
    "ingest": (lambda late, _: late.ingest_events("p", 0, 1, 0, [new_event("a").alone]).status, "duplicate"),
    "register": (lambda late, _: late.register_producer("p").next_sequence, 1),
}


@pytest.mark.parametrize("call", CALLS)
def test_what_is_not_seen_is_repeated(producer: ProducerStore, connect: Connect, snapshot: Session, call: str) -> None:
    transaction = staged(producer, 0, total=1)
    late = ProducerStore(snapshot().connection)
    do(another(connect), 0, total=2)
    before = effects(producer)
    work, expected = CALLS[call]
    assert_not_serializable(late, lambda: work(late, transaction))
    assert repeat(late, lambda: work(late, transaction)) == expected
    after = effects(producer)
    assert all(after[name] == before[name] for name in ("events", "state", "results"))
    statistics(producer)


def test_callers_that_repeat_do_each_message_once(producer: ProducerStore, racer: Session) -> None:
    def work(store: ProducerStore) -> int:
        won = 0
        for sequence in range(15):
            received = repeat(
                store,
                lambda s=sequence: store.ingest_events("p", 0, 1, s, [new_event("a").alone], {"n": s}, s),  # type: ignore[misc]
            )
            assert received.result == sequence
            won += received.status == "committed"
        return won

    stores = [ProducerStore(racer().connection) for _ in range(3)]
    results = at_once([partial(work, s) for s in stores])
    assert sum(result.result() for result in results) == 15
    assert value(producer.connection, "select count(*) from event_store.events") == 15
    assert state_of(producer) == {"n": 14}
    assert statistics(producer).received == 45
