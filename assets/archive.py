"""The archive as an asset, one partition per log partition: materializing some extends their Parquet files."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg

from millrace.archive.files import SCHEMA
from millrace.archive.writer import MAX_EVENTS, MIN_EVENTS, archive_partition
from millrace.assets import OWNERS, Group
from millrace.assets.partitions import log_partition_of
from millrace.errors import MillraceError
from millrace.resources.postgres import PostgresResource

KEY = dg.AssetKey(["archive", "events"])


class ArchiveConfig(dg.Config):
    """The size of files, in events.

    `tail`: whether the last few events are archived in a small file, which later runs replace.
    """

    max_events: int = MAX_EVENTS
    min_events: int = MIN_EVENTS
    tail: bool = True


def archive_asset(partitions: dg.StaticPartitionsDefinition, root: Path) -> dg.AssetsDefinition:
    """Make the asset `archive/events` in a folder.

    One run archives all log partitions that it is launched for. Each is recorded as soon as it is done: if one fails,
    Dagster shows which.
    """

    @dg.asset(
        key=KEY,
        partitions_def=partitions,
        # yields nothing: each finished partition is recorded with `log_event` below
        output_required=False,
        deps=[dg.AssetKey(["event_store", "event_log"])],
        group_name=Group.ARCHIVE,
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
    ) -> Iterator[dg.MaterializeResult[None]]:
        failed = []
        with postgres.store() as store:
            store.mark_log("archive")
        for key in context.partition_keys:
            try:
                report = archive_partition(postgres.current_dsn(), root, log_partition_of(key), **dict(config))
            except MillraceError as error:
                failed.append(f"{key}: {error}")
            else:
                metadata: dict[str, float | str] = {
                    "dagster/row_count": report.written,
                    "dagster/partition_row_count": report.events,
                    "events": report.events,
                    "bytes": report.bytes,
                    "files": report.files,
                    "archived_position": report.archived_position,
                    "not_archived": report.high_water_mark - report.archived_position,
                    "events_per_s": round(report.written / max(report.seconds, 0.001), 1),
                    **({"note": "another run was at it"} if report.busy else {}),
                }
                context.log_event(dg.AssetMaterialization(KEY, metadata=metadata, partition=key))
        if failed:
            raise dg.Failure("\n".join(failed))
        yield from ()

    return archive_events
