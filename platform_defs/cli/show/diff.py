"""The command that shows the effect of a changed declaration on the serving rows: `millrace show diff`."""

import json
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated

import typer
from rich.text import Text

from millrace.platform_defs.cli.options import DsnOption, Model, chosen_store, declared_model, rows_dsn
from millrace.platform_defs.cli.output import JsonOption, JsonText, in_utc, json_of, print_json, table
from millrace.platform_defs.screen import Screen
from millrace.settings import Settings

app = typer.Typer()


@app.command("diff")
def diff_command(
    model: Model,
    at: Annotated[
        str | None, typer.Option(help="As of this time, of which what serves was built.", metavar="TIME")
    ] = None,
    mark: Annotated[int | None, typer.Option(help="As of this moment of the log.", metavar="NUMBER")] = None,
    sample: Annotated[
        bool, typer.Option("--sample", help="Build and compare only the log partition with most events.")
    ] = False,
    keep_days: Annotated[
        float, typer.Option(help="For how many days the rows that differ are kept.", min=0.01, max=3650)
    ] = 7,
    as_json: JsonOption = False,
    dsn: DsnOption = None,
) -> None:
    """Show the rows that a changed declaration changes; exits with 1 if there are any.

    The declaration is built in separate tables, from the same events as the rows that serve.
    """
    from millrace.drain.as_of import chosen_mark
    from millrace.drain.diff import diff_with_serving
    from millrace.read_models.stored.differences import examples
    from millrace.spark import spark_when_needed

    declared, builder = declared_model(model, dsn), rows_dsn(dsn)
    with chosen_store(builder) as store:
        moment = chosen_mark(store, at, mark)
        partitions = store.partition_info()
    partition = max(partitions, key=lambda one: one.high_water_mark).partition if sample else None
    with spark_when_needed() as spark:
        diff = diff_with_serving(
            builder,
            declared,
            spark,
            mark=moment,
            partition=partition,
            keep=timedelta(days=keep_days),
            archive=Settings().archive_folder,
        )
    found = diff.outcome
    assert found is not None
    with chosen_store(builder) as store:
        shown = examples(store.connection, diff)
    if as_json:
        named = [
            {name: value and (value if name == "change" else JsonText(value)) for name, value in asdict(each).items()}
            for each in shown
        ]
        print_json(asdict(diff) | {"differs": found.differs, "examples": named})
    else:
        what = f"Of log partition {diff.partition}, one of {len(partitions)}: " if sample else ""
        waiting = f" {diff.waiting_streams:,} streams wait in what serves." if diff.waiting_streams else ""
        Screen().print(Text(f"{what}{found}{waiting}"), soft_wrap=True)
        if shown:
            rows = [(each.change, *map(_listed, (each.key, each.before, each.after))) for each in shown]
            Screen().print(table("Rows that differ", ("", "key", "before", "after"), rows))
            Screen().print(f"All are in read_models.{diff.name}, until {in_utc(diff.expires_at)}.", soft_wrap=True)
    if found.differs:
        raise typer.Exit(1)


def _listed(row: str | None) -> str:
    """Return the columns of a row as JSON on one line; its numbers keep all their digits."""
    values = json.loads(row or "{}", parse_float=JsonText, parse_int=JsonText)
    return ", ".join(f"{name}={value if isinstance(value, str) else json_of(value)}" for name, value in values.items())
