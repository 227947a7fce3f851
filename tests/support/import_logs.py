"""Helpers for tests of the importer: a log in a file, an import, checks of its results."""

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from millrace.event_store.platform import PlatformStore
from millrace.importer.imported_events import Columns
from millrace.importer.importer import ImportedLog, ImportReport, import_events

HEADER = ("case", "activity", "at", "n")
COLUMNS = Columns(("case",), "activity", ("at",))
TIME = "2024-05-01T10:00:00+02:00"


def write_csv(path: Path, rows: Iterable[Sequence[object]], header: Sequence[str] = HEADER) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def write_text(path: Path, *lines: str | bytes) -> Path:
    path.write_bytes(b"".join((line.encode() if isinstance(line, str) else line) + b"\n" for line in lines))
    return path


def run(dsn: str, file: Path, **options: Any) -> ImportReport:  # noqa: ANN401 - any option
    reading = {name: options.pop(name) for name in [*options] if name in ImportedLog.__dataclass_fields__}
    return import_events(dsn, ImportedLog(file, **{"decider": "permit", "columns": COLUMNS, **reading}), **options)


def stored(store: PlatformStore) -> list[tuple[str, str, dict[str, Any]]]:
    query = 'select decider_id, event, data from event_store.events order by "offset"'
    return store.connection.execute(query).fetchall()


def rejected(report: ImportReport) -> list[tuple[int, str]]:
    assert report.rejects is not None
    rejects = [json.loads(line) for line in report.rejects.read_text().splitlines()]
    assert all(set(reject) == {"line", "reason", "raw"} for reject in rejects)
    return [(reject["line"], reject["reason"]) for reject in rejects]


def many_rows(count: int, streams: int) -> list[tuple[object, ...]]:
    return [(f"c-{n % streams}", f"step {n % 3}", TIME, n) for n in range(count)]


def assert_each_row_once_in_order(store: PlatformStore, count: int, streams: int) -> None:
    per_stream: dict[str, list[int]] = {}
    for stream, _, data in stored(store):
        per_stream.setdefault(stream, []).append(int(data["n"]))
    assert per_stream == {f"c-{s}": list(range(s, count, streams)) for s in range(streams)}
