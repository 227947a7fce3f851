"""The command `millrace partitions`.

Belongs here: how log partitions look. Not here: what is counted; that is `sql/functions/partition_info.sql`.
"""

from collections.abc import Sequence

from rich.console import Console

from millrace.platform_defs.cli.options import DsnOption, chosen_store
from millrace.platform_defs.cli.output import table
from millrace.resources.event_store import PartitionInfo

COLUMNS = ("partition", "earliest", "archived", "mark", "events", "bytes", "last activity", "active views")


def partitions_command(dsn: DsnOption = None) -> None:
    """Show what each log partition holds: from its earliest position up to before its high-water mark."""
    with chosen_store(dsn) as store:
        partitions = store.partition_info()
    Console().print(table("Log partitions", COLUMNS, map(_cells, partitions)))


def _cells(info: PartitionInfo) -> Sequence[object]:
    numbers = (info.earliest_position, info.archived_position, info.high_water_mark, info.events, info.bytes)
    activity = info.last_activity and info.last_activity.isoformat(timespec="seconds")
    return (info.partition, *(f"{number:,}" for number in numbers), activity, info.active_views)
