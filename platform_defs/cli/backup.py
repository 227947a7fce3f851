"""The commands `millrace backup` and `millrace restore`.

Belongs here: their options, their progress bar, how results look. Not here: what they do; that is `millrace.resources.backup.backup` and
`millrace.resources.backup.restore`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from millrace.platform_defs.cli.options import DsnOption, chosen_dsn
from millrace.resources.settings import Settings

Folder = Annotated[Path, typer.Argument(help="The folder of the backup.", metavar="DIR", file_okay=False)]


def backup_command(
    folder: Folder,
    archive: Annotated[
        Path | None,
        typer.Option(
            help="The folder of the archive, for what was purged. By default MILLRACE_ARCHIVE_DIR.", file_okay=False
        ),
    ] = None,
    dsn: DsnOption = None,
) -> None:
    """Back up the events and all that consumers have done, as of one moment. Into the same DIR again, only what is new is added."""
    from millrace.resources.backup.backup import backup

    with _bar("Backing up") as bar:
        manifest = backup(
            chosen_dsn(dsn),
            folder,
            archive=archive or Settings().archive_folder,
            progress=lambda done, total: bar.update(bar.task_ids[0], completed=done, total=total),
        )
    rows = {table.table: table.rows for table in manifest.tables}
    _say(
        f"Backed up {manifest.events:,} events of {rows['streams']:,} streams and {rows['views']:,} views"
        f" as of {manifest.taken:%Y-%m-%d %H:%M:%S} UTC: {manifest.bytes:,} bytes in {folder}."
    )
    if manifest.left_out:
        _say(f"Views of read models are not in it, they are built anew: {', '.join(manifest.left_out)}.")


def restore_command(folder: Folder, dsn: DsnOption = None) -> None:
    """Restore a backup into an empty database: all of it, or nothing. Read models are built anew by their next drains."""
    from millrace.resources.backup.restore import restore

    with _bar("Restoring") as bar:
        report = restore(
            chosen_dsn(dsn),
            folder,
            progress=lambda done, total: bar.update(bar.task_ids[0], completed=done, total=total),
        )
    _say(
        f"Restored {report.events:,} events as of {report.manifest.taken:%Y-%m-%d %H:%M:%S} UTC in {report.seconds:,.1f} s."
    )
    if report.manifest.left_out:
        _say(f"Their read models are built anew from the first event: {', '.join(report.manifest.left_out)}.")


def _say(line: str) -> None:
    Console().print(Text(line), soft_wrap=True)


@contextmanager
def _bar(what: str) -> Iterator[Progress]:
    errors = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        bar.add_task(what, total=None)
        yield bar
