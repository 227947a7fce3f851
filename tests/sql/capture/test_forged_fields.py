"""Events of a captured table with forged fields, as a restore may bring them: they block nothing."""

import json
from contextlib import nullcontext
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from millrace.capture.store import EmittedRows, Requeued
from millrace.errors import StreamWentOn
from millrace.event_store.platform import PlatformStore
from tests.support.capturing import captures
from tests.support.capturing.captures import PUBLISHED, Source, T, inserted, stream, truncated, updated, with_data
from tests.support.sql_calls import get_events

VALUES: dict[str, list[Any]] = {
    "source": ["text", [], None, 7],
    "xid": ["x", "-1", "1e3", "99999999999999999999999", [], {}, 1.5],
    "commit_lsn": ["x", "0/1/2", "0/123456789", "/", 17, [], "0/1\n"],
    "commit_idx": ["x", "1.5", 1.5, "9999999999999999999", [], {}, "-1"],
}
GENERATIONS: list[Any] = ["x", "-1", "", " 1", "1.5", "99999999999", [1], {"of": 1}, True, 1.5, 1e30]
FORGED: list[dict[str, Any]] = [{"source": {"generation": value}} for value in GENERATIONS]
FORGED += [{field: value} for field, values in VALUES.items() for value in values]


ALL = range(len(FORGED))


def forge(source: Source, key: str, fields: dict[str, Any]) -> None:
    """Give the events of a stream other fields, as a restore could."""
    connection = source.store.connection
    change = "update event_store.events set data = data || %s where decider_id = %s and decider = %s"
    with connection.transaction():
        connection.execute("alter table event_store.events disable trigger user")
        assert connection.execute(change, (Jsonb(fields), key, T)).rowcount > 0
        connection.execute("alter table event_store.events enable trigger user")


def forge_all(source: Source, first: int = 0) -> None:
    """Forge the stream of each number, from the first one on: each in another way."""
    for number, fields in enumerate(FORGED, first):
        forge(source, f"[{number}]", fields)


@pytest.fixture
def stored(source: Source) -> Source:
    """Return a source with a genuine event of each row."""
    source.commit(*[inserted(n) for n in ALL])
    source.emit_all()
    return source


def test_a_backfill_reads_the_rows_as_they_are_now(stored: Source) -> None:
    forge_all(stored)
    assert stored.backfill(*ALL) == EmittedRows("stored", len(ALL), 0, 0)
    stored.finish()
    assert {stream(stored.store, n)[-1] for n in ALL} == {("backfilled", "read")}
    stored.commit(*[updated(n, "later") for n in ALL])
    stored.emit_all()
    assert {stream(stored.store, n)[-1] for n in ALL} == {("updated", "later")}


def test_a_truncation_of_an_unknown_time_removes_nothing_that_is_read(source: Source) -> None:
    source.commit(inserted(0), truncated())
    source.emit_all()
    snapshot = f"{PUBLISHED}:{PUBLISHED}:"  # sees no transaction
    assert source.backfill(0, snapshot=snapshot, done=False) == EmittedRows("stored", 0, 1, 0)
    for number, fields in enumerate(FORGED):
        if "source" in fields or "xid" in fields:
            forge(source, "[]", {"xid": PUBLISHED, "source": {"generation": source.generation}} | fields)
            assert source.backfill(1000 + number, snapshot=snapshot, done=False).appended == 1


def test_a_row_that_is_gone_is_deleted_if_its_event_came_before(stored: Source) -> None:
    stored.begin()
    stored.commit(*[inserted(1000 + n) for n in ALL])
    stored.emit_all()
    forge_all(stored)
    forge_all(stored, 1000)
    stored.backfill()
    stored.finish(limit=7)
    assert {stream(stored.store, n)[-1][0] for n in ALL} == {"deleted"}
    assert {stream(stored.store, 1000 + n)[-1][0] for n in ALL} == {"inserted"}


def test_what_changed_since_a_row_was_read_is_looked_for_in_all_its_events(stored: Source) -> None:
    forge_all(stored)
    snapshot = f"{stored.xid}:{stored.xid}:"
    changes = stored.changes(*[updated(n) for n in ALL])
    stored.save([with_data(change, record={"id": n, "n": n}, unavailable=["v"]) for n, change in enumerate(changes)])
    stored.emit_all()
    assert stored.backfill(*ALL, snapshot=snapshot) == EmittedRows("stored", len(ALL), 0, 0)
    for n in ALL:
        event = get_events(PlatformStore(stored.store.connection), f"[{n}]", T)[-1]
        assert (event.event, event.data["record"]) == ("backfilled", {"id": n, "n": n, "v": "read"})


@pytest.mark.parametrize("too_late", [False, True])
def test_a_change_is_repaired_unless_an_event_of_its_stream_came_after_it(stored: Source, too_late: bool) -> None:
    """The only evidence of an event without a position is the time of its append."""
    stored.commit(*[captures.faulty(None) for _ in ALL])
    stored.emit()
    waiting = stored.store.quarantined_changes("c")
    if too_late:
        stored.commit(*[updated(n) for n in ALL])
        stored.emit()
    forge_all(stored)
    for n in ALL:
        data = json.dumps({"record": {"id": n, "v": "repaired"}})
        with pytest.raises(StreamWentOn) if too_late else nullcontext():
            stored.store.repair_change(waiting[n].quarantine_id, f"[{n}]", data)
    if not too_late:
        assert stored.store.requeue_changes("c") == Requeued(len(ALL), 0)
        assert {stream(stored.store, n)[-1] for n in ALL} == {("updated", "repaired")}
