"""The command that says where columns come from: `millrace show lineage`.

Belongs here: its options, and how lineage looks. Not here: what declarations say
(`millrace.resources.read_models.shown.lineage`), what reports say (`millrace.assets.lineage`).
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.platform_defs.cli.options import declared_beside
from millrace.platform_defs.cli.output import JsonOption, print_json, table
from millrace.platform_defs.screen import Screen
from millrace.resources.errors import MillraceError

if TYPE_CHECKING:
    from millrace.resources.read_models.shown.lineage import ColumnOrigin

app = typer.Typer()


@app.command("lineage")
def lineage_command(
    column: Annotated[
        str, typer.Argument(help="A read model or a report, or a column of it.", metavar="MODEL[.COLUMN]")
    ],
    as_json: JsonOption = False,
) -> None:
    """Say what the columns of a read model, or of a report, are computed from, as it is declared."""
    from millrace.resources.read_models.shown.lineage import origins

    name, _, wanted = column.partition(".")
    found = declared_beside(None, ["read_models"])
    known = {**found.models, **found.rollups}
    what, every = ("Read model", origins(known[name])) if name in known else ("Report", _of_report(name, list(known)))
    columns = [each for each in every if wanted in {"", each.column}]
    if not columns:
        has = ", ".join(each.column for each in every)
        raise MillraceError(f"{what} {name} has no column {wanted!r}.", hint=f"It has: {has}.")
    if as_json:
        for each in columns:
            print_json({"model" if name in known else "report": name, **asdict(each)})
        return
    rows = [(each.column, each.said, ", ".join(each.sources)) for each in columns]
    Screen().print(table(f"Columns of {name}", ("column", "computed from", "of the event"), rows))


def _of_report(name: str, known: Sequence[str]) -> "list[ColumnOrigin]":
    """Return where the columns of a report come from, as its asset says it in Dagster.

    Raises:
        MillraceError: There is neither a read model nor a report of this name, or the report says nothing of columns.
    """
    # Dagster comes with these: for a read model the command does without
    from millrace.assets.lineage import report_origins

    reports = report_origins(declared_beside(None, ["reports"]).reports)
    if name not in reports:
        raise MillraceError(
            f"There is no read model or report {name!r}.",
            hint=f"Declared are: {', '.join([*known, *reports]) or 'none'}.",
        )
    if not reports[name]:
        raise MillraceError(
            f"Report {name} says nothing of its columns.", hint="Give its asset the metadata dagster/column_lineage."
        )
    return reports[name]
