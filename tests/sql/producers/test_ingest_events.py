"""A whole message in one call: the same rules, the same effects, nothing staged."""

from dataclasses import replace
from uuid import uuid4

import pytest
from psycopg.types.json import Jsonb

from millrace.resources.errors import Conflict, Malformed, UnknownProducer
from millrace.resources.event_store import ChainedEvent, EventStore
from millrace.resources.event_store.refusals import refusals
from millrace.resources.producers import ProducerStore, ReceivedMessage
from tests.support.factories import Connect, at_once, new_event, refusal, rows, start, value, wait_blocked
from tests.support.producing.messages import (
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


def test_it_says_of_each_event_whether_it_was_new(producer: ProducerStore) -> None:
    store = EventStore(producer.connection)
    batch = [new_event("a"), new_event("b"), new_event("c"), new_event("a")]
    stored = store.append_events(batch[1:3])
    received = producer.ingest_events("p", 0, 1, 0, batch)
    assert received.appended == [True, False, False, True]
    assert received.offsets is not None
    assert received.offsets[1:3] == [event.offset for event in stored]
    assert [event.version for event in store.read_stream("order", "a")] == [1, 2]
    again = producer.ingest_events("p", 0, 1, 0, batch)
    assert (again.status, again.offsets, again.appended) == ("duplicate", received.offsets, received.appended)
    transaction = opened(producer, 1)
    producer.add_events(transaction, [batch[0], new_event("d")])
    assert producer.commit_transaction(transaction).appended == [False, True]


def test_events_state_and_result_are_there_at_once_and_counted(producer: ProducerStore) -> None:
    received = producer.ingest_events("p", 0, 1, 0, two_events(), {"x": 1, "y": [None, "ü"]}, {"did": 0})
    offsets = [row[0] for row in rows(producer.connection, 'select "offset" from event_store.events order by 1')]
    assert received == ReceivedMessage("committed", None, None, "committed", {"did": 0}, offsets, [True, True], 1, 1)
    assert state_of(producer) == {"x": 1, "y": [None, "ü"]}
    found = statistics(producer)
    assert (found.received, found.opened, found.committed, found.open) == (1, 1, 1, 0)
    assert rows(producer.connection, "select from event_store.transactions") == []


def test_each_of_its_events_says_which_message_it_is_of(producer: ProducerStore) -> None:
    events = [new_event("a"), replace(new_event("b"), metadata={"user": "ada", "message_id": "mine"})]
    producer.ingest_events("p", 0, 1, 0, events)
    assert rows(producer.connection, 'select metadata from event_store.events order by "offset"') == [
        ({"message_id": "p/0/0"},),
        ({"user": "ada", "message_id": "p/0/0"},),
    ]


def test_metadata_that_are_no_object_are_refused_as_elsewhere(producer: ProducerStore) -> None:
    odd = replace(new_event("a"), metadata=["no", "object"])
    assert "not an object" in str(refusal(Malformed, lambda: producer.ingest_events("p", 0, 1, 0, [odd])).detail)


def test_again_it_is_a_duplicate_with_the_original_result(producer: ProducerStore) -> None:
    first = producer.ingest_events("p", 0, 1, 0, two_events(), {"x": 1}, "first")
    before = effects(producer)
    second = producer.ingest_events("p", 0, 1, 0, two_events(), {"x": 2}, "second")
    assert (second.status, second.result, second.offsets) == ("duplicate", "first", first.offsets)
    assert effects(producer) == before


def test_a_json_null_in_the_state_removes_the_key(producer: ProducerStore) -> None:
    producer.ingest_events("p", 0, 1, 0, state={"x": 1, "y": 1})
    producer.ingest_events("p", 0, 1, 1, state={"x": None, "never": None})
    producer.ingest_events("p", 0, 1, 2, state={})
    assert state_of(producer) == {"y": 1}


def test_it_and_transactions_take_turns(producer: ProducerStore, connect: Connect) -> None:
    transaction = staged(producer, 0, total=1)
    assert producer.ingest_events("p", 0, 1, 0, state={"total": 2}, result="mine").status == "committed"
    settled = producer.commit_transaction(transaction)
    assert (settled.duplicate, settled.result, state_of(producer)) == (True, "mine", {"total": 2})
    first = ProducerStore(connect(autocommit=False))
    first.commit_transaction(opened(producer, 1), "theirs")
    second = another(connect)
    late = start(lambda: second.ingest_events("p", 0, 1, 1, two_events()))
    wait_blocked(producer.connection, second.connection.info.backend_pid)
    first.connection.commit()
    assert (late.result(20).status, late.result(20).result) == ("duplicate", "theirs")
    assert do(producer, 2)


def test_two_processes_race_one_stamp_one_wins_and_the_other_gets_its_answer(
    producer: ProducerStore, connect: Connect
) -> None:
    stores = [another(connect) for _ in range(4)]
    for sequence in range(20):
        works = [
            lambda n=n, s=s, q=sequence: s.ingest_events("p", 0, 1, q, [new_event("a")], {"n": n}, n)
            for n, s in enumerate(stores)
        ]
        results = [result.result() for result in at_once(works)]
        assert sorted(result.status for result in results) == ["committed", "duplicate", "duplicate", "duplicate"]
        assert len({(result.result, str(result.offsets)) for result in results}) == 1
        assert state_of(producer) == {"n": results[0].result}
    assert value(producer.connection, "select count(*) from event_store.events") == 20
    statistics(producer)


def test_a_refused_event_refuses_all_and_counts_nothing(producer: ProducerStore) -> None:
    before = effects(producer), statistics(producer)
    wrong = ChainedEvent(**vars(new_event("a")), previous_id=uuid4())
    refusal(Conflict, lambda: producer.ingest_events("p", 0, 1, 0, [new_event("b"), wrong], {"x": 1}))
    assert (effects(producer), statistics(producer)) == before
    assert begin(producer, 0).status == "opened"


def test_an_unknown_producer_and_a_state_that_is_no_object_are_refused(producer: ProducerStore) -> None:
    refusal(UnknownProducer, lambda: producer.ingest_events("nobody", 0, 1, 0))
    for state in (Jsonb([1]), Jsonb(1), Jsonb(None)):
        with pytest.raises(Malformed), refusals():
            producer.connection.execute(
                "select * from event_store.ingest_events('p', 0, 1, 0, v_state => %s)", (state,)
            )
