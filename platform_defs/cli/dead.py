"""The commands on dead letters, `millrace dead …`."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Column, Table
from rich.text import Text

from millrace.event_store import DeadLetter, Event
from millrace.event_store.platform import PlatformStore
from millrace.platform_defs.cli.options import DsnOption, Reason, View, chosen_store
from millrace.platform_defs.cli.output import JsonOption, cell, in_utc, indented, print_json, table
from millrace.platform_defs.cli.show.events import event_fields, place
from millrace.platform_defs.screen import Screen

app = typer.Typer(no_args_is_help=True)

LETTERS = ("view", "decider", "decider_id", "event", "offset", "attempts", "waiting", "parked at", "error")
# characters of an event's data, or of an error, that a table shows
SHOWN = 4000


@app.command("list")
def list_command(
    view: Annotated[str | None, typer.Argument(help="The view; by default all.", metavar="[VIEW]")] = None,
    waiting: Annotated[bool, typer.Option("--waiting", help="Those that wait for a retry instead.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Each event whole, beside its error.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="With --show: how many, those that were parked first.")] = 20,
    as_json: JsonOption = False,
    dsn: DsnOption = None,
) -> None:
    """List the streams that were given up, each with its error."""
    kind = "waiting streams" if waiting else "dead letters"
    with chosen_store(dsn) as store:
        letters = store.dead_letters(view, waiting=waiting)
        shown = [(letter, failed_event(store, letter)) for letter in letters[:limit]] if show else []
    if as_json:
        whole = [asdict(letter) | {"failed_event": event and event_fields(event)} for letter, event in shown]
        for fields in whole if show else map(asdict, letters):
            print_json(fields)
    elif not letters:
        Screen().print(f"There are no {kind}.")
    elif show:
        for pair in shown:
            Screen().print(_side_by_side(*pair))
        if len(letters) > limit:
            Screen().print(Text(f"{limit} of {len(letters):,} {kind}; --limit shows more."))
    else:
        rows = [
            (
                each.view, each.decider, each.decider_id, each.event, each.offset, each.attempts, each.waiting,
                each.parked_at and each.parked_at.isoformat(timespec="seconds"), each.last_error,
            )
            for each in letters
        ]  # fmt: skip
        Screen().print(table(kind.capitalize(), LETTERS, rows))


@app.command("retry")
def retry_command(
    view: View,
    decider: Annotated[str | None, typer.Option(help="Only streams of this decider.")] = None,
    decider_id: Annotated[str | None, typer.Option("--id", help="Only this stream; with --decider.")] = None,
    reason: Reason = None,
    dsn: DsnOption = None,
) -> None:
    """Retry dead letters of a view: all, those of a decider, or one stream."""
    with chosen_store(dsn) as store:
        retried = store.retry_dead_letters(view, decider, decider_id, reason=reason)
    Screen().print(Text(f"{retried} streams of {view} are tried again."))


@app.command("drop")
def drop_command(
    view: View,
    decider: Annotated[str, typer.Argument(help="The stream's decider.")],
    decider_id: Annotated[str, typer.Argument(help="The stream.")],
    reason: Annotated[str, typer.Option(help="Why, for the audit log.")],
    offset: Annotated[
        int | None, typer.Option(help="The event that is meant; refused if the stream stands at another one by now.")
    ] = None,
    dsn: DsnOption = None,
) -> None:
    """Give up the event that a parked stream failed at; the stream continues with its next event."""
    with chosen_store(dsn) as store:
        event = store.discard_dead_letter(view, decider, decider_id, reason, offset)
    given_up = f"{event.event} at offset {event.offset}" if event else "nothing, the view wants no event of it any more"
    Screen().print(Text(f"Given up: {given_up}. Stream ({decider}, {decider_id}) goes on in {view}."))


def failed_event(store: PlatformStore, letter: DeadLetter) -> Event | None:
    """Return the event that a parked stream failed at; None if the view wants none any more, or it was purged."""
    if letter.offset is None:
        return None
    found = store.latest_events(1, letter.decider, letter.decider_id, before_offset=letter.offset + 1)
    return next((event for event in found if event.offset == letter.offset), None)


def _side_by_side(letter: DeadLetter, event: Event | None) -> Table:
    """Make a table of one dead letter: its event on the left, its error on the right."""
    state = f"parked at {in_utc(letter.parked_at)} UTC" if letter.parked_at else "waits for a retry"
    shown = Table(
        Column("event", ratio=1, overflow="fold"),
        Column("error", ratio=1, overflow="fold"),
        title=cell(f"{letter.view}: {letter.decider} {letter.decider_id}"),
        caption=cell(f"{state}, attempts: {letter.attempts}, events that wait: {letter.waiting:,}"),
        expand=True,
    )
    lines = ["The view wants no event of this stream any more."]
    if event is not None:
        lines = [
            f"{event.event} {event.event_id}",
            f"version {event.version}, offset {event.offset}, position {place(event.partition, event.position)}",
            f"appended at {in_utc(event.created_at)} UTC",
            *([f"metadata {event.metadata_json}"] if event.metadata_json else []),
            indented(event.data_json),
        ]
    shown.add_row(cell(_cut("\n".join(lines))), cell(_cut(letter.last_error)))
    return shown


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]} … (--json has all {len(text):,} characters)"
