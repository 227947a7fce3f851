"""The read models as assets, one partition per log partition: materializing one rebuilds it from archive and log."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from millrace.assets import OWNERS, Group
from millrace.assets import drains as consumption
from millrace.assets.declared_events import asset_key, by_decider, declared_for
from millrace.assets.lineage import COLUMN_LINEAGE, column_lineage, column_schema, rollup_lineage
from millrace.assets.partitions import VIEW_EVENTS, log_partition_of
from millrace.assets.runs import release_dead
from millrace.assets.shown_partitions import ShownPartitions
from millrace.assets.tables import table_metadata
from millrace.assets.verdicts import judge, repeat_verdicts
from millrace.capture.declaration import Capture
from millrace.drain.commit import Commit
from millrace.drain.limits import Limits
from millrace.drain.view_drain import ViewDrain
from millrace.errors import MillraceError, Unreachable
from millrace.event_schemas.model import DeclaredEvent
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.declared.rollups import Rollup
from millrace.resources.postgres import PostgresResource
from millrace.resources.spark import SparkResource

# One run for all partitions that an operator picks, such as failed ones: sixteen runs would be sixteen processes.
TOGETHER = dg.BackfillPolicy.single_run()


class RebuildConfig(dg.Config):
    """The longest wait of a rebuild for a drain that holds the log partition's lease, in seconds."""

    wait_s: float = 60


def read_model_asset(
    model: ReadModel,
    partitions: dg.StaticPartitionsDefinition,
    archive: Path,
    limits: Limits,
    captures: Iterable[Capture] = (),
    events: Sequence[DeclaredEvent] = (),
    checks: Sequence[dg.AssetChecksDefinition] = (),
) -> dg.AssetsDefinition:
    """Make the asset `read_models/<name>`; `archive` is the folder that a rebuild reads old events from.

    One run rebuilds all log partitions that it is launched for, in one job. Each is recorded separately: if one fails,
    Dagster shows which. In the end the run gives the verdicts of those of the checks that are of this asset.
    """
    lineage = column_lineage(model, captures, events)

    @_asset(
        key=["read_models", model.name],
        partitions_def=partitions,
        # yields nothing: each finished partition is recorded separately below
        output_required=False,
        deps=[
            dg.AssetDep(VIEW_EVENTS, partition_mapping=dg.SpecificPartitionsPartitionMapping([model.view])),
            dg.AssetDep(["event_store", "event_log"]),
            *(dg.AssetDep(asset_key(decider)) for decider in by_decider(declared_for(model, events))),
            *(
                dg.AssetDep(["read_models", other], partition_mapping=dg.AllPartitionMapping())
                for other in sorted({one.model for one in model.lookups.values()})
            ),
        ],
        group_name=Group.READ_MODELS,
        kinds={"spark", "postgres", "table"},
        owners=OWNERS,
        description=f"{model.description} Drains keep it fresh; materializing a partition rebuilds it.",
        metadata={
            "dagster/table_name": f"read_models.{model.name}",
            "dagster/column_schema": column_schema(model),
            COLUMN_LINEAGE: lineage,
            "view": model.view,
        },
    )
    def rebuild(
        context: dg.AssetExecutionContext, config: RebuildConfig, postgres: PostgresResource, spark: SparkResource
    ) -> Iterator[dg.MaterializeResult[None]]:
        failed: list[MillraceError] = []
        shown = ShownPartitions(context.instance, context.run, model, lineage)
        try:
            with postgres.store() as store:
                view = consumption.view_of(store, model)
                release_dead(context.instance, store.lease_owners(view), store.release_owner)
            with ViewDrain(
                postgres.current_dsn(),
                model,
                lambda: spark.spark_session,
                context.run.run_id,
                archive=archive,
                limits=limits,
            ) as consumer:
                for outcome in rebuild_partitions(
                    consumer, [*map(log_partition_of, context.partition_keys)], config.wait_s
                ):
                    if isinstance(outcome, MillraceError):
                        failed.append(outcome)
                        continue
                    with postgres.connect() as connection:
                        table = table_metadata(connection, consumer.model)
                    shown.make_green(
                        {
                            lease.partition: {
                                "events": lease.to_position,
                                "rows": outcome.rows_of[lease.partition],
                                "position": lease.to_position,
                                "events_per_s": round(outcome.events / outcome.seconds, 1),
                                "dagster/partition_row_count": outcome.rows_of[lease.partition],
                            }
                            for lease in outcome.leases
                        },
                        table,
                    )
            # Dagster plans this run's checks with it, and skips them because it yields nothing
            judge(context.instance, [each for each in checks if each.check_key.asset_key == shown.asset], postgres)
        finally:
            repeat_verdicts(context.instance, [shown.asset], context.run.run_id)
        if len(failed) == 1:
            raise failed[0]
        if failed:
            raise dg.Failure("\n".join(map(str, failed)))
        yield from ()

    return rebuild


def rollup_specs(rollups: Iterable[Rollup]) -> list[dg.AssetSpec]:
    """Make the asset of each rollup. It never runs: its groups change with the rows of its read model."""
    return [
        dg.AssetSpec(
            ["read_models", each.name],
            deps=[dg.AssetDep(["read_models", each.of.name], partition_mapping=dg.AllPartitionMapping())],
            group_name=Group.READ_MODELS,
            kinds={"postgres", "table"},
            owners=OWNERS,
            description=f"{each.description} It changes in the transactions that change {each.of.name}.",
            metadata={
                "dagster/table_name": f"read_models.{each.name}",
                "dagster/column_schema": column_schema(each),
                COLUMN_LINEAGE: rollup_lineage(each),
            },
        )
        for each in rollups
    ]


def _asset(**arguments: Any) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:  # noqa: ANN401  as `dg.asset` takes it
    with warnings.catch_warnings():
        # Dagster may still change this argument; its version is pinned, and a test checks it
        warnings.simplefilter("ignore", dg.BetaWarning)
        made: Callable[[Callable[..., Any]], dg.AssetsDefinition] = dg.asset(**arguments, backfill_policy=TOGETHER)
        return made


def rebuild_partitions(
    consumer: ViewDrain, partitions: Sequence[int], wait_s: float
) -> Iterator[Commit | MillraceError]:
    """Rebuild log partitions together, in one job; if that fails, each separately.

    Yields a commit for each group of log partitions that was built together, and an error for each that failed.
    """
    try:
        yield consumer.rebuild(*partitions, wait_s=wait_s)
    except MillraceError as error:
        if len(partitions) == 1 or isinstance(error, Unreachable):
            yield error
            return
    else:
        return
    for partition in partitions:
        yield from rebuild_partitions(consumer, [partition], wait_s)
