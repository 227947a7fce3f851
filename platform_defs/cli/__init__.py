"""The command line `millrace`.

Belongs here: commands, their options, how results and errors look. Not here: what they do.
"""

import logging
from collections.abc import Sequence

import psycopg
import typer
from rich.console import Console
from rich.text import Text

from millrace.examples.shop.commands import simulate_command
from millrace.examples.shop.crm_commands import simulate_crm_command
from millrace.platform_defs.cli.backup import backup_command, restore_command
from millrace.platform_defs.cli.captures import capture_app
from millrace.platform_defs.cli.history import purge_command
from millrace.platform_defs.cli.log import import_command
from millrace.platform_defs.cli.options import DsnOption, chosen_dsn, chosen_store
from millrace.platform_defs.cli.output import table
from millrace.platform_defs.cli.partitions import partitions_command
from millrace.platform_defs.cli.signals import stop_on_signals
from millrace.platform_defs.cli.views import (
    audit_command,
    dead_letters_command,
    disable_command,
    discard_command,
    enable_command,
    retry_command,
    seek_command,
    unregister_command,
)
from millrace.resources.errors import MillraceError
from millrace.resources.event_store import ViewInfo
from millrace.resources.settings import Settings

app = typer.Typer(
    help="Millrace: a Postgres event store, exactly-once views, read models on Spark, run by Dagster.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(capture_app, name="capture")
app.command("import")(import_command)
app.command("simulate")(simulate_command)
app.command("simulate-crm")(simulate_crm_command)
app.command("partitions")(partitions_command)
app.command("backup")(backup_command)
app.command("restore")(restore_command)
app.command("purge")(purge_command)
app.command("enable")(enable_command)
app.command("disable")(disable_command)
app.command("unregister")(unregister_command)
app.command("seek")(seek_command)
app.command("dead-letters")(dead_letters_command)
app.command("retry")(retry_command)
app.command("discard")(discard_command)
app.command("audit")(audit_command)


def main() -> None:
    """Run the command line; what Millrace refuses is one red text and exit code 1."""
    try:
        app()
    except MillraceError as error:
        Console(stderr=True).print(Text(str(error), style="red"))
        raise SystemExit(1) from None
    except psycopg.Error as error:
        Console(stderr=True).print(Text(_said(error), style="red"))
        raise SystemExit(1) from None


def _said(error: psycopg.Error) -> str:
    """What Postgres, or the lack of it, says, and what helps."""
    match error:
        case psycopg.errors.InsufficientPrivilege():
            remedy = "\nUse a role that may: see 'Who may do what' in the README."
        case psycopg.errors.UndefinedFunction() | psycopg.errors.UndefinedTable() | psycopg.errors.InvalidSchemaName():
            remedy = "\nIs this an event store? Run: millrace migrate"
        case _:
            remedy = ""
    prefix = "" if error.sqlstate else "Postgres does not answer: "
    return prefix + (error.diag.message_primary or str(error).strip()) + remedy


@app.command("up")
def up_command() -> None:
    """Start everything on this machine and watch it; Ctrl-C stops it all."""
    from millrace.platform_defs.local.up import up

    settings = Settings()
    up(
        settings,
        status=lambda: [f"{row.view}: lag {row.lag:,}" for row in _views(None)],
        started=lambda: _submit("apply_schema", settings.port),
    )


@app.command("migrate")
def migrate_command(dsn: DsnOption = None) -> None:
    """Bring the event store's schema to this version of the code."""
    from millrace.resources.event_store.migrations import migrate

    report = migrate(chosen_dsn(dsn), log_partitions=Settings().log_partitions)
    done = [*report.applied, *(["functions"] if report.functions_replaced else [])]
    Console().print(f"Schema version {report.version}; applied: {', '.join(done) or 'nothing, it was up to date'}.")


@app.command("status")
def status_command(dsn: DsnOption = None) -> None:
    """Show the lag of each view, in positions of the log, and what its streams do."""
    Console().print(
        table("Views", ("view", "mode", "lag", "in flight", "waiting", "dead letters"), map(_cells, _views(dsn)))
    )


@app.command("sequence")
def sequence_command(dsn: DsnOption = None) -> None:
    """Give committed events their positions, until stopped with Ctrl-C or SIGTERM."""
    from millrace.resources.sequencer import run_sequencer

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with stop_on_signals() as stop:
        run_sequencer(chosen_dsn(dsn), stop)


@app.command("reset")
def reset_command(model: str, dsn: DsnOption = None) -> None:
    """Remove a read model's tables and progress; the next drain builds it anew from the first event."""
    from millrace.assets.read_models import declared
    from millrace.resources.read_models.versions import reset_model

    models = declared()
    if model not in models:
        raise MillraceError(f"There is no read model {model!r}.", hint=f"Declared are: {', '.join(models)}.")
    with chosen_store(dsn) as store:
        reset_model(store.connection, models[model])
    Console().print(f"Read model {model} is removed; its next drain builds it from the first event.")


def _views(dsn: str | None) -> list[ViewInfo]:
    with chosen_store(dsn) as store:
        return store.view_info()


def _cells(row: ViewInfo) -> Sequence[object]:
    counts = (row.lag, row.in_flight, row.waiting, row.dead_letters)
    return (row.view, row.mode if row.enabled else "disabled", *(f"{count:,}" for count in counts))


def _submit(job: str, port: int) -> None:
    """Ask the running Dagster for a run; a refusal is worth a line, not an end."""
    from dagster_graphql import DagsterGraphQLClient, DagsterGraphQLClientError

    try:
        DagsterGraphQLClient("127.0.0.1", port_number=port).submit_job_execution(job)
    except DagsterGraphQLClientError as error:
        Console(stderr=True).print(Text(f"Dagster did not take the job {job}: {error}", style="yellow"))


if __name__ == "__main__":
    main()
