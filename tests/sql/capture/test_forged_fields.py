"""Events of a captured table whose fields no capture wrote, as a restore may bring them: they hold nothing up."""

import json
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from millrace.resources.capture.store import EmittedRows, Requeued
from millrace.resources.errors import StreamWentOn
from millrace.resources.event_store import EventStore
from tests.support.capturing.captures import (
    PUBLISHED,
    Source,
    T,
    faulty,
    inserted,
    stream,
    truncated,
    updated,
    with_data,
)

VALUES: dict[str, list[Any]] = {
    "source": ["text", [], None, 7],
    "xid": ["x", "-1", "1e3", "99999999999999999999999", [], {}, 1.5],
    "commit_lsn": ["x", "0/1/2", "0/123456789", "/", 17, [], "0/1\n"],
    "commit_idx": ["x", "1.5", 1.5, "9999999999999999999", [], {}, "-1"],
}
GENERATIONS: list[Any] = ["x", "-1", "", " 1", "1.5", "99999999999", [1], {"of": 1}, True, 1.5, 1e30]
FORGED: list[dict[str, Any]] = [{"source": {"generation": value}} for value in GENERATIONS]
FORGED += [{field: value} for field, values in VALUES.items() for value in values]


def forge(source: Source, key: str, fields: dict[str, Any]) -> None:
    """Give the events of a stream other fields, as a restore could."""
    connection = source.store.connection
    with connection.transaction():
        connection.execute("alter table event_store.events disable trigger user")
        changed = connection.execute(
            "update event_store.events set data = data || %s where decider_id = %s and decider = %s",
            (Jsonb(fields), key, T),
        )
        connection.execute("alter table event_store.events enable trigger user")
    assert changed.rowcount > 0


def forge_all(source: Source) -> None:
    """Forge the stream of each number: each in another way."""
    for number, fields in enumerate(FORGED):
        forge(source, f"[{number}]", fields)


ALL = range(len(FORGED))


def test_a_backfill_reads_the_rows_as_they_are_now(source: Source) -> None:
    source.commit(*[inserted(n) for n in ALL])
    source.emit_all()
    forge_all(source)
    assert source.backfill(*ALL) == EmittedRows("stored", len(ALL), 0, 0)
    source.finish()
    assert {stream(source.store, n)[-1] for n in ALL} == {("backfilled", "read")}
    source.commit(*[updated(n, "later") for n in ALL])
    source.emit_all()
    assert {stream(source.store, n)[-1] for n in ALL} == {("updated", "later")}


def test_a_truncation_that_does_not_say_when_it_was_removes_nothing_that_is_read(source: Source) -> None:
    source.commit(inserted(0), truncated())
    source.emit_all()
    snapshot = f"{PUBLISHED}:{PUBLISHED}:"  # sees none of it
    assert source.backfill(0, snapshot=snapshot, done=False) == EmittedRows("stored", 0, 1, 0)
    for number, fields in enumerate(FORGED):
        if "source" in fields or "xid" in fields:
            forge(source, "[]", {"xid": PUBLISHED, "source": {"generation": source.generation}} | fields)
            assert source.backfill(1000 + number, snapshot=snapshot, done=False).appended == 1


def test_a_row_that_is_gone_is_deleted_if_its_event_came_before_the_backfill(source: Source) -> None:
    source.commit(*[inserted(n) for n in ALL])
    source.emit_all()
    source.begin()
    source.commit(*[inserted(1000 + n) for n in ALL])
    source.emit_all()
    forge_all(source)
    for number, fields in enumerate(FORGED):
        forge(source, f"[{1000 + number}]", fields)
    source.backfill()
    source.finish(limit=7)
    assert {stream(source.store, n)[-1][0] for n in ALL} == {"deleted"}
    assert {stream(source.store, 1000 + n)[-1][0] for n in ALL} == {"inserted"}


def test_what_changed_since_a_row_was_read_is_looked_for_in_all_its_events(source: Source) -> None:
    source.commit(*[inserted(n) for n in ALL])
    source.emit_all()
    forge_all(source)
    snapshot = f"{source.xid}:{source.xid}:"
    changes = source.changes(*[updated(n) for n in ALL])
    source.save([with_data(change, record={"id": n, "n": n}, unavailable=["v"]) for n, change in enumerate(changes)])
    source.emit_all()
    assert source.backfill(*ALL, snapshot=snapshot) == EmittedRows("stored", len(ALL), 0, 0)
    for n in ALL:
        event = EventStore(source.store.connection).get_events(f"[{n}]", T)[-1]
        assert (event.event, event.data["record"]) == ("backfilled", {"id": n, "n": n, "v": "read"})


def test_a_change_is_repaired_where_its_stream_does_not_say_how_far_it_is(source: Source) -> None:
    """Such an event tells nothing but when it was appended: before the change became known, or after it."""
    source.commit(*[inserted(n) for n in ALL])
    source.emit()
    source.commit(*[faulty(None) for _ in ALL])
    source.emit()
    waiting = source.store.quarantined_changes("c")
    forge_all(source)
    for n in ALL:
        data = {"record": {"id": n, "v": "repaired"}}
        source.store.repair_change(waiting[n].quarantine_id, f"[{n}]", json.dumps(data))
    assert source.store.requeue_changes("c") == Requeued(len(ALL), 0)
    assert {stream(source.store, n)[-1] for n in ALL} == {("updated", "repaired")}


def test_a_change_comes_too_late_where_an_event_came_after_it(source: Source) -> None:
    source.commit(*[inserted(n) for n in ALL])
    source.commit(*[faulty(None) for _ in ALL])
    source.emit()
    waiting = source.store.quarantined_changes("c")
    source.commit(*[updated(n) for n in ALL])
    source.emit()
    forge_all(source)
    for n in ALL:
        with pytest.raises(StreamWentOn):
            source.store.repair_change(waiting[n].quarantine_id, f"[{n}]", '{"record": {}}')
