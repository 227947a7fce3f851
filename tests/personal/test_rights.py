"""The role event_store_personal seals and opens; other logins get what is stored."""

import psycopg
import pytest

from millrace.errors import NotDeciderOwner
from millrace.event_store import EventStore
from millrace.personal import Sealed
from tests.support.customers import SECRET, People, moved
from tests.support.logins import logins


def test_without_the_role_a_login_reads_envelopes_and_makes_no_key(people: People) -> None:
    people.client().append("customer", "a", moved())
    stored = people.data()
    with logins(people.store.connection) as login:
        for roles in (["event_store_writer"], ["event_store_writer", "event_store_reader", "event_store_consumer"]):
            connection = login(*roles)
            plain, sealing = EventStore(connection), EventStore(connection, sealer=people.sealer())
            with connection.transaction():  # which a refusal would abort
                assert [event.data for event in sealing.read("customer", "a")] == stored
                assert [event.data for event in plain.read("customer", "a")] == stored
            (event,) = sealing.read("customer", "a")
            assert type(event.data["email"]) is Sealed
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                sealing.append("customer", "a", moved())
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("select * from event_store_keys.subject_keys")
            # what is sealed may be passed on
            (event,) = plain.read("customer", "a")
            plain.append("customer", "b", moved(email=event.data["email"]))
        personal = EventStore(login("event_store_writer", "event_store_personal"), sealer=people.sealer())
        personal.append("customer", "a", moved("bert"))
        assert [event.data["email"] for event in personal.read("customer", "a")] == [SECRET, SECRET]
    assert people.keys() == 2


def test_a_writer_of_another_decider_makes_no_key_for_it(people: People) -> None:
    with logins(people.store.connection) as login:
        owner, other = (login("event_store_writer", "event_store_personal") for _ in range(2))
        people.store.set_decider_owner("customer", owner.info.user)
        with pytest.raises(NotDeciderOwner):
            EventStore(other, sealer=people.sealer()).append("customer", "a", moved())
        assert people.keys() == 0
        EventStore(owner, sealer=people.sealer()).append("customer", "a", moved())
        assert people.keys() == 1
        people.store.set_decider_owner("customer", None)
