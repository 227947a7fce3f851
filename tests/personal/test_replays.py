"""The same event sent again: the same bytes while its key lives, and stored once whatever became of the key."""

from collections.abc import Callable
from uuid import UUID, uuid4

import pytest

from millrace.errors import EventIdReused
from millrace.event_store import NewEvent, on
from millrace.event_store.platform import PlatformStore
from millrace.personal import Forgotten, Sealed
from millrace.producers import ProducerStore
from millrace.producers.exactly_once import ExactlyOnce
from tests.support.customers import BERT, SECRET, People, key_of, moved

Send = Callable[[PlatformStore, NewEvent], object]


def ingest(store: PlatformStore, event: NewEvent) -> object:
    producer = ProducerStore(store.connection, sealer=store.sealer)
    name = str(uuid4())
    epoch = producer.register_producer(name).epoch
    return producer.ingest_events(name, 0, epoch, 0, [on("customer", "a", event)])


def stage(store: PlatformStore, event: NewEvent) -> object:
    producer = ProducerStore(store.connection, sealer=store.sealer)
    name = str(uuid4())
    epoch = producer.register_producer(name).epoch
    transaction = producer.begin_transaction(name, 0, epoch, 0).transaction_id
    assert transaction is not None
    producer.add_events(transaction, [on("customer", "a", event)])
    return producer.commit_transaction(transaction)


WAYS: dict[str, Send] = {
    "append": lambda store, event: store.append("customer", "a", event),
    "append after another": lambda store, event: store.append("customer", "a", moved("bert"), event),
    "append_all": lambda store, event: store.append_all(
        [on("customer", "b", moved("bert")), on("customer", "a", event)]
    ),
    "append_returning": lambda store, event: store.append_returning(on("customer", "a", event)),
    "ingest": ingest,
    "stage": stage,
}


def times(people: People, event_id: UUID) -> int:
    ids = people.store.connection.execute("select event_id from event_store.events where event_id = %s", (event_id,))
    return len(ids.fetchall())


@pytest.mark.parametrize("way", WAYS)
def test_an_event_sent_again_is_stored_once_with_any_keys(people: People, way: str) -> None:
    id_, warm = uuid4(), people.client()
    event = moved(event_id=id_, phones=["1", SECRET])
    WAYS[way](warm, event)
    for client in (warm, people.client()):
        WAYS[way](client, event)
    people.forget()
    # the warm one seals with the key that is gone, the fresh one seals nothing
    for client in (warm, people.client(), warm):
        WAYS[way](client, event)
    people.readmit()
    warm = people.client()
    for client in (warm, warm):
        WAYS[way](client, event)
    with pytest.raises(EventIdReused):
        WAYS[way](warm, moved(event_id=id_, country="FR"))
    assert times(people, id_) == 1


def test_two_sendings_have_the_same_bytes_and_other_events_have_others(people: People) -> None:
    id_, event_ids = uuid4(), [uuid4(), uuid4()]
    event = moved(event_id=id_, phones=[SECRET, SECRET])
    people.client().append("customer", "a", event)
    (stored,) = people.data()
    # at each path, too
    texts = [stored["email"], *stored["phones"]]
    assert len({key_of(each) for each in texts}) == 1
    assert len({each["$sealed"].split(".")[2] for each in texts}) == 3
    assert len({each["$sealed"].split(".")[3] for each in texts}) == 3
    with people.store.connection.transaction(force_rollback=True):
        people.store.connection.execute("set session_replication_role = replica")
        people.store.connection.execute("delete from event_store.events")
        people.client().append("customer", "a", event)
        assert people.data() == [stored]
    people.client().append("customer", "a", *(moved(event_id=each) for each in event_ids))
    assert len({data["email"]["$sealed"].split(".")[3] for data in people.data()}) == 3


def test_an_envelope_is_bound_to_all_its_parts(people: People) -> None:
    client = people.client()
    client.append("customer", "a", moved(), moved("bert"))
    anna, bert = (data["email"] for data in people.data())
    assert client.open_rows([{"a": anna}]) == [{"a": SECRET}]
    for place in range(4):
        parts = anna["$sealed"].split(".")
        parts[place] = "2" if place == 0 else bert["$sealed"].split(".")[place]
        changed = {"$sealed": ".".join(parts)}
        (row,) = client.open_rows([{"a": changed}])
        assert (type(row["a"]), row["a"]) == (Sealed, changed), place


def test_a_wrapped_key_is_bound_to_its_name(people: People) -> None:
    people.client().append("customer", "a", moved(), moved("bert"))
    swap = "update event_store_keys.subject_keys k set wrapped = o.wrapped from event_store_keys.subject_keys o"
    people.store.connection.execute(f"{swap} where o.key_id <> k.key_id".encode())
    assert all(isinstance(each, Sealed) for each in people.emails())


def test_a_forgotten_person_is_gone_for_readers_and_later_values(people: People) -> None:
    client = people.client()
    client.append("customer", "a", moved(), moved("bert"))
    people.forget()
    anna, bert = people.emails()
    assert (isinstance(anna, Forgotten), bool(anna), bert) == (True, False, SECRET)
    people.client().append("customer", "a", moved(phones=["1"]))
    assert people.data()[-1]["email"] == anna == people.data()[-1]["phones"][0]
    people.readmit()
    people.client().append("customer", "a", moved())
    assert [each == SECRET for each in people.emails()] == [False, True, False, True]
    # what was read is appended as it is
    read = [event.data for event in people.client().read("customer", "a")]
    people.client().append("customer", "copy", *(moved(email=data["email"], phones=data["phones"]) for data in read))
    assert people.emails()[4:] == [anna, SECRET, anna, SECRET]


def test_where_no_value_is_no_id_of_a_person_is_asked_for(people: People) -> None:
    people.client().append("customer", "a", moved("", email=None))


def test_a_message_is_done_once_with_a_key_that_died(people: People, dsn: str) -> None:
    with ExactlyOnce(dsn, sealer=people.sealer()) as once:
        producer = once.register("p")
        events = [moved("bert", event_id=uuid4()), moved(event_id=uuid4())]
        for _ in range(2):  # so that it knows the keys
            once.process_next(producer, lambda work: work.append_all([on("customer", "a", *events)]))
        people.forget(BERT)
        later = [moved("bert", event_id=uuid4()), moved(event_id=uuid4())]
        stamp, streams = producer.issue(), [on("customer", "a", *events, *later)]
        answers = [once.process(stamp, lambda work: work.append_all(streams)) for _ in range(2)]
        assert [answer.duplicate for answer in answers] == [False, True]
        assert answers[0].appended == [False, False, True, True]
        people.forget()
        assert once.store.ingest_events("p", 0, 1, 3, [on("customer", "a", moved())]).appended == [True]
    assert [isinstance(each, Forgotten) for each in people.emails()] == [True] * 5
    assert [data["email"]["$sealed"].endswith(".0.0") for data in people.data()] == [False, False, True, False, True]
