"""The command `millrace purge`.

Belongs here: its options and how its result looks. Not here: what may be given up; that is `millrace.resources.archive.purge` and
`sql/functions/raise_low_water_mark.sql`.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from millrace.platform_defs.cli.options import DsnOption, chosen_store
from millrace.platform_defs.cli.output import table
from millrace.resources.archive.purge import PurgedPartition, purge_before
from millrace.resources.errors import HistoryNeeded
from millrace.resources.settings import Settings

COLUMNS = ("partition", "from", "to", "events", "files checked", "not given up, because")


def purge_command(
    before: Annotated[datetime, typer.Option(help="Events that were appended before this time, in UTC.")],
    archive: Annotated[
        Path | None, typer.Option(help="The folder of the archive. By default MILLRACE_ARCHIVE_DIR.", file_okay=False)
    ] = None,
    reason: Annotated[str | None, typer.Option(help="Why, for the audit log.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, change nothing.")] = False,
    dsn: DsnOption = None,
) -> None:
    """Delete old events that are archived and that no view needs. The archive is checked first; interrupted, run it again."""
    errors = Console(stderr=True)
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
    Console().print(table(title, COLUMNS, map(_cells, results)))
    refused = [result for result in results if result.refused]
    if refused:
        raise HistoryNeeded(
            f"{len(refused)} of {len(results)} log partitions keep their events, for the reasons above.",
            hint="The others are done. Settle the reasons and run it again.",
        )


def _cells(result: PurgedPartition) -> Sequence[object]:
    numbers = (result.from_position, result.to_position, result.events, result.files)
    return (result.partition, *(f"{number:,}" for number in numbers), result.refused)
