"""A producer belongs to a role: nobody else fences it, sends as it, or reads what it keeps."""

from collections.abc import Callable, Iterator

import psycopg
import pytest

from millrace.resources.errors import Malformed, NotProducerOwner
from millrace.resources.event_store import EventStore
from millrace.resources.producers import ProducerStore
from tests.support.factories import new_event, refusal, rows
from tests.support.logins import Login, logins

WRITER = "event_store_writer"


@pytest.fixture
def login(orders: EventStore) -> Iterator[Login]:
    with logins(orders.connection) as made:
        yield made


def name(connection: psycopg.Connection) -> str:
    return connection.info.user


def test_another_writer_does_nothing_with_a_producer(orders: EventStore, login: Login) -> None:
    owner, other = ProducerStore(login(WRITER)), ProducerStore(login(WRITER))
    owner.register_producer("p")
    owner.ingest_events("p", 0, 1, 0, [new_event()], {"secret": 1})
    transaction = owner.begin_transaction("p", 0, 1, 1).transaction_id
    settled = owner.begin_transaction("p", 0, 1, 1).transaction_id
    assert transaction is not None
    assert settled is not None
    before = owner.get_producer_state("p", 0), rows(orders.connection, "select * from event_store.producers")
    attempts: list[Callable[[], object]] = [
        lambda: other.register_producer("p"),
        lambda: other.register_producer("p", 0, name(other.connection)),
        lambda: other.begin_transaction("p", 0, 1, 1),
        lambda: other.ingest_events("p", 0, 1, 1),
        lambda: other.get_producer_state("p", 0),
        lambda: other.add_events(transaction, [new_event()]),
        lambda: other.add_state_change(transaction, "secret", 2),
        lambda: other.commit_transaction(transaction),
        lambda: other.abort_transaction(transaction),
        lambda: other.abandon_transaction(transaction, "no"),
    ]
    for attempt in attempts:
        refused = refusal(NotProducerOwner, attempt)
        assert name(owner.connection) in str(refused.detail)
    assert (owner.get_producer_state("p", 0), rows(orders.connection, "select * from event_store.producers")) == before
    owner.commit_transaction(settled, "the answer")
    refusal(NotProducerOwner, lambda: other.commit_transaction(settled))


def test_members_of_the_owning_role_share_it(orders: EventStore, login: Login) -> None:
    team = name(login(WRITER))
    one, other = (ProducerStore(login(WRITER, team)) for _ in range(2))
    one.register_producer("p", 0, team)
    assert other.register_producer("p").epoch == 2
    assert other.ingest_events("p", 0, 2, 0, state={"a": 1}).status == "committed"
    assert len(one.get_producer_state("p", 0)) == 1
    # a member gives it away, and it is audited
    one.register_producer("p", 0, name(one.connection))
    with pytest.raises(NotProducerOwner):
        other.register_producer("p")
    changes = rows(
        orders.connection,
        "select done_by, detail ->> 'owner', detail ->> 'owner_before' from event_store.audit_log where operation = 'register_producer'",
    )
    assert changes == [(name(one.connection), team, None), (name(one.connection), name(one.connection), team)]


def test_a_producer_that_an_owner_of_the_store_registers_serves_every_writer(orders: EventStore, login: Login) -> None:
    ProducerStore(orders.connection).register_producer("p")
    assert ProducerStore(login(WRITER)).register_producer("p").epoch == 2


def test_owners_of_the_store_and_readers_look_at_every_producer(login: Login) -> None:
    writer = ProducerStore(login(WRITER))
    writer.register_producer("p")
    writer.ingest_events("p", 0, 1, 0, state={"a": 1})
    for role in ("event_store_owner", "event_store_reader"):
        assert len(ProducerStore(login(role)).get_producer_state("p", 0)) == 1
    assert ProducerStore(login("event_store_owner")).register_producer("p").epoch == 2
    with pytest.raises(NotProducerOwner):
        ProducerStore(login("event_store_consumer")).get_producer_state("p", 0)


def test_an_owner_is_a_role_that_there_is_and_that_the_login_is_a_member_of(login: Login) -> None:
    writer = ProducerStore(login(WRITER))
    with pytest.raises(Malformed, match="there is no role nobody"):
        writer.register_producer("p", 0, "nobody")
    with pytest.raises(NotProducerOwner):
        writer.register_producer("p", 0, "event_store_reader")
