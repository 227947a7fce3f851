"""Customers whose data events hold sealed, with the keys of their store."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, LiteralString
from uuid import UUID

import psycopg
import pytest
from pydantic import BaseModel

from millrace.event_schemas.model import event
from millrace.event_schemas.registering import register_events
from millrace.event_store import EventStore, NewEvent
from millrace.event_store.new_events import new_event
from millrace.event_store.platform import PlatformStore
from millrace.personal import Personal, Sealer
from millrace.personal.folder import KeyFolder, begun_folder, opened_folder
from tests.support.factories import register_orders, rows, value

# a value that nothing else has
SECRET = "qwhzkfpxmvtrbnydlcgsjeua"
ANNA, BERT = "customer:anna", "customer:bert"
MAIL = Personal(of="customer_id", kind="customer")
DATA: LiteralString = "select data from event_store.events where decider = 'customer' order by \"offset\""
BEGIN: LiteralString = "select event_store_platform.begin_key_epoch(%s, %s)"
FORGET: LiteralString = "select key_id from event_store_platform.forget_subject(%s, 'asked')"
READMIT: LiteralString = "select event_store_platform.readmit_subject(%s, 'is back')"


@event(decider="customer")
class CustomerMoved(BaseModel):
    """A customer has other addresses."""

    customer_id: str
    email: Annotated[str | None, MAIL] = None
    phones: list[Annotated[str, MAIL]] = []
    country: str = "DE"


@dataclass(frozen=True)
class People:
    """A store of customers, whose client has no sealer, and the folder of its keys."""

    store: PlatformStore
    folder: Path

    def sealer(self) -> Sealer:
        """Return one that knows no key yet."""
        return Sealer.from_folder(self.folder)

    def client(self, connection: psycopg.Connection | None = None) -> PlatformStore:
        """Return a client with a sealer of its own."""
        return PlatformStore(connection or self.store.connection, sealer=self.sealer())

    def forget(self, subject: str = ANNA) -> None:
        forget(self.store.connection, opened_folder(self.folder), subject)

    def readmit(self, subject: str = ANNA) -> None:
        readmit(self.store.connection, opened_folder(self.folder), subject)

    def data(self) -> list[Any]:
        """Return the data of all events, as they are stored."""
        return [data for (data,) in rows(self.store.connection, DATA)]

    def keys(self) -> int:
        return int(value(self.store.connection, "select count(*) from event_store_keys.subject_keys"))

    def emails(self) -> list[Any]:
        """Return the addresses of all events, as a client reads them that comes anew."""
        return [data["email"] for data in self.client().open_rows(self.data())]


def moved(customer: str = "anna", email: str | None = SECRET, event_id: UUID | None = None, **other: Any) -> NewEvent:  # noqa: ANN401 - of the event
    stated = {} if event_id is None else {"event_id": event_id, "command_id": event_id}
    return new_event(CustomerMoved(customer_id=customer, email=email, **other), **stated)


def begin(store: PlatformStore, folder: Path) -> KeyFolder:
    """Let a store take events of customers, with the first keys in a folder."""
    keys = begun_folder(folder)
    store.connection.execute(BEGIN, (keys.epoch, keys.fingerprint))
    register_events(store, [CustomerMoved])
    return keys


def sealing(connection: psycopg.Connection, folder: Path) -> EventStore:
    """Return a store with the keys of a folder, as a program that starts now has them."""
    return EventStore(connection, sealer=Sealer.from_folder(folder))


def move(store: EventStore, person: str, email: str) -> None:
    """Append an event with an address to a person's stream."""
    store.append("customer", person, moved(person, email))


def emails(store: EventStore, *people: str) -> list[object]:
    """Return what a store reads of each person's events."""
    return [event.data["email"] for person in people for event in store.read("customer", person)]


def forget(connection: psycopg.Connection, keys: KeyFolder, subject: str) -> None:
    """Destroy a person's key, as `millrace privacy forget` does."""
    keys.note_forgotten([str(value(connection, FORGET, keys.mac(subject)))])


def readmit(connection: psycopg.Connection, keys: KeyFolder, subject: str) -> None:
    """Let a forgotten person have a key again."""
    assert value(connection, READMIT, keys.mac(subject))


def key_of(envelope: dict[str, str]) -> str:
    return envelope["$sealed"].split(".")[1]


@pytest.fixture
def people(store: PlatformStore, tmp_path: Path) -> People:
    """Return a store of customers and orders."""
    register_orders(store)
    return People(store, begin(store, tmp_path / "keys").path)
