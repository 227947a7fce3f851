"""Drains of many views: one run that consumes every view that is due, in rounds, and lives on while nothing is due.

A run lives for an hour. Shortly before its end the next one begins: it waits, warm, until the first one hands over.

The run belongs to no partition: it records each view's progress as the view's own run would. A view that fails leaves
the run, and a separate run is started for it: that one is red.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import dagster as dg
import psycopg

from millrace.assets.declarations import Declarations, code_stamp
from millrace.assets.drains import DrainProgress, view_of
from millrace.assets.partitions import VIEWS
from millrace.assets.runs import one_try, release_dead, while_it_runs
from millrace.capture.declaration import Capture
from millrace.drain.collected import ROUND_CONFIGURATION
from millrace.drain.commit import Commit
from millrace.drain.limits import Limits
from millrace.drain.loop import Drain
from millrace.drain.member import Member
from millrace.errors import MillraceError
from millrace.resources.postgres import PostgresResource
from millrace.spark import spark_when_needed
from millrace.spark.session import holds_foreign_cores

SHARED_JOB = "drain_views"
# the name of this job's drain in the store
ALL_VIEWS = ""
BUDGET_S = 3600.0
# this long before the end of a drain the next run is requested: a process starts in seconds, on a busy machine in tens
RENEW_S = 120.0
DRAIN_TAG = "millrace/drain"
# of a run that waits for the end of another one
RENEWS_TAG = "millrace/renews"


class SharedDrainConfig(dg.Config):
    """How long a drain of many views runs, in seconds; it ends earlier after `idle_s` without events.

    Unset, that is soon where its session holds the cores of a cluster, and never elsewhere.
    """

    budget_s: float = BUDGET_S
    idle_s: float | None = None


def shared_drain_job(
    declared: Declarations, archive: Path, limits: Limits, servers: Mapping[str, object]
) -> dg.JobDefinition:
    """Make the job that drains all declared read models.

    Args:
        declared: The declarations.
        archive: The folder of the archive, which new versions may need.
        limits: The time limits of a round.
        servers: The resource `postgres`, and others. If the job has them already, Dagster does not make the sensors
            again, with a warning.
    """

    @dg.op(description="Claims for all views at once, builds them in one Spark job, and commits each by itself.")
    def rounds(context: dg.OpExecutionContext, config: SharedDrainConfig, postgres: PostgresResource) -> None:
        dsn = postgres.current_dsn()
        shown = Shown(context, dsn, declared.captures.values())
        code = code_stamp(declared.package)
        idle_s = (30.0 if holds_foreign_cores() else config.budget_s) if config.idle_s is None else config.idle_s
        renews = RENEWS_TAG in context.run.tags
        with (
            spark_when_needed(ROUND_CONFIGURATION) as spark,
            Drain(
                dsn,
                [*declared.models.values()],
                spark,
                context.run_id,
                archive=archive,
                limits=limits,
                on_commit=shown.commit,
                on_change=shown.change,
                has_new_code=lambda: code_stamp(declared.package) != code,
            ) as drain,
        ):
            if idle_s:
                drain.warm_up()
            with one_try(postgres, ALL_VIEWS, context.run_id, 2 * RENEW_S if renews else 0) as is_first:
                if not is_first:
                    context.log.info("another run drains all views already")
                    return
                declared_views = [member.declared for member in drain.members]
                context.instance.add_dynamic_partitions(str(VIEWS.name), [model.view for model in declared_views])
                with postgres.store() as store:
                    views = {view_of(store, model) for model in declared_views}
                    owners = {
                        owner for view in views if store.is_registered(view) for owner in store.lease_owners(view)
                    }
                    release_dead(context.instance, owners, store.release_owner)
                try:
                    drain.run(budget_s=config.budget_s, idle_s=idle_s)
                    drain.hand_over()
                    if drain.overtaken:
                        context.log.info("the next run continues, with the changed %s", ", ".join(drain.overtaken))
                finally:
                    shown.finish()

    @dg.job(
        name=SHARED_JOB,
        description="Consumes the new events of all views that are due.",
        # without its process and the code server a run would stay STARTED for ever
        tags={"dagster/max_runtime": 7200},
        executor_def=while_it_runs,
        resource_defs=servers,
    )
    def job() -> None:
        rounds()

    return job


class Shown:
    """Shows a shared drain in Dagster: the progress of each view, and the views that left it."""

    def __init__(self, context: dg.OpExecutionContext, dsn: str, captures: Iterable[Capture]) -> None:
        self._context = context
        self._dsn = dsn
        self._captures = list(captures)
        self._progress: dict[str, DrainProgress] = {}
        self._worked: set[str] = set()
        self._away_views: set[str] = set()

    def commit(self, member: Member, commit: Commit) -> None:
        """Count a commit, and report if it is time."""
        self._worked.add(member.view)
        self._report(member.view, lambda: self._of(member).add(commit))

    def change(self, member: Member) -> None:
        """Say in the run's log which views left, and why.

        If a view takes part, its log partitions that are up to date become green, even if another run showed a failure.
        """
        view = member.declared.view
        if member.away is None:
            self._report(member.view, lambda: self._of(member).begin())
            if view in self._away_views:
                self._context.log.info("%s takes part again", view)
        else:
            self._away_views.add(view)
            self._context.log.warning("%s goes on without this run: %s", view, member.away)

    def finish(self) -> None:
        """Show the final state of each view."""
        for view in self._worked:
            self._report(view, self._progress[view].finish)

    def _of(self, member: Member) -> DrainProgress:
        if member.view not in self._progress:
            self._progress[member.view] = DrainProgress(
                self._context, member.declared, member.view, self._dsn, self._captures
            )
        return self._progress[member.view]

    def _report(self, view: str, report: Callable[[], None]) -> None:
        # an error while showing one view, such as a removed one, must not affect the others
        try:
            report()
        except (MillraceError, psycopg.Error, ValueError) as error:
            self._context.log.warning("the progress of %s cannot be shown: %s", view, error)
