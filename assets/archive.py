"""The archive as an asset, one partition per log partition: materializing one extends its Parquet files.

Belongs here: the group `archive`. Not here: writing files (`resources.archive`), giving up what is archived (`resources.retention`).
"""

from pathlib import Path

import dagster as dg

from assets.event_store import OWNERS
from platform_defs.partitions import log_partition_of
from resources.archive import MAX_EVENTS, MIN_EVENTS, archive_partition
from resources.archive_files import SCHEMA
from resources.postgres import PostgresResource

KEY = dg.AssetKey(["archive", "events"])


class ArchiveConfig(dg.Config):
    """How large files are, in events, and whether the last few events are archived in a small one, which later runs replace."""

    max_events: int = MAX_EVENTS
    min_events: int = MIN_EVENTS
    tail: bool = True


def archive_asset(partitions: dg.StaticPartitionsDefinition, root: Path) -> dg.AssetsDefinition:
    """The asset `archive/events` in a folder."""

    @dg.asset(
        key=KEY,
        partitions_def=partitions,
        deps=[dg.AssetKey(["event_store", "event_log"])],
        group_name="archive",
        kinds={"postgres", "parquet"},
        owners=OWNERS,
        description="The log in Parquet files, each checked and listed in event_store.archive_files.",
        metadata={
            "path": dg.MetadataValue.path(str(root)),
            "dagster/column_schema": dg.TableSchema([dg.TableColumn(each.name, str(each.type)) for each in SCHEMA]),
        },
    )
    def archive_events(
        context: dg.AssetExecutionContext, config: ArchiveConfig, postgres: PostgresResource
    ) -> dg.MaterializeResult[None]:
        partition = log_partition_of(context.partition_key)
        report = archive_partition(postgres.current_dsn(), root, partition, **dict(config))
        return dg.MaterializeResult(
            metadata={
                "dagster/row_count": report.written,
                "dagster/partition_row_count": report.events,
                "events": report.events,
                "bytes": report.bytes,
                "files": report.files,
                "archived_offset": report.archived_offset,
                "not_archived": report.high_water_mark - report.archived_offset,
                "events_per_s": round(report.written / max(report.seconds, 0.001), 1),
                **({"note": "another run was at it"} if report.busy else {}),
            }
        )

    return archive_events
