"""The sensors that start drains: one per declared view, one for all of these, one for views of the database only.

Belongs here: gathering the facts for `polling` and asking for runs. Not here: the decision (`polling`), the drain, the
sensors of captures (`capture_sensors`).

Each tick of a sensor costs Dagster some 30 ms of CPU. So the sensors of many views look rarely, and `poll_read_models`
looks at all of them often.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache

import dagster as dg

from millrace.assets.declarations import Declarations
from millrace.assets.partitions import VIEWS
from millrace.assets.rounds import JOIN_S, SHARED_JOB, left_by
from millrace.platform_defs.checks import objectives
from millrace.platform_defs.freshness import freshness_sensor, subscription_sensor
from millrace.platform_defs.jobs import DRAIN
from millrace.platform_defs.polling import (
    PUSHES_AT_ONCE,
    Poll,
    SharedRun,
    Start,
    ViewRuns,
    has_started,
    in_turn,
    plan_polls,
    plan_together,
)
from millrace.resources.consumption.rounds.member import LARGE_BACKLOG
from millrace.resources.consumption.rounds.plan import fits
from millrace.resources.event_store import EventStore, ViewPoll
from millrace.resources.postgres.kept import kept_store
from millrace.resources.postgres.resource import PostgresResource
from millrace.resources.read_models.declaration import ReadModel
from millrace.resources.read_models.versions import standing

VIEW_TAG = "millrace/view"
DRAIN_TAG = "millrace/drain"
CAPTURE_TAG = "millrace/capture"
PARTITION_TAG = "dagster/partition"
# of queued runs the higher one goes first
PRIORITY_TAG = "dagster/priority"
MOST_IN_FLIGHT = 1000
MOST_REASONS = 50
RECENT_RUNS = 8
# a second sensor's tick may come so long after the first one's, before there is a run
ASK_EVERY_S = 10.0
ASKING, ASKED = threading.Lock(), dict[tuple[str, str | None], float]()
# positions ahead of a view that wants none of them, or one
MOST_UNWANTED = 1000
UNFINISHED = (
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
)


def view_sensors(declared: Declarations, together: dg.JobDefinition) -> list[dg.SensorDefinition]:
    """Make the sensors of all views: those of declared read models, of subscriptions, and of views of the database."""
    models, subscriptions = [*declared.models.values()], [*declared.subscriptions.values()]
    watching = [subscription_sensor(subscriptions)] if subscriptions else []
    may_be_late = objectives(declared)
    watching += [freshness_sensor(may_be_late)] if may_be_late else []
    return [*model_sensors(models, together), *watching, undeclared_sensor(models)]


def model_sensors(models: Sequence[ReadModel], together: dg.JobDefinition) -> list[dg.SensorDefinition]:
    """Make the sensors of declared read models: one for each, and one that looks at all of them.

    Those of the models tick as many seconds apart as there are models: together once a second, however many they are.
    """
    each = [poll_sensor(model, together, len(models)) for model in models]
    return [*each, wake_sensor(models, together)] if models else []


def poll_sensor(model: ReadModel, together: dg.JobDefinition, every_s: int) -> dg.SensorDefinition:
    """Make the sensor `poll_<view>` of a declared read model, which looks every so many seconds.

    `together` is the job that drains many views.
    """

    @dg.sensor(
        name=f"poll_{model.view}",
        jobs=[DRAIN, together],
        minimum_interval_seconds=every_s,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Says how {model.view} stands, and starts a drain when it is due: one for all views, or its own.",
    )
    def poll(context: dg.SensorEvaluationContext, postgres: PostgresResource) -> dg.SensorResult:
        (row,) = poll_models(postgres, [model])
        return _request(context, plan_views(context.instance, postgres, [(model, row)]), VIEWS, {PRIORITY_TAG: "1"})

    return poll


def wake_sensor(models: Sequence[ReadModel], together: dg.JobDefinition) -> dg.SensorDefinition:
    """Make the sensor `poll_read_models`, which looks at all declared read models at once, and often.

    So a drain starts soon after an event, however rarely the sensor of each view looks. A view whose own sensor is
    turned off is left out.
    """

    @dg.sensor(
        name="poll_read_models",
        jobs=[DRAIN, together],
        # the sensor loop rounds up to its next turn of 5 s; shorter delays are kept inside the drain
        minimum_interval_seconds=1,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Starts the drain of all views, or a view's own, as soon as a read model is due and nobody drains it.",
    )
    def poll(context: dg.SensorEvaluationContext, postgres: PostgresResource) -> dg.SensorResult:
        rows = poll_models(postgres, models)
        waiting = [
            (model, row)
            for model, row in zip(models, rows, strict=True)
            if row.enabled and row.due and not is_served(row)
        ]
        off = stopped_sensors(context.instance) if waiting else set()
        on = [(model, row) for model, row in waiting if f"poll_{model.view}" not in off]
        polls = plan_views(context.instance, postgres, on)
        idle = f"No read model waits for a drain: of {len(rows)}, {sum(row.due > 0 for row in rows)} are due."
        return _request(context, polls, VIEWS, {PRIORITY_TAG: "1"}, idle=idle)

    return poll


def plan_views(
    instance: dg.DagsterInstance, postgres: PostgresResource, rows: Sequence[tuple[ReadModel, ViewPoll]]
) -> list[Poll]:
    """Decide for declared read models whether to start a drain now; Dagster is asked only of those that are due."""
    now = time.time()
    shared = cache(lambda: shared_run(instance, postgres))
    return [_once(postgres, _plan_view(instance, postgres, model, row, shared, now)) for model, row in rows]


def _plan_view(
    instance: dg.DagsterInstance,
    postgres: PostgresResource,
    model: ReadModel,
    row: ViewPoll,
    shared: Callable[[], SharedRun],
    now: float,
) -> Poll:
    if not row.due:
        # mostly
        return plan_polls([row], {}, now)[0]
    own = view_runs(instance, model.view)
    if not fits(model):
        return plan_polls([row], {row.view: own}, now)[0]
    if own.unfinished and has_started(own, now) and not is_attached(postgres, own.unfinished):
        # it died, although somebody consumes the view: the run of all views
        own = replace(own, in_flight=False)
    return plan_together(row, own, shared(), alone(row), now)


def _once(postgres: PostgresResource, poll: Poll) -> Poll:
    """Start no drain that another sensor asked for a moment ago."""
    if poll.start is None or asked_first(postgres.current_dsn(), None if poll.start is Start.TOGETHER else poll.view):
        return poll
    what = "a drain of all views" if poll.start is Start.TOGETHER else "a drain"
    return replace(poll, start=None, reason=f"{poll.reason}; {what} was asked for")


def is_served(row: ViewPoll) -> bool:
    """Say whether somebody consumes a view who gives it all that it is due."""
    return row.consumers > 0 and alone(row) is None


def stopped_sensors(instance: dg.DagsterInstance) -> set[str]:
    """Return the names of the sensors, and schedules, that somebody turned off."""
    return {state.instigator_name for state in instance.all_instigator_state() if state.status.value == "STOPPED"}


def alone(row: ViewPoll) -> str | None:
    """Return why a view needs a run of its own; None if it does not."""
    if row.retries:
        return f"{row.retries} streams are tried again"
    if row.ahead > LARGE_BACKLOG:
        return f"it is {row.ahead} positions behind"
    return None


def shared_run(instance: dg.DagsterInstance, postgres: PostgresResource) -> SharedRun:
    """Ask Dagster for the runs that drain many views, and the store whether one lives."""
    records = instance.get_run_records(dg.RunsFilter(job_name=SHARED_JOB), limit=RECENT_RUNS)
    if not records:
        return SharedRun()
    unfinished = instance.get_run_records(dg.RunsFilter(job_name=SHARED_JOB, statuses=list(UNFINISHED)))
    lives = any(is_attached(postgres, record.dagster_run.run_id) for record in unfinished)
    joining_since = time.time() - JOIN_S
    starting = any(record.start_time is None or record.start_time >= joining_since for record in unfinished)
    newest = records[0]
    return SharedRun(
        _runs_of(records), starting, lives, left_by(newest.dagster_run), newest.create_timestamp.timestamp()
    )


def is_attached(postgres: PostgresResource, run_id: str) -> bool:
    """Say whether a run is attached to some view, and so at work."""
    with kept_store(postgres) as store:
        return bool(store.attached_views(run_id))


def asked_first(dsn: str, view: str | None) -> bool:
    """Say whether nobody in this process asked a moment ago for a drain of a view, or of all views (None).

    Several sensors find the same new events at the same time, and the run that one of them asks for is not made yet
    when the others look.
    """
    with ASKING:
        now = time.monotonic()
        first = now - ASKED.get((dsn, view), float("-inf")) > ASK_EVERY_S
        if first:
            ASKED[dsn, view] = now
        return first


def undeclared_sensor(models: Iterable[ReadModel]) -> dg.SensorDefinition:
    """Make the sensor `poll_views` for views that were registered only in the database, found without a reload."""
    declared = {model.view for model in models}

    @dg.sensor(
        name="poll_views",
        job_name="drain",
        minimum_interval_seconds=1,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Starts drains of views that were registered by SQL and are pushed to a URL.",
    )
    def poll(context: dg.SensorEvaluationContext, postgres: PostgresResource) -> dg.SensorResult:
        with kept_store(postgres) as store:
            rows = [row for row in poll_rows(store) if row.view not in declared and row.edge_function_url]
        return request_pushes(context, rows)

    return poll


def poll_models(postgres: PostgresResource, models: Sequence[ReadModel]) -> list[ViewPoll]:
    """Ask the store for the views that declared read models are consumed as; return them under their declared names."""
    with kept_store(postgres) as store:
        found = [standing(store.connection, model) for model in models]
        rows = {row.view: row for row in poll_rows(store, [built.view for built, _ in found if built])}
    return [
        replace(row, view=model.view, due=max(row.due, int(ready)))
        if built and (row := rows.get(built.view))
        # the first drain makes the model's tables and registers its view
        else replace(idle_poll(model.view), pooling_delay_s=model.pooling_delay_s, due=1)
        for model, (built, ready) in zip(models, found, strict=True)
    ]


def poll_rows(store: EventStore, views: Sequence[str] | None = None) -> list[ViewPoll]:
    """Ask the store for some views, None for all, once new events are sequenced.

    Events that a bulk view does not want make it not due, so no consumer passes over them. Where many lie ahead of a
    view that is named, it is done here: each poll would look at them again, and they may hide those behind them.
    """
    store.sequence_events()
    rows = store.poll_views(views)
    crowded = [row.view for row in rows if views is not None and _is_crowded(row)]
    for view in crowded:
        store.pass_over_unwanted(view)
    passed = {row.view: row for row in store.poll_views(crowded)} if crowded else {}
    return [passed.get(row.view, row) for row in rows]


def _is_crowded(row: ViewPoll) -> bool:
    return row.mode == "bulk" and row.ahead >= MOST_UNWANTED and row.due <= 1 and not row.consumers


def request_drains(
    context: dg.SensorEvaluationContext,
    rows: Sequence[ViewPoll],
    partitions: dg.DynamicPartitionsDefinition | None = None,
) -> dg.SensorResult:
    """Ask for a drain of each view, or capture, that is due; say why not for the others.

    Its partition is made in `partitions`, if these are dynamic.
    """
    runs = {row.view: view_runs(context.instance, row.view) for row in rows}
    return _request(context, plan_polls(rows, runs, time.time()), partitions, {PRIORITY_TAG: "1"})


def request_pushes(context: dg.SensorEvaluationContext, rows: Sequence[ViewPoll]) -> dg.SensorResult:
    """Ask for drains of views that are pushed to a URL: some at once, in turn; the others wait, and read models do not.

    Anybody who may register views may register many: a tick looks at no more of them than may start.
    """
    views = {row.view for row in rows}
    drained = views & drains_in_flight(context.instance)
    waiting = [row for row in rows if row.enabled and row.due and (row.view not in drained or not row.consumers)]
    chosen = in_turn([row.view for row in waiting], context.cursor, PUSHES_AT_ONCE - len(drained))
    runs = {view: ViewRuns(in_flight=True) for view in drained}
    runs |= {view: view_runs(context.instance, view) for view in chosen}
    late = {row.view for row in waiting} - {*chosen, *drained}
    wait = f"{PUSHES_AT_ONCE} views are pushed at once, and it waits for its turn"
    polls = [
        Poll(poll.view, start=None, reason=f"{poll.view}: {wait}") if poll.view in late else poll
        for poll in plan_polls(rows, runs, time.time())
    ]
    return _request(context, polls, VIEWS, {PRIORITY_TAG: "0"}, chosen[-1] if chosen else context.cursor)


def drains_in_flight(instance: dg.DagsterInstance) -> set[str]:
    """Return the views that have an unfinished run, queued ones included, by one question to Dagster."""
    records = instance.get_run_records(dg.RunsFilter(statuses=list(UNFINISHED)), limit=MOST_IN_FLIGHT)
    return {view for record in records if (view := record.dagster_run.tags.get(PARTITION_TAG)) is not None}


def _request(
    context: dg.SensorEvaluationContext,
    polls: Sequence[Poll],
    partitions: dg.DynamicPartitionsDefinition | None,
    tags: dict[str, str],
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
        # no run_key: Dagster would never retry a run that failed
        run_requests=[
            dg.RunRequest(job_name=SHARED_JOB, tags={DRAIN_TAG: "together", **tags})
            if poll.start is Start.TOGETHER
            else dg.RunRequest(
                job_name="drain" if partitions else "capture",
                partition_key=poll.view,
                tags={VIEW_TAG if partitions else CAPTURE_TAG: poll.view, **tags},
            )
            for poll in polls
            if poll.start
        ],
        dynamic_partitions_requests=[partitions.build_add_request(unknown)] if partitions and unknown else None,
        cursor=cursor,
    )


def view_runs(instance: dg.DagsterInstance, view: str) -> ViewRuns:
    """Ask Dagster for a view's drains, also for those started from the UI."""
    # a run started from the UI has no tag of ours; the partition's tag is on all
    return _runs_of(instance.get_run_records(dg.RunsFilter(tags={PARTITION_TAG: view}), limit=RECENT_RUNS))


def _runs_of(records: Sequence[dg.RunRecord]) -> ViewRuns:
    unfinished = [r for r in records if r.dagster_run.status in UNFINISHED]
    finished = [r for r in records if r.dagster_run.status not in UNFINISHED]
    failures = 0
    for record in finished:
        if record.dagster_run.status != dg.DagsterRunStatus.FAILURE:
            break
        failures += 1
    return ViewRuns(
        in_flight=bool(unfinished),
        unfinished=unfinished[0].dagster_run.run_id if unfinished else None,
        started=unfinished[0].start_time if unfinished else None,
        last_ended=finished[0].end_time or finished[0].update_timestamp.timestamp() if finished else None,
        failures=failures,
    )


def idle_poll(name: str) -> ViewPoll:
    """Return what a poll would say of a view, or a capture, that has nothing to do."""
    return ViewPoll(view=name, mode="bulk", enabled=True, pooling_delay_s=0, edge_function_url=None, due=0, consumers=0)
