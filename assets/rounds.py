"""Drains of many views: one run that consumes every view that is due, in rounds.

Belongs here: starting a shared drain and showing the work of each view in Dagster. Not here: the loop
(`millrace.resources.consumption.rounds`), a drain of one view (`consumption`).

The run belongs to no partition. It records the progress of each view on the view's own partition of
`consumption/view_events`, and on those of its read model, as a run of its own would. A view that fails leaves, and a
run of its own is started for it: that one is red.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import dagster as dg

from millrace.assets.consumption import DrainProgress
from millrace.assets.declarations import Declarations
from millrace.assets.partitions import VIEWS
from millrace.assets.runs import release_dead
from millrace.resources.consumption.commit import Commit
from millrace.resources.consumption.rounds.drain import SharedDrain
from millrace.resources.consumption.rounds.member import Member
from millrace.resources.consumption.rounds.plan import ROUND_CONFIGURATION
from millrace.resources.postgres.resource import PostgresResource
from millrace.resources.spark import spark_session

SHARED_JOB = "drain_views"


class SharedDrainConfig(dg.Config):
    """How long a drain of many views runs, in seconds."""

    budget_s: float = 3600
    idle_s: float = 30


def shared_drain_job(declared: Declarations, archive: Path, servers: Mapping[str, object]) -> dg.JobDefinition:
    """Make the job that drains all declared read models.

    Args:
        declared: The declarations.
        archive: The folder that new versions may need.
        servers: The resource `postgres`, and others. A job that has them already keeps Dagster from making the sensors
            anew, which it warns of.
    """

    @dg.op(description="Claims for all views at once, builds them in one Spark job, and commits each by itself.")
    def rounds(context: dg.OpExecutionContext, config: SharedDrainConfig, postgres: PostgresResource) -> None:
        if (older := _older_drain(context, postgres)) is not None:
            context.log.info("run %s drains all views already", older)
            return
        dsn = postgres.current_dsn()
        progress: dict[str, DrainProgress] = {}

        def on_commit(member: Member, commit: Commit) -> None:
            assert member.model is not None
            view = member.declared.view
            if view not in progress:
                progress[view] = DrainProgress(context, member.declared, member.model.view, dsn)
            progress[view].add(commit)

        def on_leave(member: Member) -> None:
            context.log.warning("%s goes on without this run: %s", member.declared.view, member.away)

        with (
            ExitStack() as opened,
            SharedDrain(
                dsn,
                [*declared.models.values()],
                # opened when there is something to build; its settings are those of rounds
                cache(lambda: opened.enter_context(spark_session(ROUND_CONFIGURATION))),
                context.run_id,
                archive=archive,
                on_commit=on_commit,
                on_leave=on_leave,
            ) as drain,
        ):
            views = [member.declared.view for member in drain.members]
            context.instance.add_dynamic_partitions(str(VIEWS.name), views)
            with postgres.store() as store:
                owners = {owner for view in views if store.is_registered(view) for owner in store.lease_owners(view)}
                release_dead(context.instance, owners, store.release_owner)
            try:
                drain.run(budget_s=config.budget_s, idle_s=config.idle_s)
                if drain.overtaken:
                    context.log.info("the next run goes on, with the changed %s", ", ".join(drain.overtaken))
            finally:
                for each in progress.values():
                    each.finish()

    @dg.job(
        name=SHARED_JOB,
        description="Consumes the new events of all views that are due.",
        # a run whose process and code server both died would stay STARTED for ever
        tags={"dagster/max_runtime": 7200},
        executor_def=dg.in_process_executor,
        resource_defs=servers,
    )
    def job() -> None:
        rounds()

    return job


def _older_drain(context: dg.OpExecutionContext, postgres: PostgresResource) -> str | None:
    """Return another run that drains all views, if one lives."""
    records = context.instance.get_run_records(
        dg.RunsFilter(job_name=SHARED_JOB, statuses=[dg.DagsterRunStatus.STARTED]), limit=10
    )
    others = [record.dagster_run.run_id for record in records if record.dagster_run.run_id != context.run_id]
    with postgres.store() as store:
        return next((run for run in others if store.attached_views(run)), None)
