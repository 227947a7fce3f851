"""The sensors that start drains: one per declared view, one for all of these, one for views only in the database.

A tick costs Dagster some 30 ms of CPU. So sensors of many views tick rarely, and `poll_read_models` polls all often.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import dagster as dg

from millrace.assets import in_dagster
from millrace.assets.declarations import Declarations
from millrace.assets.drains import lag_metadata, view_of
from millrace.assets.errors_in_runs import faults_by_asset
from millrace.assets.partitions import VIEWS
from millrace.assets.rounds import ALL_VIEWS, BUDGET_S, DRAIN_TAG, RENEW_S, RENEWS_TAG, SHARED_JOB
from millrace.drain.collected import fits
from millrace.drain.decision import (
    LARGE_BACKLOG,
    PUSHES_AT_ONCE,
    Poll,
    Start,
    alone_behind,
    due,
    in_turn,
    is_served,
    plan,
)
from millrace.event_store import DrainState, ViewPoll
from millrace.event_store.platform import PlatformStore
from millrace.operations.alerts.findings import age
from millrace.platform_defs.checks import objectives
from millrace.platform_defs.freshness import freshness_sensor, subscription_sensor
from millrace.platform_defs.jobs import DRAIN
from millrace.platform_defs.names import PARTITION_TAG, VIEW_TAG
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.declared.upcasts import stored_upcasts
from millrace.read_models.stored.versions import built_and_next, with_upcasts
from millrace.resources.postgres import PostgresResource
from millrace.resources.shared_store import shared_store
from millrace.spark.session import holds_foreign_cores

CAPTURE_TAG = "millrace/capture"
# Dagster starts the queued run with the higher priority first
PRIORITY_TAG = "dagster/priority"
MOST_QUEUED = 1000
MOST_REASONS = 50
MOST_NAMED = 5
# limit of positions ahead of a view that wants at most one of them
MOST_UNWANTED = 1000
# the store knows the runs that have begun
QUEUED = (dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTING)


def view_sensors(declared: Declarations, together: dg.JobDefinition) -> list[dg.SensorDefinition]:
    """Make the sensors of all views: those of declared read models, of subscriptions, and of views of the database."""
    models, subscriptions = [*declared.models.values()], [*declared.subscriptions.values()]
    watching = [subscription_sensor(subscriptions)] if subscriptions else []
    may_be_late, faults = objectives(declared), faults_by_asset(declared)
    watching += [freshness_sensor(may_be_late, faults)] if may_be_late or faults else []
    return [*model_sensors(models, together), *watching, undeclared_sensor(models)]


def model_sensors(models: Sequence[ReadModel], together: dg.JobDefinition) -> list[dg.SensorDefinition]:
    """Make the sensors of declared read models: one for each, and one that polls all of them.

    A model's sensor ticks every N seconds for N models: all of them together tick about once a second.
    """
    each = [poll_sensor(model, together, models) for model in models]
    return [*each, wake_sensor(models, together)] if models else []


def poll_sensor(model: ReadModel, together: dg.JobDefinition, models: Sequence[ReadModel]) -> dg.SensorDefinition:
    """Make the sensor `poll_<view>` of a declared read model; its interval is one second per model.

    `together` is the job that drains many views.
    """

    @dg.sensor(
        name=f"poll_{in_dagster(model.view)}",
        jobs=[DRAIN, together],
        minimum_interval_seconds=len(models),
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Says how {model.view} stands, and starts a drain when it is due: one for all views, or its own.",
    )
    def poll(context: dg.SensorEvaluationContext, postgres: PostgresResource) -> dg.SensorResult:
        (row,) = poll_models(postgres, [model])
        # only a view that is far behind needs to know of the others
        among = poll_models(postgres, models) if row.ahead > LARGE_BACKLOG else []
        polls = plan_views(context.instance, postgres, [(model, row)], zip(models, among, strict=False))
        return _request(context, polls, VIEWS)

    return poll


def wake_sensor(models: Sequence[ReadModel], together: dg.JobDefinition) -> dg.SensorDefinition:
    """Make the sensor `poll_read_models`, which polls all declared read models at once, and often.

    So a drain starts soon after an event, even if the sensor of each view ticks rarely. It skips a view whose own
    sensor is turned off.
    """

    @dg.sensor(
        name="poll_read_models",
        jobs=[DRAIN, together],
        # the sensor loop rounds up to its next turn of 5 s; the drain itself keeps shorter delays
        minimum_interval_seconds=1,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Keeps a drain of all views alive, and starts a view's own as soon as it is due and no run drains it.",
    )
    def poll(context: dg.SensorEvaluationContext, postgres: PostgresResource) -> dg.SensorResult:
        rows = [*zip(models, poll_models(postgres, models), strict=True)]
        waiting = [(model, row) for model, row in rows if row.enabled and row.due and not is_served(row)]
        off = stopped_sensors(context.instance) if waiting else set()
        on = [(model, row) for model, row in waiting if f"poll_{in_dagster(model.view)}" not in off]
        polls = plan_views(context.instance, postgres, on, rows)
        idle = "" if polls else at_a_glance(postgres, rows)
        if not any(each.start for each in polls) and (tags := living_drain(context.instance, postgres, rows)):
            context.log.info(
                "the drain of all views %s", "is renewed" if RENEWS_TAG in tags else "begins, and waits for events"
            )
            return dg.SensorResult(run_requests=[dg.RunRequest(job_name=SHARED_JOB, tags=tags)])
        return _request(context, polls, VIEWS, idle=idle)

    return poll


def at_a_glance(postgres: PostgresResource, rows: Sequence[tuple[ReadModel, ViewPoll]]) -> str:
    """Return one line on all read models: those with the most events to come, since when, and how many are well."""
    behind = sorted((each for each in rows if each[1].due), key=lambda each: (-each[1].due, each[1].view))
    with shared_store(postgres) as store:
        named = [f"{row.view} {due(row)}{_waiting(store, model)}" for model, row in behind[:MOST_NAMED]]
    more = [f"{len(behind) - MOST_NAMED} more are due"] if len(behind) > MOST_NAMED else []
    well = len(rows) - len(behind)
    fresh = f"{well} {'other' if behind else 'read model'}{'s' * (well != 1)} up to date"
    return "; ".join([*named, *more, *([fresh] if well or not behind else [])])


def _waiting(store: PlatformStore, model: ReadModel) -> str:
    view = view_of(store, model)
    oldest_s = lag_metadata(store.view_lag(view))["lag_seconds"] if store.is_registered(view) else 0
    return f" for {age(oldest_s)}" if oldest_s else ""


def living_drain(
    instance: dg.DagsterInstance, postgres: PostgresResource, rows: Sequence[tuple[ReadModel, ViewPoll]]
) -> dict[str, str] | None:
    """Return the tags of a run that keeps a drain of all views alive while nothing is due; None if none is needed.

    A drain that lives has rows for a rare event within a second, and costs less than a few starts an hour. None lives
    where it would hold the cores of a cluster.
    """
    if holds_foreign_cores():
        return None
    state = drain_states(postgres, [ALL_VIEWS])[ALL_VIEWS]
    is_ending = state.lives and state.since_s is not None and state.since_s >= BUDGET_S - RENEW_S
    if not is_ending and state.since_s is not None:
        return None
    off = stopped_sensors(instance)
    if not any(row.enabled and fits(model) and f"poll_{in_dagster(model.view)}" not in off for model, row in rows):
        return None
    # the drain that ends is one of them
    under_way = dg.RunsFilter(job_name=SHARED_JOB, statuses=[*QUEUED, dg.DagsterRunStatus.STARTED])
    if instance.get_runs_count(under_way) > is_ending:
        return None
    if is_ending:
        return {DRAIN_TAG: "together", RENEWS_TAG: "yes"}
    with shared_store(postgres) as store:
        return {DRAIN_TAG: "together"} if store.begin_drain(ALL_VIEWS) else None


def plan_views(
    instance: dg.DagsterInstance,
    postgres: PostgresResource,
    rows: Sequence[tuple[ReadModel, ViewPoll]],
    among: Iterable[tuple[ReadModel, ViewPoll]],
) -> list[Poll]:
    """Decide for declared read models whether to start a drain now, and request those that start.

    `among` are all models that rounds may consume together: one of these may be the only one that is far behind.
    """
    states = drain_states(postgres, [ALL_VIEWS, *(row.view for _, row in rows)])
    far = alone_behind(row for model, row in among if fits(model))
    polls = [
        plan(row, states[row.view], states[ALL_VIEWS] if fits(model) else None, is_far=row.view == far)
        for model, row in rows
    ]
    return request_drains(postgres, polls, queued_drains(instance, polls))


def drain_states(postgres: PostgresResource, drains: Iterable[str]) -> dict[str, DrainState]:
    """Return the store's states of drains."""
    with shared_store(postgres) as store:
        return store.drain_states(*drains)


def request_drains(postgres: PostgresResource, polls: Sequence[Poll], queued: Collection[str]) -> list[Poll]:
    """Request the drains that start: the first sensor or daemon to ask gets it, unless its run is queued."""
    return [poll if poll.start is None else _requested(postgres, poll, queued) for poll in polls]


def _requested(postgres: PostgresResource, poll: Poll, queued: Collection[str]) -> Poll:
    drain = ALL_VIEWS if poll.start is Start.TOGETHER else poll.view
    what = "a drain of all views" if poll.start is Start.TOGETHER else "a drain"
    if drain in queued:
        return replace(poll, start=None, reason=f"{poll.reason}; {what} waits in Dagster's queue")
    with shared_store(postgres) as store:
        if store.begin_drain(drain):
            return poll
    return replace(poll, start=None, reason=f"{poll.reason}; {what} was asked for")


def queued_drains(instance: dg.DagsterInstance, polls: Iterable[Poll]) -> set[str]:
    """Return the drains whose run waits in Dagster's queue, or for its process: one query, if some drain starts."""
    if not any(poll.start for poll in polls):
        return set()
    records = instance.get_run_records(dg.RunsFilter(statuses=list(QUEUED)), limit=MOST_QUEUED)
    runs = [record.dagster_run for record in records]
    # a run started from the UI has no tag of ours; all runs have the partition's tag
    return {ALL_VIEWS if run.job_name == SHARED_JOB else run.tags.get(PARTITION_TAG, run.run_id) for run in runs}


def stopped_sensors(instance: dg.DagsterInstance) -> set[str]:
    """Return the names of the sensors and schedules that are turned off."""
    return {state.instigator_name for state in instance.all_instigator_state() if state.status.value == "STOPPED"}


def undeclared_sensor(models: Iterable[ReadModel]) -> dg.SensorDefinition:
    """Make the sensor `poll_views` for views that are registered only in the database; it needs no reload."""
    declared = {model.view for model in models}

    @dg.sensor(
        name="poll_views",
        job_name="drain",
        minimum_interval_seconds=1,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Starts drains of views that were registered by SQL and are pushed to a URL.",
    )
    def poll(context: dg.SensorEvaluationContext, postgres: PostgresResource) -> dg.SensorResult:
        with shared_store(postgres) as store:
            rows = [row for row in poll_rows(store) if row.view not in declared and row.edge_function_url]
        return request_pushes(context, postgres, rows)

    return poll


def poll_models(postgres: PostgresResource, models: Sequence[ReadModel]) -> list[ViewPoll]:
    """Ask the store for the current view of each declared read model; return them under their declared names."""
    with shared_store(postgres) as store:
        upcasts = stored_upcasts(store.connection)
        found = [built_and_next(store.connection, with_upcasts(store.connection, model, upcasts)) for model in models]
        rows = {row.view: row for row in poll_rows(store, [built.view for built, _ in found if built])}
    return [
        replace(row, view=model.view, due=max(row.due, int(ready)))
        if built and (row := rows.get(built.view))
        # the first drain makes the model's tables and registers its view
        else replace(idle_poll(model.view), pooling_delay_s=model.pooling_delay_s, due=1)
        for model, (built, ready) in zip(models, found, strict=True)
    ]


def poll_rows(store: PlatformStore, views: Sequence[str] | None = None) -> list[ViewPoll]:
    """Sequence new events, then ask the store for some views, None for all.

    A bulk view is not due for events that it does not want, so no consumer passes over them. Where many lie ahead of a
    named view, this call passes over them: each poll would read them again, and they may hide events after them.
    """
    store.sequence_events()
    rows = store.poll_views(views)
    crowded = [
        row.view
        for row in rows
        if views is not None and row.mode == "bulk"
        if row.ahead >= MOST_UNWANTED and row.due <= 1 and not row.consumers
    ]
    for view in crowded:
        store.pass_over_unwanted(view)
    passed = {row.view: row for row in store.poll_views(crowded)} if crowded else {}
    return [passed.get(row.view, row) for row in rows]


def request_capture(context: dg.SensorEvaluationContext, postgres: PostgresResource, row: ViewPoll) -> dg.SensorResult:
    """Request a run of a capture, if it is due; else give the reason."""
    poll = plan(row, drain_states(postgres, [row.view])[row.view])
    return _request(context, request_drains(postgres, [poll], queued_drains(context.instance, [poll])), None)


def request_pushes(
    context: dg.SensorEvaluationContext, postgres: PostgresResource, rows: Sequence[ViewPoll]
) -> dg.SensorResult:
    """Request drains of views that are pushed to a URL: some now, in turn; the others wait, and read models do not.

    A role that may register views may register many: a tick starts no more of them than may run.
    """
    states = drain_states(postgres, [row.view for row in rows])
    polls = [plan(row, states[row.view]) for row in rows]
    queued = queued_drains(context.instance, polls)
    busy = {row.view for row in rows if row.view in queued or states[row.view].since_s is not None}
    waiting = [poll.view for poll in polls if poll.start and poll.view not in queued]
    chosen = in_turn(waiting, context.cursor, PUSHES_AT_ONCE - len(busy))
    late = f"{PUSHES_AT_ONCE} views are pushed at once, and it waits for its turn"
    polls = [
        Poll(poll.view, None, f"{poll.view}: {late}") if poll.view in waiting and poll.view not in chosen else poll
        for poll in polls
    ]
    return _request(
        context, request_drains(postgres, polls, queued), VIEWS, "0", chosen[-1] if chosen else context.cursor
    )


def _request(
    context: dg.SensorEvaluationContext,
    polls: Sequence[Poll],
    partitions: dg.DynamicPartitionsDefinition | None,
    priority: str = "1",
    cursor: str | None = None,
    idle: str = "Nothing to poll: every registered view is a declared read model or has no edge_function_url.",
) -> dg.SensorResult:
    starts = [poll.view for poll in polls if poll.start]
    unknown = [view for view in starts if partitions and not context.instance.has_dynamic_partition("views", view)]
    reasons = (
        "; ".join(poll.reason for poll in polls[:MOST_REASONS])
        + (f"; and {len(polls) - MOST_REASONS} more" if len(polls) > MOST_REASONS else "")
        or idle
    )
    if not starts:
        return dg.SensorResult(skip_reason=reasons, cursor=cursor)
    context.log.info(reasons)
    return dg.SensorResult(
        # no run_key: with one, Dagster would never start a failed run again
        run_requests=[
            dg.RunRequest(job_name=SHARED_JOB, tags={DRAIN_TAG: "together", PRIORITY_TAG: priority})
            if poll.start is Start.TOGETHER
            else dg.RunRequest(
                job_name="drain" if partitions else "capture",
                partition_key=poll.view,
                tags={VIEW_TAG if partitions else CAPTURE_TAG: poll.view, PRIORITY_TAG: priority},
            )
            for poll in polls
            if poll.start
        ],
        dynamic_partitions_requests=[partitions.build_add_request(unknown)] if partitions and unknown else None,
        cursor=cursor,
    )


def idle_poll(name: str) -> ViewPoll:
    """Return the poll of a view or a capture that has nothing to do."""
    return ViewPoll(view=name, mode="bulk", enabled=True, pooling_delay_s=0, edge_function_url=None, due=0, consumers=0)
