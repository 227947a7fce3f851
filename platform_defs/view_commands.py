"""The commands for operators of views: `millrace seek`, `dead-letters`, `retry`, `discard`.

Belongs here: their options and how results look. Not here: what they do; that is in `sql/functions`.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from platform_defs.dsn_option import DsnOption, chosen_store
from resources.event_store import DeadLetter, Seek

View = Annotated[str, typer.Argument(help="The view.", metavar="VIEW")]


class SeekKind(StrEnum):
    """Where a view is moved to."""

    EXACT_OFFSET = "EXACT_OFFSET"
    RESET_TO_OFFSET = "RESET_TO_OFFSET"
    RESET_TO_EARLIEST = "RESET_TO_EARLIEST"
    RESET_TO_LATEST = "RESET_TO_LATEST"
    RESUME_OR_EARLIEST = "RESUME_OR_EARLIEST"
    RESUME_OR_LATEST = "RESUME_OR_LATEST"
    EXACT_TIMESTAMP = "EXACT_TIMESTAMP"


def seek_command(
    view: View,
    kind: Annotated[SeekKind, typer.Argument(case_sensitive=False, help="Where to.")],
    offset: Annotated[int | None, typer.Option(help="For EXACT_OFFSET and RESET_TO_OFFSET; with --partition.")] = None,
    timestamp: Annotated[datetime | None, typer.Option(help="For EXACT_TIMESTAMP, in UTC.")] = None,
    partition: Annotated[int | None, typer.Option(help="One log partition; by default all.")] = None,
    reason: Annotated[str | None, typer.Option(help="Why, for the audit log.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would happen.")] = False,
    dsn: DsnOption = None,
) -> None:
    """Move a view to another position. Refused while something of it is leased or in flight."""
    with chosen_store(dsn) as store:
        utc = f"{timestamp.isoformat()}+00" if timestamp and timestamp.tzinfo is None else timestamp
        seeks = store.seek_view(view, kind.value, offset, utc, partition, dry_run=dry_run, reason=reason)
    title = f"{view}: {kind.value}" + (" (dry run, nothing was changed)" if dry_run else "")
    Console().print(
        _table(title, ("partition", "from", "to", "locks removed", "of them dead letters", ""), map(_seek, seeks))
    )


def dead_letters_command(
    view: Annotated[str | None, typer.Argument(help="The view; by default all.", metavar="[VIEW]")] = None,
    dsn: DsnOption = None,
) -> None:
    """List the streams that were given up, and why."""
    with chosen_store(dsn) as store:
        letters = store.dead_letters(view)
    if not letters:
        Console().print("There are no dead letters.")
        return
    columns = ("view", "decider", "decider_id", "event", "offset", "attempts", "waiting", "parked at", "error")
    Console().print(_table("Dead letters", columns, map(_letter, letters)))


def retry_command(
    view: View,
    decider: Annotated[str | None, typer.Option(help="Only streams of this decider.")] = None,
    decider_id: Annotated[str | None, typer.Option("--id", help="Only this stream; with --decider.")] = None,
    dsn: DsnOption = None,
) -> None:
    """Let dead letters of a view be tried again: all, those of a decider, or one stream."""
    with chosen_store(dsn) as store:
        retried = store.retry_dead_letters(view, decider, decider_id)
    Console().print(Text(f"{retried} streams of {view} are tried again."))


def discard_command(
    view: View,
    decider: Annotated[str, typer.Argument(help="The stream's decider.")],
    decider_id: Annotated[str, typer.Argument(help="The stream.")],
    reason: Annotated[str, typer.Option(help="Why, for the audit log.")],
    offset: Annotated[
        int | None, typer.Option(help="The event that is meant; refused if the stream stands at another one by now.")
    ] = None,
    dsn: DsnOption = None,
) -> None:
    """Give up the event that a parked stream failed at; the stream goes on with its next event."""
    with chosen_store(dsn) as store:
        event = store.discard_dead_letter(view, decider, decider_id, reason, offset)
    given_up = f"{event.event} at offset {event.offset}" if event else "nothing, the view wants no event of it any more"
    Console().print(Text(f"Given up: {given_up}. Stream ({decider}, {decider_id}) goes on in {view}."))


def _table(title: str, columns: Sequence[str], rows: Iterator[Sequence[object]]) -> Table:
    table = Table(*columns, title=Text(title))
    for row in rows:
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    return table


def _seek(seek: Seek) -> Sequence[object]:
    return (
        seek.partition, seek.from_position, seek.to_position, seek.locks_removed, seek.dead_letters_removed, seek.note,
    )  # fmt: skip


def _letter(letter: DeadLetter) -> Sequence[object]:
    return (
        letter.view, letter.decider, letter.decider_id, letter.event, letter.offset, letter.attempts, letter.waiting,
        letter.parked_at.isoformat(timespec="seconds"), letter.last_error,
    )  # fmt: skip
