"""The command on the log: `millrace show events`."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated

import psycopg
import typer
from rich.table import Column, Table
from rich.text import Text

from millrace.event_store import Event
from millrace.event_store.following import EventFilter, follow
from millrace.platform_defs.cli.options import DsnOption, chosen_dsn, chosen_store
from millrace.platform_defs.cli.output import JsonOption, JsonText, cell, in_utc, print_json
from millrace.platform_defs.cli.signals import stop_on_signals
from millrace.platform_defs.screen import Screen

app = typer.Typer()

# characters of a text that is cut to fit; measuring a whole megabyte would only take time
SHOWN = 500
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def _since(text: str) -> datetime:
    """Read a time with its zone, or how long ago that is."""
    if ago := re.fullmatch(r"([0-9]{1,5})([smhdw])", text):
        return datetime.now(UTC) - timedelta(**{UNITS[ago[2]]: int(ago[1])})
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is neither a time, such as 2030-01-31T12:00:00Z, nor how long ago, such as 30m, 2h or 7d."
        ) from None
    if time.tzinfo is None:
        raise typer.BadParameter(f"{text!r} has no zone: write {text}Z for UTC, or {text}+01:00.")
    return time


@app.command("events")
def events_command(
    decider: Annotated[str | None, typer.Option(help="Only events of this decider.")] = None,
    stream: Annotated[str | None, typer.Option(help="Only events of the stream with this id.", metavar="ID")] = None,
    event: Annotated[str | None, typer.Option(help="Only events of this name.")] = None,
    since: Annotated[
        datetime | None,
        typer.Option(parser=_since, help="Only later ones: a time with its zone, or 30s, 15m, 2h, 7d.", metavar="TIME"),
    ] = None,
    correlation: Annotated[
        str | None, typer.Option(help="Only events whose metadata have this correlation_id.", metavar="ID")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many, the newest.")] = 20,
    follow_: Annotated[bool, typer.Option("--follow", help="Go on with each new event, until Ctrl-C.")] = False,
    as_json: JsonOption = False,
    dsn: DsnOption = None,
) -> None:
    """Show the newest events of the log, the newest last."""
    event_filter = EventFilter(decider, stream, event, since, correlation)
    if follow_:
        _follow(chosen_dsn(dsn), event_filter, limit, as_json=as_json)
        return
    with chosen_store(dsn) as store:
        found = event_filter.latest(store, limit)
    if as_json:
        print_events(found)
    elif found:
        Screen().print(events_table(found))
        if len(found) == limit:
            Screen().print(Text(f"The newest {limit}; --limit shows more, --since and --stream show others."))
    else:
        Screen().print("There are no such events.")


def _follow(dsn: str, event_filter: EventFilter, limit: int, *, as_json: bool) -> None:
    """Show the newest events, then each new one as it gets its position."""
    screen, errors = Screen(), Screen(stderr=True)
    header = True

    def show(found: Sequence[Event]) -> None:
        nonlocal header
        if as_json:
            print_events(found)
        else:
            # once, above the first rows
            screen.print(events_table(found, header=header))
            header = False

    def lost(_: psycopg.OperationalError) -> None:
        errors.print(Text("Postgres went away; waiting for it.", style="yellow"))

    with stop_on_signals() as stop:
        follow(dsn, event_filter, limit, show, stop, lost=lost)


def print_events(events: Iterable[Event]) -> None:
    """Print events as JSON, a line each."""
    for event in events:
        print_json(event_fields(event))


def event_fields(event: Event) -> Mapping[str, object]:
    """Return the fields of an event in JSON."""
    return {
        "offset": event.offset,
        "partition": event.partition,
        "position": event.position,
        "decider": event.decider,
        "decider_id": event.decider_id,
        "version": event.version,
        "event": event.event,
        "event_version": event.event_version,
        "event_id": event.event_id,
        "command_id": event.command_id,
        "previous_id": event.previous_id,
        "final": event.final,
        "created_at": event.created_at,
        "metadata": None if event.metadata_json is None else JsonText(event.metadata_json),
        "data": JsonText(event.data_json),
    }


def events_table(events: Iterable[Event], *, header: bool = True, stream: bool = True) -> Table:
    """Make a table of events, as wide as the terminal: only data are cut, and no step without its stream."""
    shown = Table(
        Column("time (UTC)", width=19, no_wrap=True),
        Column("position", width=10, overflow="fold"),
        *([Column("stream", ratio=5, overflow="fold")] if stream else []),
        Column("v", width=4, overflow="fold"),
        Column("event", ratio=4, overflow="fold"),
        Column("data", ratio=4 if stream else 9, overflow="fold"),
        # the same widths for any content: a later table continues an earlier one
        expand=True,
        show_header=header,
        box=None,
        padding=(0, 1, 0, 0),
    )
    for event in events:
        values = (
            in_utc(event.created_at), place(event.partition, event.position),
            *([f"{event.decider} {event.decider_id}"] if stream else []), event.version, event.event,
        )  # fmt: skip
        step = step_text(event)
        data = cell(event.data_json[:SHOWN] if step is None else step)
        data.no_wrap, data.overflow = stream or step is None, "ellipsis" if stream or step is None else "fold"
        shown.add_row(*map(cell, values), data)
    return shown


def step_text(event: Event) -> str | None:
    """Return what a process heard and did in a step, and its state after it; None for other events."""
    match event.data if event.decider.startswith("process:") else None:
        case {"heard": str(heard), "did": list(did), "ended": ended, "state": dict(state)}:
            # without the event's id
            heard = re.sub(" [0-9a-f-]{36}$", "", heard)
            done = ", ".join([*map(str, did), *(["end"] if ended else [])]) or "nothing"
            left = f" {json.dumps(state, ensure_ascii=False)}" if state else ""
            return f"{heard} → {done}{left}"[:SHOWN]
    return None


def place(partition: int | None, position: int | None) -> str:
    """Return where an event is in the log, as tables show it; "-" for an event without a position."""
    return f"{partition}:{'-' if position is None else position}"
