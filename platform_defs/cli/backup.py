"""The commands on history as a whole: `millrace backup`, `restore`, `purge`."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from millrace.platform_defs.cli.options import DsnOption, chosen_dsn, chosen_store
from millrace.platform_defs.cli.output import progress_bar, table
from millrace.platform_defs.screen import Screen
from millrace.settings import Settings

app = typer.Typer()

Folder = Annotated[Path, typer.Argument(help="The folder of the backup.", metavar="DIR", file_okay=False)]

PURGED = ("partition", "from", "to", "events", "left", "files checked", "not given up, because")


@app.command("purge")
def purge_command(
    before: Annotated[datetime, typer.Option(help="Events that were appended before this time, in UTC.")],
    archive: Annotated[
        Path | None, typer.Option(help="The folder of the archive. By default MILLRACE_ARCHIVE_DIR.", file_okay=False)
    ] = None,
    reason: Annotated[str | None, typer.Option(help="Why, for the audit log.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, change nothing.")] = False,
    dsn: DsnOption = None,
) -> None:
    """Delete old events that are archived and that no view needs.

    The archive is checked first. Run it again if it is interrupted, or if it says that events are left.
    """
    from millrace.archive.purge import purge_before, require_done

    errors = Screen(stderr=True)
    with chosen_store(dsn) as store, errors.status("Checking the archive ...") as status:
        results = purge_before(
            store.connection,
            archive or Settings().archive_folder,
            before if before.tzinfo else before.replace(tzinfo=UTC),
            reason=reason,
            dry_run=dry_run,
            progress=lambda partition, events: status.update(f"Log partition {partition}: {events:,} events deleted"),
        )
    title = "Purged" + (" (dry run, nothing was changed)" if dry_run else "")
    rows = []
    for each in results:
        numbers = (each.from_position, each.to_position, each.events, each.left, each.files)
        rows.append((each.partition, *(f"{number:,}" for number in numbers), each.refused))
    Screen().print(table(title, PURGED, rows))
    require_done(results)


@app.command("backup")
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
    """Back up the events and what consumers have done, as of one moment.

    A second backup into the same DIR adds only what is new.
    """
    from millrace.backup.backup import backup

    with progress_bar("Backing up") as bar:
        manifest = backup(
            chosen_dsn(dsn),
            folder,
            archive=archive or Settings().archive_folder,
            progress=lambda done, total: bar.update(bar.task_ids[0], completed=done, total=total),
        )
    rows = {table.table: table.rows for table in manifest.tables}
    _print_line(
        f"Backed up {manifest.events:,} events and {rows['views']:,} views"
        f" as of {manifest.cut_time:%Y-%m-%d %H:%M:%S} UTC: {manifest.bytes:,} bytes in {folder}."
    )
    if manifest.left_out:
        _print_line(f"Views of read models are not in it, they are built anew: {', '.join(manifest.left_out)}.")


@app.command("restore")
def restore_command(
    folder: Folder,
    keys: Annotated[
        Path | None,
        typer.Option(help="The folder of keys of people, if it has any. By default MILLRACE_KEYS.", file_okay=False),
    ] = None,
    dsn: DsnOption = None,
) -> None:
    """Restore a backup into an empty database: all of it, or nothing.

    The next drains rebuild the read models.
    """
    from millrace.backup.restore import restore

    with progress_bar("Restoring") as bar:
        report = restore(
            chosen_dsn(dsn),
            folder,
            keys=keys or Settings().keys,
            progress=lambda done, total: bar.update(bar.task_ids[0], completed=done, total=total),
        )
    _print_line(
        f"Restored {report.events:,} events as of {report.manifest.cut_time:%Y-%m-%d %H:%M:%S} UTC"
        f" in {report.seconds:,.1f} s."
    )
    if report.manifest.left_out:
        _print_line(f"Their read models are built anew from the first event: {', '.join(report.manifest.left_out)}.")


def _print_line(line: str) -> None:
    Screen().print(Text(line), soft_wrap=True)
