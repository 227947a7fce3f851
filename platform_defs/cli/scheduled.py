"""The commands on scheduled events, `millrace scheduled …`."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from millrace.errors import MillraceError
from millrace.platform_defs.cli.options import DsnOption, Reason, chosen_store
from millrace.platform_defs.cli.output import JsonOption, in_utc, print_json, table
from millrace.platform_defs.screen import Screen

app = typer.Typer(no_args_is_help=True)

COLUMNS = ("decider", "decider_id", "name", "event", "due", "outcome", "tries", "error")

Decider = Annotated[str | None, typer.Argument(help="Only of this decider.", metavar="[DECIDER]")]
Stream = Annotated[str | None, typer.Option("--id", help="Only of this stream.")]


@app.command("list")
def list_command(
    decider: Decider = None,
    decider_id: Stream = None,
    limit: Annotated[int, typer.Option(min=1, help="How many: those that were refused, then the next to come.")] = 100,
    as_json: JsonOption = False,
    dsn: DsnOption = None,
) -> None:
    """List the scheduled events that wait or were refused; of a stream also those that are done."""
    with chosen_store(dsn) as store:
        found = store.scheduled_events(decider, decider_id, limit)
    if as_json:
        for each in found:
            print_json(asdict(each))
    elif not found:
        Screen().print("No event is scheduled.")
    else:
        rows = [
            (
                each.decider, each.decider_id, each.name, each.event, in_utc(each.due_at), each.outcome or "waits", each.tries or "",
                each.last_error,
            )
            for each in found
        ]  # fmt: skip
        Screen().print(table("Scheduled events", COLUMNS, rows))


@app.command("cancel")
def cancel_command(
    decider: Annotated[str, typer.Argument(help="The stream's decider.")],
    decider_id: Annotated[str, typer.Argument(help="The stream.")],
    name: Annotated[str, typer.Argument(help="The name of the scheduled event.")],
    dsn: DsnOption = None,
) -> None:
    """Take back a scheduled event that waits or was refused."""
    with chosen_store(dsn) as store:
        cancelled = store.cancel_scheduled(decider, decider_id, name)
    if not cancelled:
        raise MillraceError(
            f"Nothing waits as {name} in stream ({decider}, {decider_id}).",
            hint="millrace scheduled list shows what does.",
        )
    Screen().print(Text(f"{name} of stream ({decider}, {decider_id}) is cancelled."))


@app.command("retry")
def retry_command(
    decider: Decider = None, decider_id: Stream = None, reason: Reason = None, dsn: DsnOption = None
) -> None:
    """Try scheduled events again that were refused."""
    with chosen_store(dsn) as store:
        retried = store.retry_scheduled_events(decider, decider_id, reason)
    Screen().print(Text(f"{retried} scheduled events are tried again."))


@app.command("resume")
def resume_command(reason: Annotated[str, typer.Option(help="Why, for the audit log.")], dsn: DsnOption = None) -> None:
    """Let scheduled events be appended again: in a restored store, or a copy that is the store from now on."""
    with chosen_store(dsn) as store:
        store.hold_scheduled_events(None, reason)
    Screen().print("Scheduled events are appended; those that are due follow at once.")
