"""The command `millrace show audit`."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Column

from millrace.platform_defs.cli.options import DsnOption, chosen_store
from millrace.platform_defs.cli.output import JsonOption, JsonText, in_utc, print_json, table
from millrace.platform_defs.screen import Screen

app = typer.Typer()


@app.command("audit")
def audit_command(
    view: Annotated[str | None, typer.Option(help="Only what was done to this view; by default all.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many entries, the newest first.")] = 20,
    as_json: JsonOption = False,
    dsn: DsnOption = None,
) -> None:
    """List the actions of operators on views and on history, each with its author and reason."""
    with chosen_store(dsn) as store:
        entries = store.audit_log(view, limit)
        if view is not None and not entries:
            store.view_info(view)  # refuses an unknown view; a removed one has entries
    if as_json:
        for each in entries:
            fields = asdict(each)
            fields["detail"] = JsonText(fields.pop("detail_json"))
            print_json(fields)
        return
    if not entries:
        Screen().print("Nothing was done that is written down.")
        return
    whole = (Column(name, overflow="fold") for name in ("view", "reason", "detail"))
    columns: list[str | Column] = ["done at", "by", Column("operation", no_wrap=True), *whole]
    rows = [(in_utc(e.done_at), e.done_by, e.operation, e.view, e.reason, e.detail_json) for e in entries]
    Screen().print(table("Audit log", columns, rows))
