"""Read models as of moments of the log, as an asset: a run builds one, and reports its table."""

import time
from datetime import timedelta
from pathlib import Path

import dagster as dg

from millrace.assets import OWNERS, Group
from millrace.assets.declarations import Declarations
from millrace.assets.declared_events import declared_for
from millrace.drain.as_of import build_as_of, mark_at
from millrace.event_schemas.registering import require_as_declared
from millrace.resources.postgres import PostgresResource
from millrace.resources.spark import SparkResource

KEY = dg.AssetKey(["consumption", "as_of"])


class AsOfConfig(dg.Config):
    """The read model, the time that it is built as of (UTC if without an offset), and the days that it is kept."""

    model: str
    time: str
    keep_days: float = 7


def as_of_asset(found: Declarations, archive: Path) -> dg.AssetsDefinition:
    """Make the asset that builds a read model as of a moment; `archive` is the folder with old events."""

    @dg.asset(
        key=KEY,
        deps=[dg.AssetKey(["event_store", "event_log"])],
        group_name=Group.CONSUMPTION,
        kinds={"spark", "postgres", "table"},
        owners=OWNERS,
        description="Builds a read model as it was at a time, in a table of its own, from archive and log.",
    )
    def as_of(config: AsOfConfig, postgres: PostgresResource, spark: SparkResource) -> dg.MaterializeResult[None]:
        model = found.model(config.model)
        began = time.monotonic()
        with postgres.store() as store:
            require_as_declared(store, [event.model for event in declared_for(model, found.events)])
            mark = mark_at(store, config.time)
        built = build_as_of(
            postgres.current_dsn(),
            model,
            lambda: spark.spark_session,
            mark,
            keep=timedelta(days=config.keep_days),
            archive=archive,
        )
        return dg.MaterializeResult(
            metadata={
                "dagster/table_name": f"read_models.{built.name}",
                "dagster/row_count": built.rows,
                "moment": built.mark_id,
                "marked_at": dg.MetadataValue.timestamp(built.marked_at),
                "marks": list(mark.marks),
                "failed_streams": built.failed_streams,
                "seconds": round(time.monotonic() - began, 3),
                "expires_at": dg.MetadataValue.timestamp(built.expires_at),
            }
        )

    return as_of
