"""Drains: the asset `consumption/view_events`, one partition per view."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import dagster as dg
import psycopg

from millrace.assets import OWNERS, Group
from millrace.assets.declarations import Declarations
from millrace.assets.lineage import column_lineage
from millrace.assets.partitions import VIEW_EVENTS, VIEWS
from millrace.assets.runs import Progress, one_try, release_dead
from millrace.assets.shown_partitions import GREEN, RUNNING, ShownPartitions
from millrace.assets.tables import table_metadata
from millrace.assets.verdicts import LAG_CHECK
from millrace.capture.declaration import Capture
from millrace.drain.build_errors import cause, failures
from millrace.drain.commit import Commit
from millrace.drain.limits import Limits
from millrace.drain.report import DrainReport, PartitionsFailed
from millrace.drain.view_drain import ViewDrain
from millrace.event_store import PartitionLag
from millrace.event_store.platform import PlatformStore
from millrace.handlers.push import push_events
from millrace.postgres.connecting import connect
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.stored.versions import current_version
from millrace.redact import printable
from millrace.resources.postgres import PostgresResource
from millrace.resources.spark import SparkResource
from millrace.settings import Settings


class DrainConfig(dg.Config):
    """The time budget of a drain, in seconds."""

    budget_s: float = 600
    idle_s: float = 30


def view_events_asset(declared: Declarations, settings: Settings) -> dg.AssetsDefinition:
    """Make the asset with a partition for each view: materializing it drains the view.

    A view of a declared read model is built into its table, any other view is pushed to its URL. If Postgres no longer
    has the history, the drain reads it from the archive.
    """
    models = {model.view: model for model in declared.models.values()}

    @dg.asset(
        key=VIEW_EVENTS,
        partitions_def=VIEWS,
        deps=[dg.AssetKey(["event_store", "event_log"]), dg.AssetKey(["event_store", "checkpoints"])],
        group_name=Group.CONSUMPTION,
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
            held = store.lease_owners(view_of(store, model) if model else view)
            release_dead(context.instance, held, store.release_owner)
        with one_try(postgres, view, context.run.run_id):
            if model:
                report, view = drain_read_model(
                    context, config, model, postgres.current_dsn(), spark, settings, declared.captures.values()
                )
            else:
                for fault in declared.faults_of("read_models"):
                    context.log.warning("Its read model may be the one that fails to load: %s", fault)
                pushed = push_events(
                    postgres.current_dsn(),
                    view,
                    budget_s=config.budget_s,
                    idle_s=config.idle_s,
                    allowed=settings.listed_push_allow,
                    owner=context.run.run_id,
                    keys=settings.keys,
                    on_failure=lambda error: context.log.warning("A delivery failed: %s", printable(error)),
                )
                report = DrainReport(events=pushed.events, busy_s=pushed.busy_s)
        with postgres.store() as store:
            return dg.MaterializeResult(
                metadata=drain_metadata(report) | waiting_metadata(store, view) | lag_metadata(store.view_lag(view))
            )

    return view_events


def drain_read_model(
    context: dg.AssetExecutionContext,
    config: DrainConfig,
    model: ReadModel,
    dsn: str,
    spark: SparkResource,
    settings: Settings,
    captures: Iterable[Capture] = (),
) -> tuple[DrainReport, str]:
    """Drain a read model under the run's id and record the progress on its partitions.

    Return the report, and the view of the event store that was drained.
    """
    progress: DrainProgress | None = None
    try:
        with ViewDrain(
            dsn,
            model,
            lambda: spark.spark_session,
            context.run.run_id,
            archive=settings.archive_folder,
            limits=Limits.of(settings),
        ) as consumer:
            progress = DrainProgress(context, model, consumer.model.view, dsn, captures)
            try:
                report = consumer.drain(budget_s=config.budget_s, idle_s=config.idle_s, on_commit=progress.add)
            except BaseException:
                with _all_the_same(context, "its last state cannot be shown"):
                    progress.finish()
                raise
            progress.finish()
            return report, consumer.model.view
    except PartitionsFailed as error:
        with _all_the_same(context, "its log partitions cannot be shown as failed"):
            ShownPartitions(context.instance, context.run, model).make_red(error.causes)
        raise
    except failures() as error:
        # the error is of no single log partition: all that made no progress wait for the same reason
        error_text = cause(error)
        with _all_the_same(context, "its log partitions cannot be shown as failed"):
            behind = progress.behind() if progress else _waiting(dsn, model, settings.log_partitions)
            ShownPartitions(context.instance, context.run, model).make_red(dict.fromkeys(behind, error_text))
        raise


@contextmanager
def _all_the_same(context: dg.AssetExecutionContext, message: str) -> Iterator[None]:
    # an error while showing must not hide why the drain failed
    try:
        yield
    except Exception as error:  # noqa: BLE001  whatever Dagster's storage, or a server that went away, raises
        context.log.warning("%s: %s", message, error)


def _waiting(dsn: str, model: ReadModel, log_partitions: int) -> list[int]:
    """Return the log partitions with events for a model: all, if no drain has made this version of it yet."""
    with connect(dsn) as connection:
        built = current_version(connection, model)
        if built is None:
            return [*range(log_partitions)]
        return [lag.partition for lag in PlatformStore(connection).view_lag(built.view) if lag.lag_seconds is not None]


class DrainProgress(Progress[DrainReport]):
    """Shows a running drain in Dagster, and its state in the end.

    Each time it records a materialization of the drain's own asset with numbers to plot, of the read model's log
    partitions that moved, and the model's lag against its objective. A log partition that is not green becomes green
    with its first rows, or at once if it is up to date.
    """

    def __init__(
        self,
        context: dg.AssetExecutionContext | dg.OpExecutionContext,
        model: ReadModel,
        view: str,
        dsn: str,
        captures: Iterable[Capture] = (),
    ) -> None:
        super().__init__(self._record)
        self._context = context
        self._model = model
        self._view = view
        self._dsn = dsn
        self._sofar = DrainReport()
        self._events: Counter[int] = Counter()
        self._shown = ShownPartitions(context.instance, context.run, model, column_lineage(model, captures))
        # log partitions that Dagster shows as green, as far as this drain knows; None: ask Dagster
        self._green: set[int] | None = None
        self._lags: Sequence[PartitionLag] | None = None
        self._table: Mapping[str, object] = {}

    def begin(self) -> None:
        """Ask Dagster again which log partitions are green, and make the others green that are up to date."""
        with connect(self._dsn) as connection:
            self._read_table(connection)
            self._show_partitions(PlatformStore(connection).view_lag(self._view), ())

    def add(self, commit: Commit) -> None:
        """Count a commit, and report if it is time."""
        # if all wanted events failed, the log partitions are not shown as built
        built = commit.leases if commit.rows or not commit.failures else ()
        for lease in built:
            self._events[lease.partition] += lease.to_position - lease.from_position
        self._lags = None
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
        self.step(self._sofar)
        missing = [lease for lease in built if self._green is None or lease.partition not in self._green]
        if missing:
            self._write({lease.partition: lease.to_position for lease in missing})

    def behind(self) -> list[int]:
        """Return the log partitions that made no progress although they have events that the view wants."""
        with connect(self._dsn) as connection:
            lags = PlatformStore(connection).view_lag(self._view)
        moved = self._sofar.moved
        return [lag.partition for lag in lags if lag.lag_seconds is not None and lag.partition not in moved]

    def finish(self) -> None:
        """Show the final state of the drain, unless it was shown last."""
        if self._lags is None or any(lag.lag for lag in self._lags):
            self.show(self._sofar)

    def _record(self, sofar: DrainReport) -> None:
        with connect(self._dsn) as connection:
            store = PlatformStore(connection)
            lags = store.view_lag(self._view)
            waiting = waiting_metadata(store, self._view)
            self._read_table(connection)
        metadata = lag_metadata(lags)
        # the drain's own asset first: Dagster calls an asset outdated that is older than its upstream
        self._context.log_event(
            dg.AssetMaterialization(
                VIEW_EVENTS, partition=self._model.view, metadata={**drain_metadata(sofar), **waiting, **metadata}
            )
        )
        self._show_partitions(lags, self._events)
        self._lags = lags

    def _read_table(self, connection: psycopg.Connection) -> None:
        built = current_version(connection, self._model)
        self._table = table_metadata(connection, built) if built else {}

    def _show_partitions(self, lags: Sequence[PartitionLag], moved: Collection[int]) -> None:
        """Write only changed log partitions: those that moved, and those that another run brought up to date."""
        states = self._shown.states([lag.partition for lag in lags])
        self._green = {partition for partition, state in states.items() if state == GREEN}
        # a running rebuild records its own result in the end
        current = {partition for partition, state in states.items() if state in {GREEN, RUNNING}}
        self._write(
            {
                lag.partition: lag.position
                for lag in lags
                # a log partition without events for this model is up to date, too
                if lag.partition in moved or (lag.lag == 0 and lag.exact and lag.partition not in current)
            }
        )

    def _write(self, positions: Mapping[int, int]) -> None:
        self._shown.make_green(
            {
                partition: {"events": self._events.pop(partition, 0), "position": position}
                for partition, position in positions.items()
            },
            self._table,
        )
        if self._green is not None:
            self._green |= set(positions)


@dataclass(frozen=True)
class Objective:
    """The longest time that an event may wait for a view.

    Attributes:
        asset: The asset that shows it.
        stands_for: The subject that the store calls late: a read_model or a view, and its name.
        max_lag_s: The seconds after which it is late.
        view: Finds the view in the event store; returns None if there is none yet.
    """

    asset: dg.AssetKey
    stands_for: tuple[str, str]
    max_lag_s: float
    view: Callable[[PlatformStore], str | None]


def model_objective(model: ReadModel) -> Objective:
    """Return the objective of a read model, for the declared version."""

    def view(store: PlatformStore) -> str | None:
        built = current_version(store.connection, model)
        return built.view if built else None

    return Objective(dg.AssetKey(["read_models", model.name]), ("read_model", model.name), model.max_lag_s, view)


def late_ones(store: PlatformStore) -> set[tuple[str, str]]:
    """Return the late subjects, as the store judges, each as `Objective.stands_for`."""
    return {(each.about, each.subject) for each in store.standing() if each.kind == "late"}


def lag_evaluation(objective: Objective, lag: Mapping[str, float], *, passed: bool) -> dg.AssetCheckEvaluation:
    """Return the verdict on a view's lag against its objective, as its check does; `lag` is from `lag_metadata`."""
    return dg.AssetCheckEvaluation(
        asset_key=objective.asset,
        check_name=LAG_CHECK,
        passed=passed,
        metadata={
            name: dg.MetadataValue.float(float(number))
            for name, number in {**lag, "objective_seconds": objective.max_lag_s}.items()
        },
        severity=dg.AssetCheckSeverity.WARN,
    )


def view_of(store: PlatformStore, model: ReadModel) -> str:
    """Return the event store's view of a read model, for the declared version."""
    return (current_version(store.connection, model) or model).view


def drain_metadata(report: DrainReport) -> dict[str, float]:
    """Return the numbers of a drain's work, as metadata that Dagster plots."""
    return {
        "events": report.events,
        "rows": report.rows,
        "batches": report.batches,
        "failed_streams": report.failed_streams,
        "events_per_s": round(report.events / report.busy_s, 1) if report.busy_s else 0.0,
    }


def waiting_metadata(store: PlatformStore, view: str) -> dict[str, float]:
    """Return the number of a view's streams that wait for an operator, as metadata that Dagster plots."""
    (info,) = store.view_info(view)
    return {"dead_letters": info.dead_letters}


def lag_metadata(lags: Sequence[PartitionLag]) -> dict[str, float]:
    """Return a view's lag, as metadata that Dagster plots: pending events that it wants, age of the oldest in s."""
    return {
        "lag": sum(lag.lag for lag in lags),
        "lag_seconds": round(max((lag.lag_seconds or 0.0 for lag in lags), default=0.0), 3),
    }
