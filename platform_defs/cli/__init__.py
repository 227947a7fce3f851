"""The command line `millrace`: verbs, and groups of commands."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import typer
from typer.core import TyperGroup

from millrace.errors import MillraceError
from millrace.platform_defs.cli import (
    backup,
    capture,
    check,
    dead,
    dev,
    generate,
    importing,
    privacy,
    run,
    scheduled,
    streams,
    system,
    verify,
    view,
)
from millrace.platform_defs.cli.new import command as new
from millrace.platform_defs.cli.output import complain
from millrace.platform_defs.cli.show import as_of, audit, catalog, diff, events, history, incidents
from millrace.processes import private_files

if TYPE_CHECKING:
    from typer._click import Context, HelpFormatter

# libpq gives no SQLSTATE for a connection that failed
FULL = re.compile("too many (clients|connections)|remaining connection slots")


class FirstScreen(TyperGroup):
    """Shows all verbs and groups on one screen."""

    def format_help(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """Write a line for each verb and each group."""
        self.format_usage(ctx, formatter)
        with formatter.indentation():
            formatter.write_text(self.help or "")
        for title, is_group in (("Commands", False), ("Groups of commands", True)):
            formatter.write_heading(title)
            with formatter.indentation():
                formatter.write_dl(
                    [
                        (name, command.get_short_help_str(67))
                        for name, command in self.commands.items()
                        if isinstance(command, TyperGroup) is is_group
                    ]
                )


app = typer.Typer(
    cls=FirstScreen,
    help="An event store in Postgres, and read models that stay fresh.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for verbs in (system, check, verify, new, importing, backup):
    app.add_typer(verbs.app)
show = typer.Typer(no_args_is_help=True)
for command in (events, catalog, history, as_of, diff, audit, incidents):
    show.add_typer(command.app)
app.add_typer(run.app, name="run", help="Run the sequencer, a drain, handlers, a capture or metrics.")
app.add_typer(view.app, name="view", help="Enable, disable, seek, reset, approve, unlock, sign or remove.")
app.add_typer(dead.app, name="dead", help="List, retry or drop dead letters.")
app.add_typer(scheduled.app, name="scheduled", help="List, cancel or retry scheduled events, or resume them.")
app.add_typer(streams.app, name="streams", help="Add, list or revoke tokens that read over HTTP.")
app.add_typer(show, name="show", help="Show events, catalog, history, as-of, diff, audit, incidents.")
app.add_typer(capture.app, name="capture", help="Check, verify, repair or remove a capture of another database.")
app.add_typer(privacy.app, name="privacy", help="Forget people; make, rotate, copy and show keys of personal data.")
app.add_typer(generate.app, name="generate", help="Write sources of dbt from read models.")
app.add_typer(dev.app, name="dev", help="Open psql, or run commands of your own package.")


def main() -> None:
    """Run the command line; an error of Millrace prints one red text and exits with code 1."""
    # declarations may be in the current folder; it comes last, so that no file there shadows an installed package
    sys.path.append(str(Path.cwd()))
    try:
        # a command writes files: a backup, an archive, a log
        with private_files():
            dev.add_declared_commands(sys.argv[1:])
            app()
    except MillraceError as error:
        complain(str(error))
        raise SystemExit(1) from None
    except psycopg.Error as error:
        complain(_error_text(error))
        raise SystemExit(1) from None


def _error_text(error: psycopg.Error) -> str:
    """Return the text of an error of Postgres, or of its absence, with the remedy."""
    match error:
        case psycopg.errors.InsufficientPrivilege():
            remedy = "\nUse a role that may: see docs/who_may_do_what.md."
        case psycopg.errors.UndefinedFunction() | psycopg.errors.UndefinedTable() | psycopg.errors.InvalidSchemaName():
            remedy = "\nIs this an event store? Run: millrace migrate"
        case _ if FULL.search(str(error)):
            remedy = "\nAll its connections are taken: see 'Connections are exhausted' in docs/incidents.md."
        case _:
            remedy = ""
    if isinstance(error, psycopg.ProgrammingError) and not error.sqlstate:
        # an unreadable DSN may be a password: do not quote it
        return "The DSN is unreadable.\nState it as postgresql://… or key=value …"
    prefix = "" if error.sqlstate else "Postgres does not answer: "
    return prefix + (error.diag.message_primary or str(error).strip()) + remedy


if __name__ == "__main__":
    main()
