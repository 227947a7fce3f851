"""The commands on the log: `millrace import`, `partitions`.

Belongs here: their options, the progress bar, how results look. Not here: importing (`millrace.resources.importer`),
what is counted (`sql/functions/log/partition_info.sql`).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table
from rich.text import Text

from millrace.platform_defs.cli.options import DsnOption, chosen_dsn, chosen_store
from millrace.platform_defs.cli.output import table
from millrace.platform_defs.screen import Screen
from millrace.resources.event_store import PartitionInfo

if TYPE_CHECKING:
    from millrace.resources.importer.importer import ImportProgress, ImportReport

app = typer.Typer()

Format = Literal["csv", "jsonl", "parquet"]

PARTITIONS = ("partition", "earliest", "archived", "mark", "events", "bytes", "last activity", "active views")


@app.command("import")
def import_command(
    file: Annotated[Path, typer.Argument(help="CSV, JSON Lines or Parquet; the first two also as .gz.")],
    stream: Annotated[str, typer.Option(help="The column that names the stream, such as case:concept:name.")],
    event: Annotated[str, typer.Option(help="The column that names the event, such as concept:name.")],
    decider: Annotated[str, typer.Option(help="The decider of every event, such as permit.")],
    time: Annotated[
        str | None,
        typer.Option(help="The column with the time. It stays in data as ISO 8601; without an offset it is UTC."),
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(help="A column that says what led to the event, such as correlation_id; again for more."),
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
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from millrace.resources.importer.events import Columns
    from millrace.resources.importer.importer import import_events

    errors = Screen(stderr=True)
    with Progress(
        TextColumn("{task.description}", markup=False),
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

        def show(progress: "ImportProgress") -> None:
            speed = progress.rows / progress.seconds if progress.seconds else 0.0
            bar.update(task, completed=progress.done, total=progress.total, rows=progress.rows, speed=speed)

        report = import_events(
            chosen_dsn(dsn),
            file,
            decider=decider,
            columns=Columns(stream, event, time, tuple(metadata or ())),
            source=source,
            format=format_name,
            rejects=rejects,
            batch_size=batch_size,
            progress=show,
        )
    console = Screen()
    console.print(_table(report))
    if report.rejects:
        console.print(Text(f"{report.rejected:,} rows were rejected; see {report.rejects}", style="yellow"))


def _table(report: "ImportReport") -> Table:
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


@app.command("partitions")
def partitions_command(dsn: DsnOption = None) -> None:
    """Show what each log partition holds: from its earliest position up to before its high-water mark."""
    with chosen_store(dsn) as store:
        partitions = store.partition_info()
    Screen().print(table("Log partitions", PARTITIONS, map(_partition, partitions)))


def _partition(info: PartitionInfo) -> Sequence[object]:
    numbers = (info.earliest_position, info.archived_position, info.high_water_mark, info.events, info.bytes)
    activity = info.last_activity and info.last_activity.isoformat(timespec="seconds")
    return (info.partition, *(f"{number:,}" for number in numbers), activity, info.active_views)
