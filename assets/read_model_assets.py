"""The read models as assets, one partition per log partition: materializing one rebuilds it from archive and log.

Belongs here: the group `read_models`. Not here: declarations (`assets/read_models/`), the rebuild (`resources.consumer`).
"""

import dagster as dg

from assets import consumption
from assets.event_store import OWNERS
from platform_defs.partitions import log_partition_of
from resources.consumer import Consumer
from resources.postgres import PostgresResource
from resources.read_model import ReadModel
from resources.settings import Settings
from resources.spark import SparkResource


class RebuildConfig(dg.Config):
    """How long a rebuild waits for a drain that holds the log partition's lease, in seconds."""

    wait_s: float = 60


def read_model_asset(model: ReadModel, partitions: dg.StaticPartitionsDefinition) -> dg.AssetsDefinition:
    """The asset `read_models/<name>`."""

    @dg.asset(
        key=["read_models", model.name],
        partitions_def=partitions,
        deps=[
            dg.AssetDep(consumption.KEY, partition_mapping=dg.SpecificPartitionsPartitionMapping([model.view])),
            dg.AssetDep(["event_store", "event_log"]),
        ],
        group_name="read_models",
        kinds={"spark", "postgres", "table"},
        owners=OWNERS,
        description=f"{model.description} Drains keep it fresh; materializing a partition rebuilds it.",
        metadata={
            "dagster/table_name": f"read_models.{model.name}",
            "dagster/column_schema": dg.TableSchema(
                [dg.TableColumn(name, type_) for name, type_ in model.public_columns().items()]
            ),
            "view": model.view,
        },
    )
    def rebuild(
        context: dg.AssetExecutionContext, config: RebuildConfig, postgres: PostgresResource, spark: SparkResource
    ) -> dg.MaterializeResult[None]:
        partition = log_partition_of(context.partition_key)
        with postgres.store() as store:
            consumption.release_dead_owners(context.instance, store, consumption.view_of(store, model))
        archive = Settings().archive_folder
        with Consumer(
            postgres.current_dsn(), model, lambda: spark.spark_session, context.run.run_id, archive=archive
        ) as consumer:
            commit = consumer.rebuild(partition, wait_s=config.wait_s)
        return dg.MaterializeResult(
            metadata={
                "events": commit.events,
                "rows": commit.rows,
                "position": commit.leases[0].to_offset,
                "events_per_s": round(commit.events / commit.seconds, 1),
                "dagster/partition_row_count": commit.rows,
            }
        )

    return rebuild
