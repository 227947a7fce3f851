"""The command that lists the events: `millrace show catalog`."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from millrace.event_schemas.catalog import catalog
from millrace.platform_defs.cli.options import DsnOption, chosen_store
from millrace.platform_defs.cli.output import JsonOption, cell, print_json
from millrace.platform_defs.screen import Screen

app = typer.Typer()


@app.command("catalog")
def catalog_command(
    decider: Annotated[str | None, typer.Option(help="Only events of this decider.")] = None,
    as_json: JsonOption = False,
    dsn: DsnOption = None,
) -> None:
    """Show which events there are, the fields of their data, and the views that take them."""
    with chosen_store(dsn) as store:
        found = catalog(store, decider)
    if as_json:
        for entry in found:
            print_json({**asdict(entry), "fields": entry.fields})
        return
    shown = Table("decider", "event", "v", "description", "fields", "views", show_lines=True)
    for entry in found:
        fields = "\n".join(f"{name}: {type_}" for name, type_ in entry.fields.items())
        cells = (entry.decider, entry.event, entry.event_version, entry.description, fields, "\n".join(entry.views))
        shown.add_row(*map(cell, cells))
    Screen().print(shown)
