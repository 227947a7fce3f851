"""The command line `millrace`.

Belongs here: how commands come together, how errors look. Not here: the commands (a file each subject), what they do.
"""

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import psycopg
import typer
from rich.text import Text

from millrace.platform_defs.cli import (
    alerts,
    captures,
    consumers,
    dead_letters,
    events,
    history,
    lineage,
    log,
    streams,
    system,
    views,
)
from millrace.platform_defs.cli.new import command as new
from millrace.platform_defs.screen import Screen
from millrace.resources.errors import MillraceError
from millrace.resources.processes import private_files
from millrace.resources.settings import Settings
from millrace.resources.showing import masked

# of a connection that failed libpq has no SQLSTATE
FULL = re.compile("too many (clients|connections)|remaining connection slots")

app = typer.Typer(
    help="Millrace: a Postgres event store, exactly-once views, read models on Spark, run by Dagster.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for commands in (
    system.app,
    new.app,
    log.app,
    events.app,
    lineage.app,
    streams.app,
    dead_letters.app,
    alerts.app,
    views.app,
    consumers.app,
    history.app,
):
    app.add_typer(commands)
app.add_typer(captures.app, name="capture")


def main() -> None:
    """Run the command line; what Millrace refuses is one red text and exit code 1."""
    # declarations may be in the current folder; last, for no file there may stand in for an installed package
    sys.path.append(str(Path.cwd()))
    try:
        # what a command writes: a backup, an archive, a log
        with private_files():
            add_declared_commands(Settings().declared_package, sys.argv[1:])
            app()
    except MillraceError as error:
        _complain(str(error))
        raise SystemExit(1) from None
    except psycopg.Error as error:
        _complain(_said(error))
        raise SystemExit(1) from None


def add_declared_commands(package: str | None, arguments: Sequence[str]) -> None:
    """Add the commands of a package of declarations to ours, if these arguments are not of one of ours.

    Where its `commands.py` fails to load, say so and do without.
    """
    ours = typer.main.get_group(app).commands
    if arguments and arguments[0] in ours:
        return
    from millrace.assets.declarations import load_part

    module = load_part(package, "commands")
    declared = getattr(module, "app", None)
    if isinstance(declared, typer.Typer):
        app.add_typer(declared)
    elif module is not None:
        _complain(f"The commands of {package} are not there: {module if declared is None else 'its app is no Typer'}")


def _complain(text: str) -> None:
    # whatever connection string was given: an error may quote it
    given = [value for name, value in os.environ.items() if name.endswith("_DSN")]
    Screen(stderr=True).print(Text(masked(text, *sys.argv, *given), style="red"), soft_wrap=True)


def _said(error: psycopg.Error) -> str:
    """Return what Postgres, or the lack of it, says, and what helps."""
    match error:
        case psycopg.errors.InsufficientPrivilege():
            remedy = "\nUse a role that may: see 'Who may do what' in docs/operating.md."
        case psycopg.errors.UndefinedFunction() | psycopg.errors.UndefinedTable() | psycopg.errors.InvalidSchemaName():
            remedy = "\nIs this an event store? Run: millrace migrate"
        case _ if FULL.search(str(error)):
            remedy = "\nAll its connections are taken: see 'Connections are exhausted' in docs/incidents.md."
        case _:
            remedy = ""
    if isinstance(error, psycopg.ProgrammingError) and not error.sqlstate:
        # an unreadable DSN may be a password: it is not quoted
        return "The DSN is unreadable.\nState it as postgresql://… or key=value …"
    prefix = "" if error.sqlstate else "Postgres does not answer: "
    return prefix + (error.diag.message_primary or str(error).strip()) + remedy


if __name__ == "__main__":
    main()
