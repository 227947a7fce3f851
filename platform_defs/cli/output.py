"""How a command shows rows, as a table or as JSON, and errors."""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer
from rich.table import Column, Table
from rich.text import Text

from millrace.platform_defs.screen import Screen
from millrace.redact import escaped, masked, printable

if TYPE_CHECKING:
    from rich.progress import Progress

JsonOption = Annotated[bool, typer.Option("--json", help="As JSON, an object a line.")]


@dataclass(frozen=True)
class JsonText:
    """A JSON text, to be shown as it is: its numbers keep all their digits."""

    text: str


def table(title: str, columns: Sequence[str | Column], rows: Iterable[Sequence[object]]) -> Table:
    """Make a table; cells are shown as they are, None as nothing."""
    shown = Table(*columns, title=Text(title))
    for row in rows:
        shown.add_row(*map(cell, row))
    return shown


def cell(value: object) -> Text:
    """Return a cell of a table: a value as it is, None as nothing."""
    # replace here, too: the shown text determines the width of a column
    return Text("" if value is None else printable(str(value)))


def in_utc(time: datetime) -> str:
    """Return a time as tables show it."""
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def print_json(value: object) -> None:
    """Print a value as one line of JSON, control characters escaped."""
    typer.echo(escaped(json_of(value)))


def indented(text: str) -> str:
    """Return a JSON text over several lines, its numbers as they are; one that Python cannot read stays as it is."""
    try:
        return _indented(json.loads(text, parse_int=JsonText, parse_float=JsonText), "\n")
    except (ValueError, RecursionError):
        return text


def _indented(value: object, line: str) -> str:
    inner = f"{line}  "
    match value:
        case dict() if value:
            parts = [f"{json_of(name)}: {_indented(each, inner)}" for name, each in value.items()]
            return "{" + inner + f",{inner}".join(parts) + line + "}"
        case list() if value:
            return "[" + inner + f",{inner}".join(_indented(each, inner) for each in value) + line + "]"
        case _:
            return json_of(value)


def json_of(value: object) -> str:
    """Return a value as JSON: times in ISO 8601, UUIDs as texts, a `JsonText` as it is."""
    match value:
        case JsonText(text):
            return text
        case Mapping():
            return (
                "{"
                + ", ".join(
                    f"{json.dumps(str(name), ensure_ascii=False)}: {json_of(each)}" for name, each in value.items()
                )
                + "}"
            )
        case list() | tuple():
            return "[" + ", ".join(map(json_of, value)) + "]"
        case datetime():
            return json.dumps(value.isoformat())
        case UUID():
            return json.dumps(str(value))
        case _:
            return json.dumps(value, ensure_ascii=False)


def complain(text: str) -> None:
    """Print an error, with each connection string masked."""
    dsns = [value for name, value in os.environ.items() if name.endswith("_DSN")]
    Screen(stderr=True).print(Text(masked(text, *sys.argv, *dsns), style="red"), soft_wrap=True)


@contextmanager
def progress_bar(what: str) -> "Iterator[Progress]":
    """Show a bar on a terminal while the block runs; the caller updates its only task."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    errors = Screen(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        bar.add_task(what, total=None)
        yield bar
