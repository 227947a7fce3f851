"""The command that says where columns come from: `millrace lineage`.

Belongs here: its options, and how lineage looks. Not here: what declarations say
(`millrace.resources.read_models.shown.lineage`).
"""

from dataclasses import asdict
from typing import Annotated

import typer

from millrace.platform_defs.cli.output import JsonOption, print_json, table
from millrace.platform_defs.screen import Screen
from millrace.resources.errors import MillraceError
from millrace.resources.settings import Settings

app = typer.Typer()


@app.command("lineage")
def lineage_command(
    column: Annotated[str, typer.Argument(help="A read model, or one of its columns.", metavar="MODEL[.COLUMN]")],
    as_json: JsonOption = False,
) -> None:
    """Say what the columns of a read model are computed from, as it is declared."""
    from millrace.assets.declarations import declared
    from millrace.resources.read_models.shown.lineage import origins

    name, _, wanted = column.partition(".")
    known = declared(Settings().declared_package, ["read_models"]).models
    if name not in known:
        raise MillraceError(f"There is no read model {name!r}.", hint=f"Declared are: {', '.join(known) or 'none'}.")
    found = [each for each in origins(known[name]) if wanted in {"", each.column}]
    if not found:
        raise MillraceError(
            f"Read model {name} has no column {wanted!r}.", hint=f"It has: {', '.join(known[name].public_columns())}."
        )
    if as_json:
        for each in found:
            print_json({"model": name, **asdict(each)})
        return
    rows = [(each.column, each.said, ", ".join(each.sources)) for each in found]
    Screen().print(table(f"Columns of {name}", ("column", "computed from", "of the event"), rows))
