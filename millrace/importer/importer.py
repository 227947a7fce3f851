"""Imports an event log from a file: batches, refusals and the report of `millrace import`.

A row's `event_id` follows from the source's name and the row's number. So an import that runs again, resumes after a
kill, or runs twice at once stores every row once, and a file that grew adds its new rows. Batches go to the store
one at a time, each after the commit of the one before: after a kill, no row is stored without those before it. Memory
does not grow with the file. Not here: the event that a row becomes (`events`).
"""

import re
import time as clock
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg

from millrace.errors import (
    DataRefused,
    EventIdReused,
    ImportRefused,
    KeyGone,
    Malformed,
    SchemaMismatch,
    StreamClosed,
    Unreachable,
)
from millrace.event_store.platform import PlatformStore
from millrace.importer.file_rows import EventFile, Format, Row
from millrace.importer.files import open_event_file
from millrace.importer.imported_events import Columns, Event, Mapping, name_fault
from millrace.importer.rejects import Rejects
from millrace.importer.times import TimeForm
from millrace.personal.marked_text import changed
from millrace.personal.sealer import Sealer
from millrace.postgres.connecting import connect

BATCH_BYTES = 8 * 1024 * 1024
# Registrations are never removed; a column with more values than this does not name kinds of events.
MOST_EVENT_TYPES = 10_000
# what CSV files have between their cells, by the word for each
DELIMITERS = {",": "','", ";": "';'", "\t": "tab", "|": "'|'"}
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
# how the store refuses a value that has to be sealed
PERSONAL = "is personal and not sealed"
# the parts that may differ in one reason for which many rows are rejected
_VALUES = re.compile(r"\d+|(?s:'.*'|\".*\")")


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

    `streams` counts the streams that begin with a row of this file.
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


@dataclass(frozen=True)
class ImportedLog:
    """A file to import, and how to read it.

    Attributes:
        path: CSV, JSON Lines, XES (all also .gz) or Parquet.
        decider: The decider of every event.
        columns: The columns of stream, event and time, and their substitutes.
        source: The name that event ids follow from; by default the file's name.
        format: By default the format of the file's suffix.
        delimiter: The text between the cells of CSV; by default a tab in `.tsv`, else a comma.
        times: The form of times; by default any of the known forms.
    """

    path: Path
    decider: str
    columns: Columns
    source: str | None = None
    format: Format | None = None
    delimiter: str | None = None
    times: TimeForm | None = None

    @property
    def name(self) -> str:
        """The name that event ids follow from."""
        return self.source or self.path.name

    @contextmanager
    def opened(self) -> Iterator[tuple[EventFile, Mapping]]:
        """Open it, with the mapping of its rows to events.

        Raises:
            ImportRefused: The file or a column is missing, or a name is invalid.
        """
        columns = self.columns
        names = {"decider": self.decider, "source": self.name}
        for option, has_column, name in (
            ("stream", bool(columns.stream), columns.stream_name),
            ("event", columns.event is not None, columns.event_name),
        ):
            if has_column == (name is not None):
                raise ImportRefused(
                    f"The import needs one of --{option} and --{option}-name, not {'both' if has_column else 'none'}.",
                    hint=f"--{option} names a column; --{option}-name is the name itself, the same for all rows.",
                )
            names |= {} if name is None else {option: name}
        for role, name in names.items():
            if fault := name_fault(f"the {role}", name):
                raise ImportRefused(f"The import cannot start: {fault}.")
        if bool(columns.personal) != all(columns.subject or ("",)):
            raise ImportRefused(
                "Personal columns and the person that they are of go together.",
                hint="Say such as --personal email --subject customer:customer_id.",
            )
        with open_event_file(self.path, self.format, self.delimiter) as file:
            # cells of CSV are texts without inner objects, except the data
            nested = file.delimiter is None
            missing = [
                name
                for name, path in columns.paths(file.columns).items()
                if (path[0] if nested or path[0] == columns.data else name) not in file.columns
            ]
            if missing and file.columns:
                hint = "Name its columns with --stream, --event, --time, --metadata, --id and --data."
                if file.delimiter:
                    header = file.delimiter.join(file.columns)
                    others = [label for other, label in DELIMITERS.items() if {*missing} <= {*header.split(other)}]
                    hint = f"Its cells are separated otherwise: say --delimiter {others[0]}." if others else hint
                raise ImportRefused(
                    f"{self.path} has no column {', '.join(map(repr, missing))}.",
                    detail=f"Its columns: {', '.join(map(repr, file.columns[:100]))}.",
                    hint=hint,
                )
            if shown := columns.shown_anyway(file.columns):
                raise ImportRefused(
                    f"The personal column {', '.join(shown)} has another role, or is part of a column with one."
                )
            yield file, Mapping(self.name, self.decider, columns, file.columns, self.times)


def import_events(
    dsn: str,
    log: ImportedLog,
    *,
    sealer: Sealer | None = None,
    rejects: Path | None = None,
    batch_size: int = 1000,
    progress: Callable[[ImportProgress], None] | None = None,
) -> ImportReport:
    """Append every row of a file that can be an event, once; write the other rows to a rejects file.

    A rejected row has no stream or event, has an unreadable time, or is itself refused by the store. The rejects file
    has one JSON object per row with `line`, `reason` and `raw`; it replaces an older one at the first rejected row.

    Args:
        dsn: The event store's database.
        log: The file.
        sealer: Has the keys for its personal columns.
        rejects: By default `<file>.rejects.jsonl`.
        batch_size: The rows of one transaction.
        progress: Called after each batch.

    Raises:
        ImportRefused: The file or a column is missing, or a row's event_id is stored with other content. The rows that
            were appended before stay.
        SchemaMismatch: The database has no event store.
        Unreachable: The database does not answer; run the import again to resume it.
    """
    started = clock.monotonic()
    file = log.path
    rejects = rejects or file.with_name(f"{file.name}.rejects.jsonl")
    if rejects.exists() and file.exists() and rejects.samefile(file):
        raise ImportRefused(f"{rejects} is the file to import; rejected rows must go elsewhere.")
    with (
        log.opened() as (opened, mapping),
        _database() as connections,
        connect(dsn) as connection,
        Rejects(rejects, lambda row: log.columns.hidden(row, opened.columns)) as out,
        ThreadPoolExecutor(1, "import") as ahead,
    ):
        connections.append(connection)
        run = _Run(PlatformStore(connection, sealer=sealer), log, out, started)
        batches = _batches(opened, mapping, batch_size)
        next_batch = ahead.submit(next, batches, None)
        while (batch := next_batch.result()) is not None:
            # only one batch is prepared meanwhile, so that memory stays bounded
            next_batch = ahead.submit(next, batches, None)
            run.import_batch(batch)
            if progress:
                progress(ImportProgress(batch.position, opened.total, run.rows, run.seconds))
        return run.report()


@dataclass(frozen=True)
class Kind:
    """Rows rejected for reasons that differ in values only: how many, and the first one's line and reason."""

    count: int
    line: int
    reason: str


@dataclass(frozen=True)
class ImportTrial:
    """The result of a trial; `first` are events as JSON, and `rejected` has the most frequent reasons first.

    `nearly_numbers` has columns of numbers with a few texts that may stand for a missing number, and these texts.
    """

    columns: tuple[str, ...]
    delimiter: str | None
    rows: int
    first: list[str]
    rejected: list[Kind]
    nearly_numbers: dict[str, list[str]]


def try_import(log: ImportedLog) -> ImportTrial:
    """Read a whole file as `import_events` does, and append nothing; refusals of the store are not seen.

    Raises:
        ImportRefused: The file or a column is missing.
    """
    with log.opened() as (opened, mapping):
        first: list[str] = []
        kinds: dict[str, Kind] = {}
        rows = 0
        used = {path[0] for path in log.columns.paths(opened.columns).values()}
        numbers = _Numbers([name for name in opened.columns if name not in used])
        for row in opened.rows:
            rows += 1
            numbers.add(log.columns.cells(row))
            event = mapping.event(row)
            if not isinstance(event, str):
                if len(first) < 3:
                    first.append(changed(event.json_text, lambda *_: '{"$sealed": "…"}'))
                continue
            kind = _VALUES.sub("", event)
            earlier = kinds.get(kind, Kind(0, row.line, event))
            kinds[kind] = replace(earlier, count=earlier.count + 1)
        rejected = sorted(kinds.values(), key=lambda kind: -kind.count)
        return ImportTrial(opened.columns, opened.delimiter, rows, first, rejected, numbers.nearly_numeric())


class _Numbers:
    """Counts the numbers of each column, and keeps its few other texts; a column with many or long ones is left out."""

    def __init__(self, columns: list[str]) -> None:
        self._texts: dict[str, set[str]] = {name: set() for name in columns}
        self._numbers: Counter[str] = Counter()

    def add(self, cells: dict[str, Any]) -> None:
        for name in self._texts.keys() & cells.keys():
            cell = cells[name]
            if type(cell) in {int, float} or (isinstance(cell, str) and _NUMBER.fullmatch(cell)):
                self._numbers[name] += 1
            elif isinstance(cell, str):
                self._texts[name].add(cell)
                # a column of numbers has no more texts, and no longer ones
                if len(self._texts[name]) > 3 or len(cell) > 40:
                    del self._texts[name]

    def nearly_numeric(self) -> dict[str, list[str]]:
        """Return the columns that have more numbers than kinds of texts, with these texts."""
        return {
            name: sorted(texts) for name, texts in self._texts.items() if texts and self._numbers[name] > len(texts)
        }


@dataclass(frozen=True)
class _Batch:
    """Rows in their order: those that have an event, with the event, and those that have none, with the reason."""

    rows: int
    events: list[tuple[Row, Event]]
    rejected: list[tuple[Row, str]]
    position: int


def _batches(file: EventFile, mapping: Mapping, batch_size: int) -> Iterator[_Batch]:
    rows: list[Row] = []
    size = 0
    for row in file.rows:
        rows.append(row)
        size += row.size
        if len(rows) >= batch_size or size >= BATCH_BYTES:
            yield _batch(rows, mapping, file.position())
            rows, size = [], 0
    yield _batch(rows, mapping, file.total)


def _batch(rows: list[Row], mapping: Mapping, position: int) -> _Batch:
    events: list[tuple[Row, Event]] = []
    rejected: list[tuple[Row, str]] = []
    for row in rows:
        event = mapping.event(row)
        if isinstance(event, str):
            rejected.append((row, event))
        else:
            events.append((row, event))
    return _Batch(len(rows), events, rejected, position)


@dataclass
class _Run:
    """One import under way, and its counts so far."""

    store: PlatformStore
    log: ImportedLog
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
            source=self.log.name,
            rows=self.rows,
            appended=self.appended,
            already_there=self.rows - self.appended - self.rejects.written,
            rejected=self.rejects.written,
            streams=self.streams,
            event_types=len(self.event_types),
            rejects=self.rejects.path if self.rejects.written else None,
            seconds=self.seconds,
        )

    def import_batch(self, batch: _Batch) -> None:
        """Append a batch's events and write its rejects, in the order of the rows."""
        for name in dict.fromkeys(event.event for _, event in batch.events):
            if name in self.event_types:
                continue
            if len(self.event_types) == MOST_EVENT_TYPES:
                raise ImportRefused(
                    f"The event column has more than {MOST_EVENT_TYPES} different values: it does not name kinds of"
                    " events.",
                    detail=f"The last one is {name!r}.",
                    hint="Name another column with --event.",
                )
            self.store.register_decider_event(self.log.decider, name, f"Imported from {self.log.name}")
            self.event_types.add(name)
        rejected = [*batch.rejected]
        self._append(batch.events, rejected)
        for row, reason in sorted(rejected, key=lambda reject: reject[0].number):
            self.rejects.write(row, reason)
        self.rows += batch.rows

    def _append(self, events: list[tuple[Row, Event]], rejected: list[tuple[Row, str]], *, again: bool = False) -> None:
        if not events:
            return
        # not within the block below: where there is no key for a value, no row is at fault
        texts = self.store.seal_texts(
            self.log.decider, [event.json_text for _, event in events], (UUID(e.event_id).bytes for _, e in events)
        )
        try:
            result = self.store.append_json(f"[{','.join(texts)}]")
        except KeyGone:  # since it was sealed
            if again:
                raise
            self._append(events, rejected, again=True)
            return
        except (Malformed, DataRefused, StreamClosed, EventIdReused) as error:
            if len(events) > 1:
                # all or nothing: halving finds the refused rows and stores the others, in order
                middle = len(events) // 2
                self._append(events[:middle], rejected)
                self._append(events[middle:], rejected)
                return
            row = events[0][0]
            if isinstance(error, EventIdReused):
                fault = (
                    "was imported before with other content, columns, options or decider, or another writer took its id"
                )
                hint = (
                    "If the event above is of an import of another file, give this one a name of its own with"
                    " --source NAME. If it is of no import, ask its writer: another source stores all rows again."
                )
                if self.log.columns.id is not None:
                    fault = f"has the id ({self.log.columns.id}) of an event with other content or of another --source"
                    hint = "Give each event an id of its own, and the same source to each import of it."
                raise ImportRefused(
                    f"Row {row.number} (line {row.line}) of {self.log.name} {fault}.", detail=error.detail, hint=hint
                ) from error
            if PERSONAL in (error.detail or ""):
                row = row._replace(raw="", values={})
            rejected.append((row, f"the store refuses it: {' '.join(str(error).splitlines()[:2])}"))
            return
        self.appended += result.appended
        self.streams += result.first


@contextmanager
def _database() -> Iterator[list[psycopg.Connection]]:
    """Turn the errors of a database into those of an import."""
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
