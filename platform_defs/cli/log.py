"""The command `millrace import`.

Belongs here: its options, its progress bar, how its result and its errors look. Not here: importing; that is
`millrace.resources.importer.importer`.
"""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from millrace.platform_defs.cli.options import DsnOption, chosen_dsn
from millrace.resources.errors import MillraceError
from millrace.resources.importer.files import Format
from millrace.resources.importer.importer import Columns, ImportProgress, ImportReport, import_events


def import_command(
    file: Annotated[Path, typer.Argument(help="CSV, JSON Lines or Parquet; the first two also as .gz.")],
    stream: Annotated[str, typer.Option(help="The column that names the stream, such as case:concept:name.")],
    event: Annotated[str, typer.Option(help="The column that names the event, such as concept:name.")],
    decider: Annotated[str, typer.Option(help="The decider of every event, such as permit.")],
    time: Annotated[
        str | None,
        typer.Option(help="The column with the time. It stays in data as ISO 8601; without an offset it is UTC."),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(help="The name of this log; event ids follow from it. By default the file's name."),
    ] = None,
    format_name: Annotated[Format | None, typer.Option("--format", help="By default what the suffix says.")] = None,
    rejects: Annotated[Path | None, typer.Option(help="Where rejected rows go. By default FILE.rejects.jsonl.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, max=10_000, help="Rows per transaction.")] = 1000,
    dsn: DsnOption = None,
) -> None:
    """Import an event log. Run again, it goes on where it was; no row is stored twice."""
    console, errors = Console(), Console(stderr=True)
    try:
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[rows]:,} rows, {task.fields[speed]:,.0f} rows/s"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=errors,
            transient=True,
            disable=not errors.is_terminal,
        ) as bar:
            task = bar.add_task(file.name, total=None, rows=0, speed=0.0)

            def show(progress: ImportProgress) -> None:
                speed = progress.rows / progress.seconds if progress.seconds else 0.0
                bar.update(task, completed=progress.done, total=progress.total, rows=progress.rows, speed=speed)

            report = import_events(
                chosen_dsn(dsn),
                file,
                decider=decider,
                columns=Columns(stream, event, time),
                source=source,
                format=format_name,
                rejects=rejects,
                batch_size=batch_size,
                progress=show,
            )
    except MillraceError as error:
        errors.print(Text(str(error), style="red"))
        raise typer.Exit(1) from error
    console.print(_table(report))
    if report.rejects:
        console.print(Text(f"{report.rejected:,} rows were rejected; see {report.rejects}", style="yellow"))


def _table(report: ImportReport) -> Table:
    table = Table(title=Text(f"Imported {report.source}"), show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in (
        ("rows", report.rows),
        ("appended", report.appended),
        ("there before", report.already_there),
        ("rejected", report.rejected),
        ("streams that begin here", report.streams),
        ("kinds of events", report.event_types),
    ):
        table.add_row(name, f"{value:,}")
    table.add_row("seconds", f"{report.seconds:,.1f}")
    table.add_row("rows/s", f"{report.rows / max(report.seconds, 0.001):,.0f}")
    return table
