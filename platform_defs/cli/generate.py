"""The commands that write files for other tools from the declarations: `millrace generate dbt`."""

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from millrace.assets.declarations import NAME_IT
from millrace.errors import MillraceError
from millrace.platform_defs.cli.options import declared_beside
from millrace.platform_defs.screen import Screen

if TYPE_CHECKING:
    from millrace.read_models.declared.declaration import ReadModel

app = typer.Typer(no_args_is_help=True)


@app.command("dbt")
def dbt_command(
    file: Annotated[Path, typer.Argument(help="The file, below the models of the dbt project.", metavar="FILE")],
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit code 1 if the file is stale.")] = False,
) -> None:
    """Write the read models as sources of dbt: types, descriptions, tests of keys, keys of assets."""
    declarations = declared_beside(None, ["read_models"])
    if faults := declarations.faults_of("read_models"):
        raise MillraceError("\n".join(f"A declaration fails to load: {fault}" for fault in faults))
    models = {**declarations.models, **declarations.rollups}
    if not models:
        raise MillraceError("No read model is declared here.", hint=NAME_IT)
    text = f"# Written by `millrace generate dbt` from the declared read models.\n{_sources(models[name] for name in sorted(models))}"
    try:
        if not check:
            file.write_text(text, "utf-8")
        elif not file.exists() or file.read_text("utf-8") != text:
            raise MillraceError(
                f"{file} differs from what is declared.", hint=f"Run: millrace generate dbt {shlex.quote(str(file))}"
            )
    except OSError as error:
        raise MillraceError(f"{file} cannot be read or written: {error.strerror}.") from error
    Screen().print(Text(f"{file} has {len(models)} tables, as they are declared."), soft_wrap=True)


def _sources(models: "Iterable[ReadModel]") -> str:
    import yaml

    tables = [_table(model) for model in models]
    sources = {"version": 2, "sources": [{"name": "read_models", "schema": "read_models", "tables": tables}]}
    return str(yaml.safe_dump(sources, sort_keys=False, allow_unicode=True, width=120))


def _table(model: "ReadModel") -> dict[str, Any]:
    from millrace.read_models.shown.lineage import origins

    types, keys = model.public_columns(), model.public_key
    columns: list[dict[str, Any]] = []
    for origin in origins(model):
        name = origin.column
        columns.append({"name": name, "description": origin.in_words, "data_type": types[name]})
        # in a rollup, null is a group of its own
        tests = [
            *(["unique"] if keys == (name,) else []),
            *(["not_null"] if name in keys and not model.is_rollup else []),
        ]
        if tests:
            # dbt takes a name for an expression; it may be a word of SQL
            columns[-1] |= {"quote": True, "data_tests": tests}
    table: dict[str, Any] = {
        "name": model.name,
        "description": model.description,
        "config": {"meta": {"dagster": {"asset_key": ["read_models", model.name]}}},
    }
    if len(keys) > 1:
        # as a text, since dbt may store the rows that fail, and no column has the type of a row
        row = ", ".join(f'"{key}"' for key in keys)
        table["data_tests"] = [{"unique": {"arguments": {"column_name": f"row({row})::text"}}}]
    return {**table, "columns": columns}
