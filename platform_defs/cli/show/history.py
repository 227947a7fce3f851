"""The command on one stream: `millrace show history`."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from millrace.assets.declarations import NAME_IT
from millrace.errors import MillraceError
from millrace.event_store import Event, StreamHead, StreamView
from millrace.event_store.following import as_of_now
from millrace.event_store.platform import PlatformStore
from millrace.platform_defs.cli.options import DsnOption, chosen_store, declared_beside, rows_dsn
from millrace.platform_defs.cli.output import JsonOption, JsonText, in_utc, json_of, print_json, table
from millrace.platform_defs.cli.show.events import event_fields, events_table, place
from millrace.platform_defs.screen import Screen

if TYPE_CHECKING:
    from millrace.read_models.declared.declaration import ReadModel
    from millrace.read_models.shown.stream_rows import StreamRows

app = typer.Typer()

VIEWS = ("view", "mode", "stands at", "owes", "from offset", "state")


@dataclass(frozen=True)
class History:
    """A stream: its newest events in order, its rows in read models, and the progress of each view on it."""

    head: StreamHead
    events: Sequence[Event]
    rows: "Sequence[StreamRows]"
    views: Sequence[StreamView]


@app.command("history")
def history_command(
    decider: Annotated[str, typer.Argument(help="The stream's decider.")],
    decider_id: Annotated[str, typer.Argument(help="The stream.", metavar="ID")],
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many events and rows, the newest events.")] = 20,
    as_json: JsonOption = False,
    dsn: DsnOption = None,
) -> None:
    """Show a stream's events, the rows that read models made of them, and what each view has yet to consume."""
    declarations = declared_beside(dsn, ["read_models"])
    with chosen_store(rows_dsn(dsn)) as store, as_of_now(store.connection):
        history = _read(store, decider, decider_id, limit, list(declarations.models.values()))
    if as_json:
        print_json({"decider": decider, "decider_id": decider_id, **_fields(history)})
        return
    screen = Screen()
    head = history.head
    screen.print(
        Text(
            f"Stream {decider} {decider_id}: {head.version:,} events{', the last one closed it' if head.final else ''}."
        )
    )
    if history.events:
        screen.print(events_table(history.events, stream=False))
    if len(history.events) < head.version:
        if not history.events:
            left_out = "All of its events were purged; the archive has them."
        elif len(history.events) == limit:
            left_out = f"The newest {limit} events; --limit shows more."
        else:
            left_out = f"Events before version {history.events[0].version} were purged; the archive has them."
        screen.print(Text(left_out))
    for model in history.rows:
        if model.rows:
            screen.print(rows_table(model))
        if model.note or not model.rows:
            screen.print(
                Text(f"Read model {model.model}: {model.note or 'It has no row of this stream.'}"), soft_wrap=True
            )
    if not declarations.package:
        screen.print(Text(f"No read models are declared here. {NAME_IT}"), soft_wrap=True)
    for fault in declarations.faults:
        screen.print(Text(f"A file of read models fails to load: {fault}", style="red"), soft_wrap=True)
    rows = [
        (v.view, v.mode, place(v.partition, v.position), f"{v.owed:,}", v.first_owed, state_text(v))
        for v in history.views
    ]
    screen.print(table("Views", VIEWS, rows))


def _read(store: PlatformStore, decider: str, decider_id: str, limit: int, models: Sequence["ReadModel"]) -> History:
    from millrace.read_models.shown.stream_rows import rows_of_stream, wants_decider

    # first: it refuses an unknown decider, and lists the known ones
    views = store.stream_views(decider, decider_id)
    head = store.head(decider, decider_id)
    if head is None:
        raise MillraceError(
            f"There is no stream {decider} {decider_id}.",
            hint=f"millrace show events --decider {shlex.quote(decider)} shows streams with new events.",
        )
    events = store.latest_events(limit, decider, decider_id)[::-1]
    concerned = [model for model in models if wants_decider(model, decider)]
    rows = [rows_of_stream(store.connection, model, decider, decider_id, limit) for model in concerned]
    return History(head, events, rows, views)


def state_text(view: StreamView) -> str:
    """Return the state of a view on a stream."""
    if view.parked_at is not None:
        return f"dead letter since {in_utc(view.parked_at)}, after {view.attempts} attempts: {view.last_error}"
    if view.in_flight is not None:
        return f"offset {view.in_flight} is in flight, attempt {view.attempts}"
    if view.last_error is not None:
        return f"waits for a retry after {view.attempts} failed attempts: {view.last_error}"
    if not view.owed:
        return "has all that it wants"
    return "comes with its next events" if view.enabled else "disabled: is given no events"


def rows_table(model: "StreamRows") -> Table:
    """Make a table of a model's rows, its columns in their order."""
    # keep the digits of each number
    rows = [json.loads(row, parse_int=JsonText, parse_float=JsonText, parse_constant=JsonText) for row in model.rows]
    cells = [[value if isinstance(value, str | None) else json_of(value) for value in row.values()] for row in rows]
    return table(f"Read model {model.model}", list(rows[0]), cells)


def _fields(history: History) -> Mapping[str, object]:
    return {
        "version": history.head.version,
        "final": history.head.final,
        "events": [event_fields(event) for event in history.events],
        "read_models": [
            {"model": each.model, "rows": [JsonText(row) for row in each.rows], "note": each.note}
            for each in history.rows
        ],
        "views": [{**asdict(view), "state": state_text(view)} for view in history.views],
    }
