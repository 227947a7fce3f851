"""The command `millrace import`."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from millrace.importer.file_rows import Format
from millrace.importer.times import TimeForm, Unit
from millrace.platform_defs.cli.options import DsnOption, chosen_dsn
from millrace.platform_defs.cli.output import JsonText, print_json, table
from millrace.platform_defs.screen import Screen
from millrace.settings import Settings

if TYPE_CHECKING:
    from millrace.importer.importer import ImportProgress, ImportReport, ImportTrial

app = typer.Typer()


@app.command("import")
def import_command(
    file: Annotated[Path, typer.Argument(help="CSV, JSON Lines, XES or Parquet; the first three also as .gz.")],
    decider: Annotated[str, typer.Option(help="The decider of every event, such as permit.")],
    stream: Annotated[
        list[str] | None,
        typer.Option(
            help="The column that names the stream, such as case:concept:name. Again for another one: their JSON array"
            " is the name."
        ),
    ] = None,
    stream_name: Annotated[str | None, typer.Option(help="In place of --stream: the stream of every event.")] = None,
    event: Annotated[str | None, typer.Option(help="The column that names the event, such as concept:name.")] = None,
    event_name: Annotated[str | None, typer.Option(help="In place of --event: the name of every event.")] = None,
    time: Annotated[
        list[str] | None,
        typer.Option(
            help="The column with the time, which stays in data as ISO 8601; without an offset it is UTC. Again for the"
            " column with the rest of it."
        ),
    ] = None,
    time_format: Annotated[
        str | None, typer.Option(help="How times are written, such as %y/%m/%d %H:%M:%S.", metavar="FORMAT")
    ] = None,
    time_unit: Annotated[Unit | None, typer.Option(help="Times are numbers since 1970, in this unit.")] = None,
    day_first: Annotated[bool, typer.Option("--day-first", help="10/11/2011 is in November.")] = False,
    metadata: Annotated[
        list[str] | None,
        typer.Option(help="A column that says what led to the event, such as correlation_id; again for more."),
    ] = None,
    id_: Annotated[
        str | None, typer.Option("--id", help="The column with the event's id, a UUID.", metavar="COLUMN")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="The column with the whole data, a JSON object. Columns that no option names are left out."),
    ] = None,
    null: Annotated[
        list[str] | None, typer.Option(help="A cell with this text, such as NA, is null; again for more texts.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(help="The name of this log; event ids follow from it. By default the file's name."),
    ] = None,
    format_name: Annotated[Format | None, typer.Option("--format", help="By default what the suffix says.")] = None,
    delimiter: Annotated[
        str | None,
        typer.Option(help="What is between the cells of CSV, such as ';' or tab. By default a comma; a tab in .tsv."),
    ] = None,
    personal: Annotated[
        list[str] | None,
        typer.Option(help="A column whose values are sealed with the key of their person; again for more."),
    ] = None,
    subject: Annotated[
        str | None,
        typer.Option(help="Whose they are: a kind, and the column with the id.", metavar="KIND:COLUMN"),
    ] = None,
    rejects: Annotated[Path | None, typer.Option(help="Where rejected rows go. By default FILE.rejects.jsonl.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, max=10_000, help="Rows per transaction.")] = 1000,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read the whole file, show its first events and rejects, store nothing.")
    ] = False,
    dsn: DsnOption = None,
) -> None:
    """Import an event log. A second run resumes where the first one ended; no row is stored twice.

    Exits with 3 if rows were rejected, with 1 if all were.
    """
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from millrace.importer.imported_events import Columns
    from millrace.importer.importer import ImportedLog, import_events, try_import

    log = ImportedLog(
        file,
        decider,
        Columns(
            tuple(stream or ()),
            event,
            tuple(time or ()),
            tuple(metadata or ()),
            id=id_,
            data=data,
            stream_name=stream_name,
            event_name=event_name,
            nulls=frozenset(null or ()),
            personal=tuple(personal or ()),
            subject=None if subject is None else (subject.partition(":")[0], subject.partition(":")[2]),
        ),
        source,
        format_name,
        "\t" if delimiter in {"tab", "\\t"} else delimiter,
        TimeForm(time_format, time_unit, day_first),
    )
    if dry_run:
        trial = try_import(log)
        _show(trial)
        _end(trial.rows, sum(kind.count for kind in trial.rejected))
        return
    sealer = None
    if personal:
        from millrace.personal.sealer import Sealer

        sealer = Sealer.from_folder(Settings().keys_folder)
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
            chosen_dsn(dsn), log, sealer=sealer, rejects=rejects, batch_size=batch_size, progress=show
        )
    console = Screen()
    console.print(_table(report))
    if report.rejects:
        console.print(Text(f"{report.rejected:,} rows were rejected; see {report.rejects}", style="yellow"))
    _end(report.rows, report.rejected)


def _end(rows: int, rejected: int) -> None:
    """Exit with a code for scripts: 0 if no row was rejected, 3 if some were, 1 if all were."""
    if rejected:
        raise typer.Exit(1 if rejected == rows else 3)


def _show(trial: "ImportTrial") -> None:
    screen = Screen()
    between = "" if trial.delimiter is None else f", with {trial.delimiter!r} between cells"
    screen.print(Text(f"{trial.rows:,} rows of {', '.join(map(repr, trial.columns))}{between}"))
    for event in trial.first:
        print_json(JsonText(event))
    for column, texts in trial.nearly_numbers.items():
        options = " ".join(f"--null {shlex.quote(text)}" for text in texts)
        hint = f"{column!r} has numbers, and a few texts. If these say that there is no number: {options}"
        screen.print(Text(hint, style="yellow"))
    if trial.rejected:
        rows = ((f"{kind.count:,}", kind.line, kind.reason) for kind in trial.rejected)
        screen.print(table("Rejected", ("rows", "first in line", "because"), rows))
    screen.print("This was a dry run: nothing was stored.")


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
