"""The command that verifies a whole store: `millrace verify`."""

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from millrace.platform_defs.cli.options import DsnOption, chosen_store, declared_beside, rows_dsn
from millrace.platform_defs.cli.output import JsonOption, print_json
from millrace.platform_defs.cli.signals import stop_on_signals
from millrace.platform_defs.screen import Screen
from millrace.settings import Settings

if TYPE_CHECKING:
    from millrace.operations.verification.checks import Report

app = typer.Typer()


@app.command("verify")
def verify_command(
    partition: Annotated[
        int | None,
        typer.Option(help="The log partition whose rows are compared; by default one at random for each read model."),
    ] = None,
    as_json: JsonOption = False,
    dsn: DsnOption = None,
) -> None:
    """Verify that the store keeps its promises; exit code 1 for a fault.

    Verified are positions, events, views and archive, and of each read model the rows of one log partition, against a
    rebuild at the same position. Only that rebuild's tables are written, then dropped; after a kill, within two hours.
    """
    from millrace.archive.store import NO_TIME_LIMITS
    from millrace.operations.verification.checks import Report, Watcher, check_archive, check_log, check_views
    from millrace.operations.verification.models import check_models
    from millrace.spark import spark_when_needed

    declarations, archive = declared_beside(dsn, ["read_models"]), Settings().archive_folder
    builder, report, errors = rows_dsn(dsn), Report(), Screen(stderr=True)
    report.passed_over += [f"A declaration fails to load: {fault}" for fault in declarations.faults]
    with (
        chosen_store(builder) as store,
        stop_on_signals() as stop,
        errors.status("Looking ...") as status,
        spark_when_needed() as spark,
    ):
        connection = store.connection
        if partition is not None:
            store.available_offset_range(partition)  # refuses an unknown partition
        connection.execute(NO_TIME_LIMITS)
        watcher = Watcher(lambda text: status.update(Text(text)), partial(errors.print, soft_wrap=True), stop)
        report.stopped = True
        try:
            check_log(connection, report, watcher)
            check_views(connection, report, watcher)
            check_archive(connection, archive, report, watcher)
            models = declarations.models.values()
            check_models(builder, connection, models, spark, report, watcher, archive=archive, partition=partition)
            report.stopped = stop.is_set()
        finally:
            status.stop()
            _show(report, as_json=as_json)
    if report.found or report.stopped:
        raise typer.Exit(1)


def _show(report: "Report", *, as_json: bool) -> None:
    if as_json:
        print_json(vars(report) | {"faults": [vars(fault) for fault in report.faults]})
        return
    console = Screen()
    for text in report.passed_over:
        console.print(Text(text, style="yellow"), soft_wrap=True)
    for fault in report.faults:
        console.print(Text(fault.text, style="red"), soft_wrap=True)
    if report.found > len(report.faults):
        console.print(Text(f"{report.found - len(report.faults):,} faults more of these kinds.", style="red"))
    if report.stopped:
        console.print(Text("It was stopped: the rest was not looked at.", style="yellow"))
    elif not report.found:
        console.print("Nothing is wrong.")
