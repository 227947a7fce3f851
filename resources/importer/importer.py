"""Imports an event log from a file: the engine behind `millrace import`.

Belongs here: the event that a row becomes, batches, refusals, the report. Not here: reading files (`files`, `text`),
times (`times`), the file of rejected rows (`rejects`).

A row becomes an event of its stream, appended at the stream's end in the order of the file; the columns that do not
name stream and event become its data. `event_id` follows from the source's name and the row's number. So an import that
runs again, goes on after a kill, or runs twice at once stores every row once, and a file that grew adds its new rows.
The import keeps nothing per stream, and bounds a batch in rows and bytes, so memory does not grow with the file.
"""

import re
import time as clock
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

import psycopg

from millrace.resources.errors import EventIdReused, ImportRefused, Malformed, SchemaMismatch, StreamClosed, Unreachable
from millrace.resources.event_store import EventStore, NewEvent
from millrace.resources.importer.files import Format, file_format, open_event_file
from millrace.resources.importer.rejects import Rejects
from millrace.resources.importer.rows import EventFile, Row
from millrace.resources.importer.times import iso_time

# Every event_id of an import follows from it: it must never change.
NAMESPACE = UUID("6d696c6c-7261-5365-8000-696d706f7274")
BATCH_BYTES = 8 * 1024 * 1024
NAME_BYTES = 1024
# Registrations are never removed; a column with more values than this does not name kinds of events.
MOST_EVENT_TYPES = 10_000
UUID_TEXT = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")


@dataclass(frozen=True)
class Columns:
    """The names of the columns of the stream, of the event and, if the file has one, of the time."""

    stream: str
    event: str
    time: str | None = None


@dataclass(frozen=True)
class ImportProgress:
    """The progress of an import: `done` of `total`, in bytes of the file, or in rows of Parquet."""

    done: int
    total: int
    rows: int
    seconds: float


@dataclass(frozen=True)
class ImportReport:
    """The result of an import; `rows` is the sum of `appended`, `already_there` and `rejected`.

    `streams` counts the streams whose first event is a row of this file.
    """

    source: str
    rows: int
    appended: int
    already_there: int
    rejected: int
    streams: int
    event_types: int
    rejects: Path | None
    seconds: float


def import_events(
    dsn: str,
    file: Path,
    *,
    decider: str,
    columns: Columns,
    source: str | None = None,
    format: Format | None = None,  # noqa: A002 - the word of the command line
    rejects: Path | None = None,
    batch_size: int = 1000,
    progress: Callable[[ImportProgress], None] | None = None,
) -> ImportReport:
    """Append every row of a file that can be an event, once, and write the others to a rejects file.

    A rejected row has no stream or event, has an unreadable time, or is refused by the store for itself. The rejects
    file has one JSON object per row with `line`, `reason` and `raw`; the first rejected row makes it and replaces an
    older one.

    Args:
        dsn: The event store's database.
        file: CSV, JSON Lines (both also .gz) or Parquet.
        decider: The decider of every event.
        columns: The columns of stream, event and time.
        source: The name that event ids follow from; by default the file's name.
        format: By default the format of the file's suffix.
        rejects: By default `<file>.rejects.jsonl`.
        batch_size: The rows of one transaction.
        progress: Called after each batch.

    Raises:
        ImportRefused: The file or a column is missing, or a row's event_id is stored with other content. The rows that
            were appended before stay.
        SchemaMismatch: The database has no event store.
        Unreachable: The database does not answer; run it again to go on.
    """
    started = clock.monotonic()
    name = source or file.name
    rejects = rejects or file.with_name(f"{file.name}.rejects.jsonl")
    _require_start(file, decider, name, rejects)
    with open_event_file(file, format or file_format(file)) as opened:
        _require_columns(file, opened, columns)
        with _database() as failing, psycopg.connect(dsn, autocommit=True) as connection, Rejects(rejects) as out:
            failing.append(connection)
            run = _Run(EventStore(connection), name, out, started)
            # One thread: parsing the next batch meanwhile gained nothing on two cores, for Postgres is the slower part.
            for batch in _batches(opened, _Mapping(name, decider, columns), batch_size):
                run.take(batch)
                if progress:
                    progress(ImportProgress(batch.done, opened.total, run.rows, run.seconds))
            return run.report()


@dataclass(frozen=True, slots=True)
class _Entry:
    """A row with its event, or with the reason why it has none."""

    row: Row
    event: NewEvent | None
    fault: str | None


@dataclass(frozen=True)
class _Batch:
    entries: list[_Entry]
    done: int


class _Mapping:
    """Makes an event of a row. Pure: the same row of the same source is the same event."""

    def __init__(self, source: str, decider: str, columns: Columns) -> None:
        self._decider = decider
        self._columns = columns
        # the command that caused every event is the import of this source
        self._command_id = uuid5(NAMESPACE, source)

    def entry(self, row: Row) -> _Entry:
        if row.fault:
            return _Entry(row, None, row.fault)
        data = dict(row.values)
        names = self._columns
        stream, event = _lower_uuid(_name(data.get(names.stream))), _name(data.get(names.event))
        fault = _name_fault(f"the stream ({names.stream})", stream) or _name_fault(f"the event ({names.event})", event)
        if names.time is not None and not fault:
            try:
                data[names.time] = iso_time(data.get(names.time))
            except ValueError as error:
                fault = f"its time ({names.time}) cannot be read: {error}"
        if fault or stream is None or event is None:
            return _Entry(row, None, fault)
        data.pop(names.stream)
        data.pop(names.event, None)
        event_id = uuid5(self._command_id, str(row.number))
        return _Entry(row, NewEvent(self._decider, stream, event, event_id, data, self._command_id), None)


def _lower_uuid(stream: str | None) -> str | None:
    """Return a UUID in lower case, as Postgres writes it: the store takes no other. Any other text stays as it is."""
    if stream is None or not UUID_TEXT.fullmatch(stream):
        return stream
    return stream.lower()


def _name(value: Any) -> str | None:  # noqa: ANN401 - a cell has any type
    """Return text, or the digits of a whole number; nothing else can name a stream or an event."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _name_fault(what: str, name: str | None) -> str | None:
    if name is None or not name.strip():
        return f"{what} is missing or neither text nor a whole number"
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return f"{what} is not UTF-8"
    if "\0" in name:
        return f"{what} contains a NUL character"
    return f"{what} has {size} bytes; at most {NAME_BYTES} are allowed" if size > NAME_BYTES else None


def _batches(file: EventFile, mapping: _Mapping, batch_size: int) -> Iterator[_Batch]:
    entries: list[_Entry] = []
    size = 0
    for row in file.rows:
        entries.append(mapping.entry(row))
        size += row.size
        if len(entries) >= batch_size or size >= BATCH_BYTES:
            yield _Batch(entries, file.done())
            entries, size = [], 0
    yield _Batch(entries, file.total)


@dataclass
class _Run:
    """One import under way, and its counts so far."""

    store: EventStore
    source: str
    rejects: Rejects
    started: float
    rows: int = 0
    appended: int = 0
    streams: int = 0
    event_types: set[str] = field(default_factory=set)

    @property
    def seconds(self) -> float:
        """The time since it started."""
        return clock.monotonic() - self.started

    def report(self) -> ImportReport:
        """Return the result."""
        return ImportReport(
            source=self.source,
            rows=self.rows,
            appended=self.appended,
            already_there=self.rows - self.appended - self.rejects.written,
            rejected=self.rejects.written,
            streams=self.streams,
            event_types=len(self.event_types),
            rejects=self.rejects.path if self.rejects.written else None,
            seconds=self.seconds,
        )

    def take(self, batch: _Batch) -> None:
        """Append a batch's events and write its rejects, in the order of the rows."""
        events = []
        rejected = []
        for entry in batch.entries:
            if entry.event is None:
                rejected.append((entry.row, entry.fault or ""))
            else:
                events.append((entry.row, entry.event))
                self._register(entry.event)
        self._append(events, rejected)
        for row, reason in sorted(rejected, key=lambda reject: reject[0].number):
            self.rejects.write(row, reason)
        self.rows += len(batch.entries)

    def _register(self, event: NewEvent) -> None:
        if event.event in self.event_types:
            return
        if len(self.event_types) == MOST_EVENT_TYPES:
            raise ImportRefused(
                f"The event column has more than {MOST_EVENT_TYPES} different values: it does not name kinds of events.",
                detail=f"The last one is {event.event!r}.",
                hint="Name another column with --event.",
            )
        self.store.register_decider_event(event.decider, event.event, f"Imported from {self.source}")
        self.event_types.add(event.event)

    def _append(self, events: list[tuple[Row, NewEvent]], rejected: list[tuple[Row, str]]) -> None:
        if not events:
            return
        try:
            stored = self.store.append_events([event for _, event in events])
        except (Malformed, StreamClosed, EventIdReused, RecursionError) as error:
            if len(events) > 1:
                # all or nothing: halving finds the rows to blame and stores the others, in order
                middle = len(events) // 2
                self._append(events[:middle], rejected)
                self._append(events[middle:], rejected)
                return
            row = events[0][0]
            if isinstance(error, EventIdReused):
                raise ImportRefused(
                    f"Row {row.number} (line {row.line}) of {self.source} was imported before with other content,"
                    " or with other columns or another decider.",
                    detail=error.detail,
                    hint="If this is another file, give it a name of its own with --source NAME.",
                ) from error
            rejected.append((row, f"the store refuses it: {' '.join(str(error).splitlines()[:2])}"))
            return
        for event in stored:
            self.appended += event.appended
            self.streams += event.previous_id is None


def _require_start(file: Path, decider: str, source: str, rejects: Path) -> None:
    fault = _name_fault("the decider", decider) or _name_fault("the source", source)
    if fault:
        raise ImportRefused(f"The import cannot start: {fault}.")
    if rejects.exists() and file.exists() and rejects.samefile(file):
        raise ImportRefused(f"{rejects} is the file to import; rejected rows must go elsewhere.")


def _require_columns(file: Path, opened: EventFile, columns: Columns) -> None:
    missing = [name for name in (columns.stream, columns.event, columns.time) if name and name not in opened.columns]
    if missing and opened.columns:
        raise ImportRefused(
            f"{file} has no column {', '.join(map(repr, missing))}.",
            detail=f"Its columns: {', '.join(map(repr, opened.columns[:100]))}.",
            hint="Name its columns with --stream, --event and --time.",
        )


@contextmanager
def _database() -> Iterator[list[psycopg.Connection]]:
    """Turn the errors of a database into those of the import."""
    connections: list[psycopg.Connection] = []
    try:
        yield connections
    except (psycopg.errors.UndefinedFunction, psycopg.errors.InvalidSchemaName) as error:
        raise SchemaMismatch("The database has no event store.", hint="Run: millrace migrate") from error
    except psycopg.Error as error:
        if isinstance(error, psycopg.OperationalError) and all(one.closed for one in connections):
            raise Unreachable(
                "The database does not answer.",
                detail=str(error).strip(),
                hint="Run the same import again when it does: it goes on, and nothing is stored twice.",
            ) from error
        raise ImportRefused("The database refuses the import.", detail=str(error).strip()) from error
