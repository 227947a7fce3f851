"""The commands for development: `millrace dev psql`, and those that the package of declarations adds."""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from millrace.platform_defs.cli.options import DsnOption, chosen_dsn
from millrace.platform_defs.cli.output import complain
from millrace.settings import Settings

app = typer.Typer(no_args_is_help=True)


@app.command("psql")
def psql_command(
    arguments: Annotated[
        list[str] | None, typer.Argument(help="What psql gets, behind --.", metavar="[-- ARGS]")
    ] = None,
    dsn: DsnOption = None,
) -> None:
    """Open psql on the event store's database."""
    from millrace.postgres.psql import psql_command as command_of

    command = command_of(chosen_dsn(dsn), arguments or [])
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command.argv[0], command.argv, command.env)  # noqa: S606 - the user's own psql replaces this process


def add_declared_commands(arguments: Sequence[str]) -> None:
    """Add the commands of the package of declarations to ours, if these arguments may name one of them.

    If its `commands.py` fails to load, say so and continue without them.
    """
    if arguments[:1] != ["dev"] or arguments[1:2] == ["psql"]:
        return
    from millrace.assets.declarations import load_part

    package = Settings().declared_package
    module = load_part(package, "commands")
    declared = getattr(module, "app", None)
    if isinstance(declared, typer.Typer):
        app.add_typer(declared)
    elif module is not None:
        complain(f"The commands of {package} are not there: {module if declared is None else 'its app is no Typer'}")
