"""A store with a personal field, its folder of keys, and forgetting its people."""

from pathlib import Path

import psycopg

from millrace.event_store import EventStore, NewEvent
from millrace.event_store.key_rotation import KeyStore
from millrace.event_store.platform import PlatformStore
from millrace.personal.folder import KeyFolder, begun_folder, opened_folder
from millrace.personal.sealer import Sealer
from millrace.personal.values import Plain
from tests.support.factories import value

SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "email": {"type": "string", "x-personal": {"of": "id", "kind": "customer"}},
    },
}


def begin(store: PlatformStore, folder: Path) -> KeyFolder:
    """Let a store take `moved` of customers, with the first keys in a folder."""
    keys = begun_folder(folder)
    KeyStore(store.connection).begin_key_epoch(keys.epoch, keys.fingerprint)
    store.register_decider_event("customer", "moved", "")
    store.register_event_schema("customer", "moved", SCHEMA)
    return keys


def sealing(connection: psycopg.Connection, folder: Path) -> EventStore:
    """Return a store with the keys of a folder, as a program that starts now has them."""
    return EventStore(connection, sealer=Sealer(opened_folder(folder)))


def move(store: EventStore, person: str, email: str) -> None:
    """Append an event with an address."""
    store.append("customer", person, NewEvent("moved", {"id": person, "email": Plain(f"customer:{person}", email)}))


def emails(store: EventStore, *people: str) -> list[object]:
    """Return what a store reads of each person's events."""
    return [event.data["email"] for person in people for event in store.read("customer", person)]


def forget(connection: psycopg.Connection, keys: KeyFolder, person: str) -> None:
    """Destroy a person's key, as `millrace privacy forget` does."""
    mac = keys.mac(f"customer:{person}")
    keys.note_forgotten([str(value(connection, "select key_id from event_store_platform.forget_subject(%s, '')", mac))])


def readmit(connection: psycopg.Connection, keys: KeyFolder, person: str) -> None:
    """Let a forgotten person have a key again."""
    assert value(connection, "select event_store_platform.readmit_subject(%s, '')", keys.mac(f"customer:{person}"))
