"""The command `millrace show partitions`.

Belongs here: how log partitions look. Not here: what is counted (`sql/functions/log/partition_info.sql`).
"""

from collections.abc import Sequence

import typer

from millrace.platform_defs.cli.options import DsnOption, chosen_store
from millrace.platform_defs.cli.output import table
from millrace.platform_defs.screen import Screen
from millrace.resources.event_store import PartitionInfo

app = typer.Typer()

PARTITIONS = ("partition", "earliest", "archived", "mark", "events", "bytes", "last activity", "active views")


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
