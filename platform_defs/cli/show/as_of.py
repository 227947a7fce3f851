"""The command that builds a read model as of a time: `millrace show as-of`."""

from dataclasses import asdict
from datetime import timedelta
from typing import Annotated

import typer
from rich.table import Column
from rich.text import Text

from millrace.platform_defs.cli.options import DsnOption, Model, chosen_store, declared_model, rows_dsn
from millrace.platform_defs.cli.output import JsonOption, in_utc, print_json, table
from millrace.platform_defs.screen import Screen
from millrace.settings import Settings

app = typer.Typer()

# users select from the table by this name: never cut it
COLUMNS = (Column("rows in", no_wrap=True), "rows", "streams that fail", "moment", "kept until")


@app.command("as-of")
def as_of_command(
    model: Model,
    time: Annotated[
        str | None,
        typer.Argument(help="The time; without an offset it is UTC. Without it, lists what there is.", metavar="TIME"),
    ] = None,
    mark: Annotated[
        int | None, typer.Option(help="The moment of the log, instead of a time.", metavar="NUMBER")
    ] = None,
    keep_days: Annotated[float, typer.Option(help="For how many days it is kept.", min=0.01, max=3650)] = 7,
    as_json: JsonOption = False,
    dsn: DsnOption = None,
) -> None:
    """Build a read model as of a time, from archive and log, or list the models that were built."""
    from millrace.drain.as_of import build_as_of, chosen_mark
    from millrace.read_models.stored.past import all_as_of
    from millrace.spark import spark_when_needed

    declared, builder = declared_model(model, dsn), rows_dsn(dsn)
    with chosen_store(builder) as store:
        moment = chosen_mark(store, time, mark)
        found = all_as_of(store.connection, model) if moment is None else []
    if moment is not None:
        if not as_json:
            Screen().print(
                f"Building {model} of {in_utc(moment.marked_at)} from {sum(moment.marks):,} positions of the log."
            )
        with spark_when_needed() as spark:
            keep, archive = timedelta(days=keep_days), Settings().archive_folder
            found = [build_as_of(builder, declared, spark, moment, keep=keep, archive=archive)]
    if as_json:
        for each in found:
            print_json(asdict(each))
        return
    if not found:
        Screen().print(Text(f"{model} was built as of no moment of the log."))
        return
    rows = [
        (
            f"read_models.{each.name}",
            "is not built" if each.rows is None else f"{each.rows:,}",
            each.failed_streams or 0,
            in_utc(each.marked_at),
            in_utc(each.expires_at),
        )
        for each in found
    ]
    Screen().print(table(f"{model} as of moments of the log", COLUMNS, rows))
