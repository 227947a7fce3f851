"""The sensors that start drains: one per declared view, one for the views that only the database knows.

Belongs here: gathering the facts for `plan_polls` and asking for runs. Not here: the decision (`polling`), the drain.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import dagster as dg

from platform_defs.partitions import VIEWS
from platform_defs.polling import ViewRuns, plan_polls
from resources.event_store import ViewPoll
from resources.postgres import PostgresResource
from resources.read_model import ReadModel
from resources.read_model_versions import current_version, is_ready_to_serve

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

VIEW_TAG = "millrace/view"
PARTITION_TAG = "dagster/partition"
RECENT_RUNS = 8
UNFINISHED = (
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
)


def poll_sensor(model: ReadModel, job: "UnresolvedAssetJobDefinition") -> dg.SensorDefinition:
    """The sensor `poll_<view>` of a declared read model."""

    @dg.sensor(
        name=f"poll_{model.view}",
        job=job,
        # the sensor loop rounds up to its next turn of 5 s; shorter delays are kept inside the drain
        minimum_interval_seconds=1,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Starts a drain of {model.view} when it is behind, due, and none is in flight.",
    )
    def poll(context: dg.SensorEvaluationContext, postgres: PostgresResource) -> dg.SensorResult:
        return request_drains(context, [poll_model(postgres, model)])

    return poll


def undeclared_sensor(models: Sequence[ReadModel], job: "UnresolvedAssetJobDefinition") -> dg.SensorDefinition:
    """The sensor `poll_views` for views that were registered only in the database, found without a reload."""
    declared = {model.view for model in models}

    @dg.sensor(
        name="poll_views",
        job=job,
        minimum_interval_seconds=1,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Starts drains of views that were registered by SQL and are pushed to a URL.",
    )
    def poll(context: dg.SensorEvaluationContext, postgres: PostgresResource) -> dg.SensorResult:
        rows = poll_rows(postgres, lambda row: row.view not in declared and bool(row.edge_function_url))
        return request_drains(context, rows)

    return poll


def poll_model(postgres: PostgresResource, model: ReadModel) -> ViewPoll:
    """What the store knows of the view that a declared read model is consumed as, under the name that was declared."""
    with postgres.store() as store:
        built = current_version(store.connection, model)
        ready = built is not None and is_ready_to_serve(store.connection, built)
    rows = poll_rows(postgres, lambda row: row.view == built.view) if built else []
    if not rows:
        # the first drain makes the model's tables and registers its view
        return _unregistered(model)
    return replace(rows[0], view=model.view, due=max(rows[0].due, int(ready)))


def poll_rows(postgres: PostgresResource, wanted: Callable[[ViewPoll], bool]) -> list[ViewPoll]:
    """What the store knows of some views, once new events are sequenced and those that nobody wants are passed over."""
    with postgres.store() as store:
        store.sequence_events()
        rows = [row for row in store.poll_views() if wanted(row)]
        unattended = [row for row in rows if row.mode == "bulk" and row.due and not row.consumers]
        for row in unattended:
            store.pass_over_unwanted(row.view)
        return [row for row in store.poll_views() if wanted(row)] if unattended else rows


def request_drains(context: dg.SensorEvaluationContext, rows: Sequence[ViewPoll]) -> dg.SensorResult:
    """Ask for a drain of each view that is due; say why not for the others."""
    runs = {row.view: view_runs(context.instance, row.view) for row in rows}
    polls = plan_polls(rows, runs, time.time())
    starts = [poll.view for poll in polls if poll.start]
    unknown = [view for view in starts if not context.instance.has_dynamic_partition("views", view)]
    reasons = "; ".join(poll.reason for poll in polls) or "no view is registered that nothing else polls"
    if not starts:
        return dg.SensorResult(skip_reason=reasons)
    context.log.info(reasons)
    return dg.SensorResult(
        # no run_key: Dagster would never retry a run that failed
        run_requests=[dg.RunRequest(partition_key=view, tags={VIEW_TAG: view}) for view in starts],
        dynamic_partitions_requests=[VIEWS.build_add_request(unknown)] if unknown else None,
    )


def view_runs(instance: dg.DagsterInstance, view: str) -> ViewRuns:
    """What Dagster knows of a view's drains, also of those started from the UI."""
    # a run started from the UI has no tag of ours; the partition's tag is on all
    records = instance.get_run_records(dg.RunsFilter(tags={PARTITION_TAG: view}), limit=RECENT_RUNS)
    unfinished = [r for r in records if r.dagster_run.status in UNFINISHED]
    finished = [r for r in records if r.dagster_run.status not in UNFINISHED]
    failures = 0
    for record in finished:
        if record.dagster_run.status != dg.DagsterRunStatus.FAILURE:
            break
        failures += 1
    return ViewRuns(
        in_flight=bool(unfinished),
        started=unfinished[0].start_time if unfinished else None,
        last_ended=finished[0].end_time or finished[0].update_timestamp.timestamp() if finished else None,
        failures=failures,
    )


def _unregistered(model: ReadModel) -> ViewPoll:
    return ViewPoll(
        view=model.view,
        mode="bulk",
        enabled=True,
        pooling_delay_s=model.pooling_delay_s,
        edge_function_url=None,
        due=1,
        consumers=0,
    )
