"""The command that looks at dead letters: `millrace dead list`.

Belongs here: how they look, each event beside its error. Not here: what is done about them, which is in `views`
(`millrace dead retry`, `discard`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Column, Table
from rich.text import Text

from millrace.platform_defs.cli.events import event_fields, place
from millrace.platform_defs.cli.options import DsnOption, chosen_store
from millrace.platform_defs.cli.output import JsonOption, cell, in_utc, indented, print_json, table
from millrace.platform_defs.screen import Screen
from millrace.resources.event_store import DeadLetter, EventStore, PlacedEvent

app = typer.Typer()

LETTERS = ("view", "decider", "decider_id", "event", "offset", "attempts", "waiting", "parked at", "error")
# characters of an event's data, or of an error, that a table shows
SHOWN = 4000


@app.command("dead-letters")
def dead_letters_command(
    view: Annotated[str | None, typer.Argument(help="The view; by default all.", metavar="[VIEW]")] = None,
    show: Annotated[bool, typer.Option("--show", help="Each event whole, beside its error.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="With --show: how many, those that were parked first.")] = 20,
    as_json: JsonOption = False,
    dsn: DsnOption = None,
) -> None:
    """List the streams that were given up, and why."""
    with chosen_store(dsn) as store:
        letters = store.dead_letters(view)
        shown = [(letter, failed_event(store, letter)) for letter in letters[:limit]] if show else []
    if as_json:
        for fields in [_with_event(*pair) for pair in shown] if show else map(asdict, letters):
            print_json(fields)
    elif not letters:
        Screen().print("There are no dead letters.")
    elif show:
        for pair in shown:
            Screen().print(_side_by_side(*pair))
        if len(letters) > limit:
            Screen().print(Text(f"{limit} of {len(letters):,} dead letters; --limit shows more."))
    else:
        Screen().print(table("Dead letters", LETTERS, map(_letter, letters)))


def failed_event(store: EventStore, letter: DeadLetter) -> PlacedEvent | None:
    """Return the event that a parked stream failed at; None where the view wants none any more, or it was purged."""
    if letter.offset is None:
        return None
    found = store.latest_events(1, letter.decider, letter.decider_id, before_offset=letter.offset + 1)
    return next((event for event in found if event.offset == letter.offset), None)


def _with_event(letter: DeadLetter, event: PlacedEvent | None) -> Mapping[str, object]:
    return {**asdict(letter), "failed_event": event and event_fields(event)}


def _side_by_side(letter: DeadLetter, event: PlacedEvent | None) -> Table:
    """Make a table of one dead letter: its event on the left, its error on the right."""
    shown = Table(
        Column("event", ratio=1, overflow="fold"),
        Column("error", ratio=1, overflow="fold"),
        title=cell(f"{letter.view}: {letter.decider} {letter.decider_id}"),
        caption=cell(
            f"parked at {in_utc(letter.parked_at)} UTC, attempts: {letter.attempts}, events that wait: {letter.waiting:,}"
        ),
        expand=True,
    )
    shown.add_row(cell(_cut(_said(event))), cell(_cut(letter.last_error)))
    return shown


def _said(event: PlacedEvent | None) -> str:
    if event is None:
        return "The view wants no event of this stream any more."
    lines = [
        f"{event.event} {event.event_id}",
        f"version {event.version}, offset {event.offset}, position {place(event.partition, event.position)}",
        f"appended at {in_utc(event.created_at)} UTC",
        *([f"metadata {event.metadata_json}"] if event.metadata_json else []),
        indented(event.data_json),
    ]
    return "\n".join(lines)


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]} … (--json has all {len(text):,} characters)"


def _letter(letter: DeadLetter) -> Sequence[object]:
    return (
        letter.view, letter.decider, letter.decider_id, letter.event, letter.offset, letter.attempts, letter.waiting,
        letter.parked_at.isoformat(timespec="seconds"), letter.last_error,
    )  # fmt: skip
