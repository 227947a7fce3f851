"""An instance of a producer registers: its epoch rises, it goes on where the instance before was, which is fenced."""

import pytest

from millrace.resources.errors import Malformed, ProducerFenced
from millrace.resources.producers import ProducerStore, RegisteredProducer
from tests.support.factories import Connect, at_once, refusal, rows
from tests.support.producing.messages import another, begin, do, effects, opened, producer, staged, statistics

__all__ = ["producer"]


def test_the_first_epoch_is_1_and_each_registration_raises_it(producer: ProducerStore) -> None:
    assert producer.register_producer("new") == RegisteredProducer("new", 0, 1, 0)
    assert producer.register_producer("new") == RegisteredProducer("new", 0, 2, 0)


def test_a_new_instance_goes_on_where_the_one_before_was(producer: ProducerStore) -> None:
    do(producer, 0)
    do(producer, 1)
    assert producer.register_producer("p") == RegisteredProducer("p", 0, 2, 2)


def test_each_partition_of_a_producer_is_by_itself(producer: ProducerStore) -> None:
    do(producer, 0)
    assert producer.register_producer("p", 1) == RegisteredProducer("p", 1, 1, 0)
    assert producer.begin_transaction("p", 1, 1, 0).status == "opened"
    assert begin(producer, 0).status == "duplicate"
    assert begin(producer, 1).status == "opened"


def test_what_the_instance_before_has_open_is_aborted_and_cannot_be_committed(producer: ProducerStore) -> None:
    transaction = staged(producer, 0, total=1)
    producer.register_producer("p")
    found = statistics(producer)
    assert (found.aborted, found.open) == (1, 0)
    refused = refusal(ProducerFenced, lambda: producer.commit_transaction(transaction))
    assert "is of epoch 1, the producer is at epoch 2" in str(refused)
    assert rows(producer.connection, "select from event_store.staged_changes") == []
    assert effects(producer)["events"] == []


def test_whoever_is_at_a_transaction_keeps_nobody_from_registering_and_is_fenced_at_its_commit(
    producer: ProducerStore, connect: Connect
) -> None:
    transaction = opened(producer, 0)
    busy = ProducerStore(connect(autocommit=False))
    busy.add_state_change(transaction, "total", 1)
    another(connect).register_producer("p")
    busy.connection.commit()
    refusal(ProducerFenced, lambda: producer.commit_transaction(transaction))
    assert effects(producer)["state"] == []


def test_of_instances_that_register_at_once_each_has_an_epoch_of_its_own(
    producer: ProducerStore, connect: Connect
) -> None:
    stores = [another(connect) for _ in range(4)]
    results = [result.result() for result in at_once([lambda s=s: s.register_producer("new") for s in stores])]  # type: ignore[misc]
    assert sorted(registered.epoch for registered in results) == [1, 2, 3, 4]
    assert producer.register_producer("new").epoch == 5


@pytest.mark.parametrize(
    "name",
    ["x", " ", "ü" * 512, "a'b\"c", "a,b/c|d", "line\nbreak\ttab", "🐘", "null", "\\N", "%s", "{}", "' or true --"],
    ids=ascii,
)
def test_any_text_round_trips_as_producer_id(producer: ProducerStore, name: str) -> None:
    assert producer.register_producer(name).producer_id == name
    assert producer.ingest_events(name, 0, 1, 0, state={name[:500]: name}, result=name).result == name
    assert producer.ingest_events(name, 0, 1, 0).status == "duplicate"
    ((entry),) = producer.get_producer_state(name, 0)
    assert (entry.key, entry.value) == (name[:500], name)
    assert [found.producer_id for found in producer.producer_statistics(name)] == [name]


@pytest.mark.parametrize("name", [None, "", "x" * 1025, "ü" * 513])
def test_a_producer_id_that_is_null_empty_or_too_long_is_refused(producer: ProducerStore, name: str) -> None:
    refusal(Malformed, lambda: producer.register_producer(name))


def test_a_nul_and_a_partition_that_is_null_or_negative_are_refused(producer: ProducerStore) -> None:
    with pytest.raises(Malformed):
        producer.register_producer("a\0b")
    for partition in (None, -1):
        refusal(Malformed, lambda p=partition: producer.register_producer("x", p))  # type: ignore[misc]
