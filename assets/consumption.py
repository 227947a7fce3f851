"""Drains: the asset `consumption/view_events`, one partition per view.

Belongs here: starting a consumer for a view and showing what it did in Dagster. Not here: the loop (`millrace.resources.consumption.consumer`).
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence

import dagster as dg
import psycopg

from millrace.assets.event_store import OWNERS
from millrace.assets.partitions import VIEWS, log_partition_key
from millrace.resources.consumption.commit import Commit
from millrace.resources.consumption.consumer import Consumer
from millrace.resources.consumption.report import DrainReport
from millrace.resources.event_store import EventStore, PartitionLag
from millrace.resources.postgres.resource import PostgresResource
from millrace.resources.read_models.declaration import ReadModel
from millrace.resources.read_models.versions import current_version
from millrace.resources.settings import Settings
from millrace.resources.spark.resource import SparkResource
from millrace.resources.subscriptions.push import push_events

KEY = dg.AssetKey(["consumption", "view_events"])
# Dagster keeps every event for ever: sixteen partitions a view add up
REPORT_EVERY_S = 300.0
LAG_CHECK = "lag_within_objective"


class DrainConfig(dg.Config):
    """How long a drain runs, in seconds."""

    budget_s: float = 600
    idle_s: float = 30


def view_events_asset(models: Mapping[str, ReadModel]) -> dg.AssetsDefinition:
    """The asset whose partition `<view>` is a drain of that view; `models` are the declared read models by view."""

    @dg.asset(
        key=KEY,
        partitions_def=VIEWS,
        deps=[dg.AssetKey(["event_store", "event_log"]), dg.AssetKey(["event_store", "checkpoints"])],
        group_name="consumption",
        kinds={"spark", "postgres"},
        owners=OWNERS,
        description="Consumes a view's new events: claim, build in Spark, commit rows and checkpoint together.",
    )
    def view_events(
        context: dg.AssetExecutionContext, config: DrainConfig, postgres: PostgresResource, spark: SparkResource
    ) -> dg.MaterializeResult[None]:
        view = context.partition_key
        model = models.get(view)
        with postgres.store() as store:
            release_dead_owners(context.instance, store, view_of(store, model) if model else view)
        if model:
            report, view = drain_read_model(context, config, model, postgres.current_dsn(), spark)
        else:
            pushed = push_events(postgres.current_dsn(), view, budget_s=config.budget_s, idle_s=config.idle_s)
            report = DrainReport(batches=pushed.batches, events=pushed.events, busy_s=pushed.busy_s)
        with postgres.store() as store:
            return dg.MaterializeResult(
                metadata=drain_metadata(report) | waiting_metadata(store, view) | lag_metadata(store.view_lag(view))
            )

    return view_events


def drain_read_model(
    context: dg.AssetExecutionContext, config: DrainConfig, model: ReadModel, dsn: str, spark: SparkResource
) -> tuple[DrainReport, str]:
    """Drain a read model under the run's id and record the progress on its partitions; return what was done, and the view it was."""
    archive = Settings().archive_folder
    with Consumer.open(dsn, model, lambda: spark.spark_session, context.run.run_id, archive=archive) as consumer:
        progress = Progress(context, model, consumer.model.view, dsn)
        try:
            report = consumer.drain(budget_s=config.budget_s, idle_s=config.idle_s, on_commit=progress.add)
            return report, consumer.model.view
        finally:
            progress.report()


class Progress:
    """Shows a running drain in Dagster: after its first commit, then every five minutes, and in the end.

    Each time it records a materialization of the read model's log partitions that are up to date or moved, one of the
    drain's own asset with numbers that plot, and how the model stands to its objective.
    """

    def __init__(self, context: dg.AssetExecutionContext, model: ReadModel, view: str, dsn: str) -> None:
        self._context = context
        self._model = model
        self._view = view
        self._dsn = dsn
        self._sofar = DrainReport()
        self._events: Counter[int] = Counter()
        self._reported_at = float("-inf")

    def add(self, commit: Commit) -> None:
        """Take note of a commit, and report if it is time."""
        for lease in commit.leases:
            self._events[lease.partition] += lease.to_position - lease.from_position
        self._sofar.add(commit)
        for failure in commit.failures:
            self._context.log.warning(
                "%s %s fails at offset %d and waits: %s",
                failure.stream.decider,
                failure.stream.decider_id,
                failure.offset,
                failure.error,
            )
        self._context.log.debug(
            "committed %d events into %d rows in %.2f s", commit.events, commit.rows, commit.seconds
        )
        if time.monotonic() - self._reported_at >= REPORT_EVERY_S:
            self.report()

    def report(self) -> None:
        """Record how it stands."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            store = EventStore(connection)
            lags = store.view_lag(self._view)
            waiting = waiting_metadata(store, self._view)
        metadata = lag_metadata(lags)
        # first, for Dagster takes what is older than its upstream for out of date
        self._context.log_event(
            dg.AssetMaterialization(
                KEY, partition=self._model.view, metadata={**drain_metadata(self._sofar), **waiting, **metadata}
            )
        )
        asset = dg.AssetKey(["read_models", self._model.name])
        for lag in lags:
            # one that has nothing for this model is up to date, too
            if self._events[lag.partition] or lag.pending == 0:
                self._context.log_event(
                    dg.AssetMaterialization(
                        asset,
                        partition=log_partition_key(lag.partition),
                        metadata={"events": self._events[lag.partition], "position": lag.position},
                    )
                )
        self._context.instance.report_runless_asset_event(
            dg.AssetCheckEvaluation(
                asset_key=asset,
                check_name=LAG_CHECK,
                passed=metadata["lag_seconds"] <= self._model.max_lag_s,
                metadata={name: dg.MetadataValue.float(float(number)) for name, number in metadata.items()},
                severity=dg.AssetCheckSeverity.WARN,
            )
        )
        self._events.clear()
        self._reported_at = time.monotonic()


def view_of(store: EventStore, model: ReadModel) -> str:
    """The event store's view that a read model is consumed as: that of the version that its declaration is."""
    return (current_version(store.connection, model) or model).view


def release_dead_owners(instance: dg.DagsterInstance, store: EventStore, view: str) -> None:
    """Give back leases of runs that Dagster knows to be over: a run that was killed could not."""
    for owner in store.lease_owners(view):
        run = instance.get_run_by_id(owner)
        if run is not None and run.is_finished:
            store.release_owner(owner)


def drain_metadata(report: DrainReport) -> dict[str, float]:
    """What a drain did, under names that plot."""
    return {
        "events": report.events,
        "rows": report.rows,
        "batches": report.batches,
        "failed_streams": report.failed_streams,
        "events_per_s": round(report.events / report.busy_s, 1) if report.busy_s else 0.0,
    }


def waiting_metadata(store: EventStore, view: str) -> dict[str, float]:
    """What of a view waits for an operator, under names that plot."""
    (info,) = store.view_info(view)
    return {"dead_letters": info.dead_letters}


def lag_metadata(lags: Sequence[PartitionLag]) -> dict[str, float]:
    """How far a view is behind, under names that plot: events that it wants, and the age of the oldest, in seconds."""
    return {
        "lag": sum(lag.pending for lag in lags),
        "lag_seconds": round(max((lag.pending_age_s or 0.0 for lag in lags), default=0.0), 3),
    }
