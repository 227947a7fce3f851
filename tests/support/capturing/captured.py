"""Helpers for tests of a whole capture: a source with a table, its capture, and the captured history as rows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pytest
from psycopg import sql

from millrace.capture.declaration import ACTIONS, Capture, CapturedTable
from millrace.capture.drain import CaptureDrain, CaptureReport
from millrace.capture.health import CaptureHealth, capture_health, has_work
from millrace.capture.prepare import restart
from millrace.capture.store import CaptureInfo, CaptureStore
from millrace.capture.verify import Verification, verify
from tests.support.capturing.sources import Source, new_source
from tests.support.factories import Killed, rows
from tests.support.patience import patience

__all__ = ["new_source"]
ITEMS = "create table items (id int primary key, name text, amount numeric, ok boolean)"
T = "table:public.items"


@dataclass(frozen=True)
class Captured:
    source: Source
    capture: Capture
    dsn: str
    store: psycopg.Connection

    def run(self, *statements: str) -> None:
        """Execute each statement in the source, in its own transaction."""
        self.source.run(*statements)

    def rows(self, query: str, *arguments: object) -> list[tuple[Any, ...]]:
        return self.store.execute(query.encode(), arguments).fetchall()

    def value(self, query: str, *arguments: object) -> Any:  # noqa: ANN401 - the query decides
        ((only,),) = self.rows(query, *arguments)
        return only

    def info(self) -> CaptureInfo:
        (found,) = CaptureStore(self.store).capture_info("shop")
        return found

    def health(self) -> CaptureHealth:
        return capture_health(self.dsn, self.capture)

    def problems(self) -> list[str]:
        return self.health().problems(self.capture)

    def has_work(self) -> bool:
        return has_work(self.dsn, self.capture)

    def verify(self, table: CapturedTable, **options: Any) -> Verification:  # noqa: ANN401 - passed on
        return verify(self.dsn, self.capture, table, **options)

    def restart(self, reason: str) -> int:
        return restart(self.dsn, self.capture, reason)

    def end_lease(self) -> None:
        """Make the lease of the capture look expired to every process."""
        self.store.execute("update event_store.captures set leased_until = now() - interval '1 s'")

    def drain(self, owner: str = "test") -> CaptureReport:
        with self.process(owner) as process:
            return process.drain(budget_s=patience(), idle_s=0)

    @contextmanager
    def process(self, owner: str = "test") -> Iterator[CaptureDrain]:
        with CaptureDrain(self.dsn, self.capture, owner) as process:
            yield process

    def told(self, *secrets: str) -> list[str]:
        """Return the secrets found in any table of the store, as text or bytes."""
        tables = self.rows(
            "select n.nspname, c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace"
            " where c.relkind = 'r' and n.nspname in ('event_store', 'event_store_private')"
        )
        kept = ""
        for place in tables:
            query = sql.SQL("select coalesce(string_agg(t::text, ' '), '') from {} t").format(sql.Identifier(*place))
            kept += " ".join(text for (text,) in self.store.execute(query))
        return [secret for secret in secrets if secret in kept or secret.encode().hex() in kept]

    def changes(self) -> list[dict[str, Any]]:
        return [row for (row,) in self.rows("select to_jsonb(c) from event_store.change_events c order by seq")]

    def replayed(self) -> list[dict[str, Any]]:
        """Return the rows that the captured history leaves, ordered by key."""
        return sorted(replay(self.changes()).values(), key=str)

    def table(self, name: str = "items") -> list[dict[str, Any]]:
        """Return the rows of the source in the same order."""
        found = self.source.connection.execute(b"select to_jsonb(t) from " + name.encode() + b" t")
        return sorted((row for (row,) in found), key=str)


def declared(captured: Captured, *tables: CapturedTable, actions: Sequence[str] = ACTIONS) -> Captured:
    return replace(captured, capture=Capture("shop", lambda: captured.source.dsn, tables, tuple(actions)))


def did(captured: Captured) -> list[tuple[str, str]]:
    return [(c["action"], c["record_pk"]) for c in captured.changes() if c["action"] != "backfilled"]


def killed(*_: object) -> None:
    """Replace a function by a kill of the process."""
    raise Killed


def dying(work: Callable[..., Any], number: int, *, after: bool = False) -> Callable[..., Any]:
    """Return the function with a kill of the process at call number `number`."""
    calls = 0

    def counted(*args: object, **named: object) -> object:
        nonlocal calls
        calls += 1
        if calls == number and not after:
            raise Killed
        done = work(*args, **named)
        if calls == number:
            raise Killed
        return done

    return counted


def preceded(work: Callable[..., Any], before: Callable[[], object]) -> Callable[..., Any]:
    def both(*args: object, **named: object) -> object:
        before()
        return work(*args, **named)

    return both


def killed_at(captured: Captured, monkeypatch: pytest.MonkeyPatch, where: object, step: str) -> None:
    """Capture until the process is killed where it would call the function `step` of a module or class."""
    with monkeypatch.context() as patch:
        patch.setattr(where, step, killed)
        with pytest.raises(Killed):
            captured.drain()


def replay(changes: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the last state of each row of each table after all these changes."""
    left: dict[tuple[str, str], dict[str, Any]] = {}
    for change in changes:
        key = (change["source_table_name"], change["record_pk"])
        match change["action"]:
            case "inserted" | "backfilled":
                left[key] = change["record"]
            case "updated":
                left[key] = {**left.get(key, {}), **change["record"]}
            case "deleted":
                left.pop(key, None)
    return left


def left(captured: Captured, table: str) -> list[dict[str, Any]]:
    """Return the rows of a table that the captured history leaves, ordered by key."""
    found = replay([change for change in captured.changes() if change["source_table_name"] == table])
    return sorted(found.values(), key=str)


def assert_left(captured: Captured, *names: str, without: Mapping[str, str] | None = None) -> None:
    """Assert that events leave the rows of these tables; `without` maps renamed tables to their captured names."""
    renamed = without or {}
    rows_left: dict[tuple[str, str], dict[str, Any]] = {}
    for decider, key, action, data in rows(
        captured.store, 'select decider, decider_id, event, data from event_store.events order by "offset"'
    ):
        if action == "deleted":
            rows_left.pop((decider, key), None)
        elif data["record"] is not None:
            # a row has the columns of its last change, whatever it had before
            before = rows_left.get((decider, key), {})
            rows_left[decider, key] = {c: before[c] for c in data.get("unavailable", ())} | data["record"]
    for name in names:
        known = renamed.get(name, name)
        decider = f"table:{known}" if "." in known else f"table:public.{known}"
        found = [row for (of, _), row in rows_left.items() if of == decider]
        assert sorted(found, key=str) == sorted((dict(row) for row in captured.table(name)), key=str), name


def schemas_told(captured: Captured, table: str = "items") -> list[dict[str, Any]]:
    """Return the changes of a table's columns in the log, in order."""
    found = rows(
        captured.store,
        "select data from event_store.events where event = 'schema_changed' and decider = %s"
        " and decider_id = 'schema' order by \"offset\"",
        f"table:public.{table}",
    )
    return [data for (data,) in found]


@pytest.fixture
def captured(new_source: Callable[[], Source], dsn: str) -> Iterator[Captured]:
    """Make a source with the table items, captured into the test's own event store."""
    source = new_source()
    source.run(ITEMS)
    capture = Capture("shop", lambda: source.dsn, (CapturedTable("items"),))
    with psycopg.connect(dsn, autocommit=True) as store:
        yield Captured(source, capture, dsn, store)
