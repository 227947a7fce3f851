"""Helpers for tests of change capture in the store: a capture with a lease, and a source with a made-up log."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import NAMESPACE_URL, UUID, uuid4, uuid5

import psycopg
import pytest

from millrace.capture.backfilled_rows import BackfilledRows
from millrace.capture.decoding.change import Change
from millrace.capture.decoding.pgoutput import Lsn
from millrace.capture.store import CaptureLease, CaptureStore, Emitted, EmittedRows, TableRegistration
from millrace.event_store.platform import PlatformStore
from tests.support.factories import Connect, rows
from tests.support.sql_calls import get_events

START = Lsn.parse("0/1000")
STEP = 0x100
BEGAN = datetime(2026, 1, 5, 12, tzinfo=UTC)
PUBLISHED = 700  # the first transaction of the source has this number
T = "table:public.t"
U = "table:public.u"


def table(name: str = "t", fingerprint: str = "1", key: list[str] | None = None) -> TableRegistration:
    return TableRegistration("public", name, f"table:public.{name}", key, fingerprint)


@dataclass(frozen=True)
class Row:
    """A source transaction's change of a row: its key (None: unreadable) and the action."""

    key: object
    action: str = "inserted"
    value: object = 1
    table: str = "t"
    fault: str | None = None


def inserted(key: object, value: object = 1, table: str = "t") -> Row:
    return Row(key, "inserted", value, table)


def updated(key: object, value: object = 2, table: str = "t") -> Row:
    return Row(key, "updated", value, table)


def deleted(key: object, table: str = "t") -> Row:
    return Row(key, "deleted", None, table)


def truncated(table: str = "t") -> Row:
    return Row((), "truncated", None, table)


def faulty(key: object, table: str = "t", action: str = "updated") -> Row:
    return Row(key, action, None, table, "column v: not UTF-8")


def decider_id(key: object) -> str:
    parts = list(key) if isinstance(key, tuple) else [key]
    return json.dumps(parts, separators=(",", ":"))


class ReadRow(NamedTuple):
    decider_id: str | None
    event_id: str
    data: str | None
    fault: str | None = None


def as_read(rows: Sequence[ReadRow]) -> BackfilledRows:
    faults = [row.fault for row in rows]
    return BackfilledRows(
        decider="t",
        command_id=str(uuid5(NAMESPACE_URL, "read")),
        decider_ids=[row.decider_id for row in rows],
        event_ids=[row.event_id for row in rows],
        data=[row.data for row in rows],
        faults=faults if any(faults) else (),
    )


def of_read(rows: BackfilledRows) -> list[ReadRow]:
    faults = rows.faults or [None] * len(rows.data)
    return [ReadRow(*row) for row in zip(rows.decider_ids, rows.event_ids, rows.data, faults, strict=True)]


class Source:
    """A source with the log given to `commit`, and the process that captures it."""

    def __init__(self, store: CaptureStore, capture: str = "c", *tables: TableRegistration) -> None:
        self.store = store
        self.capture = capture
        self.tables = tables or (table(),)
        self.store.register_capture(capture, f"slot_{capture}", f"pub_{capture}", self.tables)
        self.lease: CaptureLease = store.claim_capture(capture, "me", 3600)
        self.generation = 0
        self.lsn = START
        self.xid = PUBLISHED

    @property
    def token(self) -> int:
        return self.lease.lease_token

    def begin(self, published_xid: int | None = None) -> int:
        self.generation = self.store.begin_generation(
            self.capture, self.token, "1234567890", "source", self.lsn, published_xid or self.xid, "1"
        )
        return self.generation

    def changes(self, *done: Row, lsn: Lsn | None = None, xid: int | None = None) -> list[Change]:
        """Write a transaction into the log, still unread."""
        if lsn is None:
            lsn = self.lsn
            self.lsn = Lsn(self.lsn + STEP)
        if xid is None:
            xid = self.xid
            self.xid += 1
        return [self._change(row, lsn, number, xid) for number, row in enumerate(done)]

    def _source(self, table: str) -> dict[str, object]:
        return {"capture": self.capture, "generation": self.generation, "schema": "public", "table": table}

    def _change(self, row: Row, lsn: Lsn, number: int, xid: int) -> Change:
        truncates = row.action == "truncated"
        record = None if row.value is None else {"id": row.key, "v": row.value}
        data = {
            "record": record, "commit_lsn": str(lsn), "commit_idx": number, "xid": xid,
            "committed_at": "2026-01-05T12:00:00.000000Z", "source": self._source(row.table) | {"oid": 16384},
        }  # fmt: skip
        return Change(
            commit_lsn=lsn, commit_idx=number, xid=xid, committed_at=BEGAN, decider=f"table:public.{row.table}",
            decider_id="[]" if truncates else None if row.key is None else decider_id(row.key), action=row.action,
            event_id=str(uuid5(NAMESPACE_URL, f"{self.generation}/{lsn}/{number}")),
            command_id=str(uuid5(NAMESPACE_URL, f"{self.generation}/{lsn}")),
            data=None if row.fault else json.dumps(data), fault=row.fault, raw=b"U\x00" if row.fault else None,
            relation=b"R" if row.fault else None,
        )  # fmt: skip

    def save(self, changes: Iterable[Change], to_lsn: Lsn | None = None) -> int:
        """Store changes that were read, in one transaction."""
        with self.store.connection.transaction():
            self.store.copy_changes(self.generation, changes)
            return self.store.store_changes(self.capture, self.token, to_lsn or self.lsn, BEGAN)

    def commit(self, *done: Row) -> list[Change]:
        changes = self.changes(*done)
        self.save(changes)
        return changes

    def emit(self, limit: int = 10_000) -> Emitted:
        return self.store.emit_changes(self.capture, self.token, limit)

    def emit_all(self, limit: int = 10_000) -> Emitted:
        total = Emitted(0, 0, 0, behind=True)
        while total.behind:
            s = self.emit(limit)
            total = Emitted(total.emitted + s.emitted, total.quarantined + s.quarantined, total.held + s.held, s.behind)
        return total

    def backfill(
        self,
        *keys: object,
        snapshot: str | None = None,
        name: str = "t",
        value: object = "read",
        done: bool = True,
        high_lsn: Lsn | None = None,
        backfill_offset: int | None = None,
    ) -> EmittedRows:
        """Read rows in a snapshot of the source, by default the present one, and store them."""
        (registered,) = [each for each in self.store.captured_tables(self.capture) if each.table_name == name]
        offset = registered.backfill_offset if backfill_offset is None else backfill_offset
        read = [self._row(key, name, value, offset) for key in keys]
        return self.store.emit_backfill(
            self.capture, self.token, "public", name, snapshot or f"{self.xid}:{self.xid}:", high_lsn or self.lsn,
            as_read(read), decider_id(keys[-1]) if keys else None, done=done,
        )  # fmt: skip

    def _row(self, key: object, name: str, value: object, backfill_offset: int) -> ReadRow:
        data = {"record": {"id": key, "v": value}, "source": self._source(name)}
        named = f"{self.generation}/{backfill_offset}/{name}/{decider_id(key)}"
        event_id = str(uuid5(NAMESPACE_URL, named))
        return ReadRow(decider_id(key), event_id, json.dumps(data))

    def finish(self, name: str = "t", limit: int = 10_000) -> int:
        """End the backfill; return the number of calls."""
        calls = 1
        while not self.store.finish_backfill(self.capture, self.token, "public", name, limit):
            calls += 1
        return calls

    def claimed_by(self, connection: psycopg.Connection, owner: str) -> "Source":
        other = Source.__new__(Source)
        other.__dict__.update(self.__dict__)
        other.store = CaptureStore(connection)
        other.lease = other.store.claim_capture(self.capture, owner, 3600)
        return other

    def forget_lease(self) -> None:
        ended = "update event_store.captures set leased_until = '-infinity' where capture = %s"
        self.store.connection.execute(ended, (self.capture,))


@pytest.fixture
def source(connect: Connect) -> Source:
    """Make a capture of the table t with a slot, and nothing stored."""
    made = Source(CaptureStore(connect()))
    made.begin()
    return made


def append_foreign(
    store: CaptureStore, action: str, key: object, event_id: UUID | None = None, *, final: bool = False
) -> None:
    """Append a foreign event to a row's stream, as any writer could before the table was captured."""
    store.connection.execute(
        "select from event_store_private.append_batch(array[row(1, %s::text, %s::uuid, 1, %s::text, %s::text, '{}'::jsonb, gen_random_uuid(),"
        " null, false, %s::boolean, null, null)::event_store_private.batch_event])",
        (action, event_id or uuid4(), T, decider_id(key), final),
    )


def events(store: CaptureStore, decider: str = T) -> list[tuple[str, str]]:
    return rows(
        store.connection,
        'select decider_id, event from event_store.events where decider = %s order by "offset"',
        decider,
    )


def stream(store: CaptureStore, key: object, decider: str = T) -> list[tuple[str, Any]]:
    found = get_events(PlatformStore(store.connection), decider_id(key), decider)
    return [(event.event, event.data["record"] and event.data["record"]["v"]) for event in found]


def held(store: CaptureStore, capture: str = "c") -> list[tuple[str | None, str, bool]]:
    """Return the quarantine: stream, name, and whether the change itself has a fault."""
    return [
        (change.decider_id, change.action, change.fault is not None)
        for change in store.quarantined_changes(capture, limit=1000)
    ]


def event_ids(changes: Iterable[Change]) -> list[UUID]:
    return [UUID(change.event_id) for change in changes]


def with_data(change: Change, **data: object) -> Change:
    assert change.data is not None
    return replace(change, data=json.dumps(json.loads(change.data) | data))


def later(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def progress_of(source: Source) -> tuple[str | None, int, bool, int | None]:
    (registered,) = source.store.captured_tables("c")
    return registered.backfill_key, registered.backfilled_rows, registered.rows_read, registered.backfill_generation
