"""Any JSON that Postgres holds: every reader gets it exactly, or fails at that event alone; others are unaffected."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.archive.json_fields import fields
from millrace.archive.writer import archive_partition
from millrace.backup.backup import backup
from millrace.errors import UnreadableData
from millrace.event_store import Event
from millrace.event_store.platform import PlatformStore
from tests.support.building.event_log_reads import read
from tests.support.factories import append_to, pump, register_orders, rows
from tests.support.hostile_json import NUMBERS, UNREADABLE, WORDS, append_text, documents
from tests.support.sql_calls import get_events
from tests.support.views.receiver import Receiver, deliver, pushed, receiver

__all__ = ["pushed", "receiver"]

# paths with common keys of the documents
PATHS = {"by one key": ["a"], "k" * 70: ["k" * 64], "deep": ["a", "a", "0"], "of ours": ["event_log: "]}
PATHS["proto"] = ["__proto__"]
few = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
# a read by Spark is expensive: few reads of many documents
fewer = settings(few, max_examples=2)


@pytest.fixture
def orders(store: PlatformStore) -> PlatformStore:
    register_orders(store)
    store.register_view("v", "-infinity", max_attempts=1)
    return store


@pytest.fixture
def place(orders: PlatformStore) -> Callable[[list[str]], dict[int, str]]:
    """Return a function that stores documents, each in a stream beside an innocent one, and returns their offsets."""
    streams = iter(range(10**6))

    def store(documents: list[str]) -> dict[int, str]:
        for document in documents:
            append_to(orders, f"good-{next(streams)}")
            append_text(orders, f"evil-{next(streams)}", document)
        orders.sequence_events()
        return dict(rows(orders.connection, 'select "offset", data::text from event_store.events'))

    return store


def readable(event: Event) -> bool:
    try:
        return bool(event.data == json.loads(event.data_json))
    except UnreadableData:
        return False


@few
@given(found=st.lists(documents, min_size=1, max_size=6))
def test_the_client_fails_only_what_cannot_be_read(
    orders: PlatformStore, place: Callable[[list[str]], dict[int, str]], found: list[str]
) -> None:
    stored = place(found)
    log = [event for p in orders.available_offset_range() for event in orders.read_log(p.partition, 0, 10**6)]
    assert {event.offset: event.data_json for event in log} == stored
    for event in log:
        assert event.data_json == get_events(orders, event.decider_id, "order")[0].data_json
    pump(orders, "v")
    unread: set[str] = set()
    while taken := orders.lease_events("v", 100):
        for leased in taken:
            if readable(leased):
                orders.ack_event("v", leased.decider_id, leased.offset, leased.lease_token)
            else:
                orders.fail_event("v", leased.decider_id, leased.offset, "unreadable", leased.lease_token)
                unread.add(leased.decider_id)
    letters = {letter.decider_id for letter in orders.dead_letters("v")}
    assert unread <= letters
    assert letters == {event.decider_id for event in log if not readable(event)}
    assert not any(name.startswith("good") for name in letters)


@fewer
@given(found=st.lists(documents, min_size=30, max_size=60))
def test_source_and_archive_give_the_texts_of_postgres(
    orders: PlatformStore, dsn: str, place: Callable[[list[str]], dict[int, str]], found: list[str]
) -> None:
    stored = place(found)
    columns = ["offset", "data"]
    log = read(dsn, columns=columns, extract=PATHS)
    assert {row["offset"]: row["data"] for row in log} == stored
    query = 'select data #>> %s from event_store.events order by "offset"'
    expected: dict[str, list[Any]] = {
        name: [text for (text,) in rows(orders.connection, query, path)] for name, path in PATHS.items()
    }
    in_order = sorted(log, key=lambda row: row["offset"])
    assert {name: [row[name] for row in in_order] for name in PATHS} == expected
    texts = pa.array([row["data"] for row in in_order], pa.string())
    parsed = [values.to_pylist() for values in fields(texts, list(PATHS.values()))]
    assert dict(zip(PATHS, parsed, strict=True)) == expected


def catalogue() -> list[str]:
    words = [json.dumps(word) for word in WORDS]
    nested = (f"{{{word}: {{{word}: {number}}}}}" for word, number in zip(words, NUMBERS * 4, strict=False))
    return [*UNREADABLE.values(), *NUMBERS, *words, *nested, "[null]", "{}", "[]"]


def test_archive_and_backup_hold_every_event_as_it_is(
    orders: PlatformStore, dsn: str, place: Callable[[list[str]], dict[int, str]], tmp_path: Path
) -> None:
    stored = place(catalogue())
    for held in orders.available_offset_range():
        archive_partition(dsn, tmp_path / "archive", held.partition, min_events=1, tail=True)
    backup(dsn, tmp_path / "backup")
    for folder in (tmp_path / "archive", tmp_path / "backup" / "log"):
        files = [pq.read_table(path, columns=["offset", "data"]) for path in folder.rglob("*.parquet")]
        assert {row["offset"]: row["data"] for table in files for row in table.to_pylist()} == stored


def test_a_push_sends_every_event_as_it_is(pushed: PlatformStore, dsn: str, receiver: Receiver) -> None:
    for number, document in enumerate(catalogue()):
        append_text(pushed, f"evil-{number}", document)
        append_to(pushed, f"good-{number}")
    pump(pushed, "hook")
    deliver(dsn)
    stored = dict(rows(pushed.connection, "select decider_id, data::text from event_store.events"))
    assert sorted(text.partition(', "data": ')[2][:-1] for text in receiver.texts) == sorted(stored.values())
    waiting = rows(pushed.connection, "select decider_id from event_store.stream_locks where attempts > 0")
    assert {name for (name,) in waiting} == {name for name, text in stored.items() if not read_by_python(text)}


def read_by_python(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
