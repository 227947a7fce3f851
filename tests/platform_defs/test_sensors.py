"""Sensors on an instance with real run records and a real database.

Not here: each decision (`test_polling.py`).
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from uuid import uuid4

import dagster as dg
import pytest

from millrace.assets.declarations import Declarations, declared
from millrace.assets.rounds import LEFT_TAG, SHARED_JOB
from millrace.examples.shop.events import register_shop
from millrace.platform_defs import polling, sensors
from millrace.platform_defs.definitions import build_defs
from millrace.platform_defs.polling import PUSHES_AT_ONCE
from millrace.platform_defs.sensors import ASKED, MOST_UNWANTED, PARTITION_TAG
from millrace.resources.errors import Unreachable
from millrace.resources.event_store import EventStore, NewEvent, StreamFailure
from millrace.resources.read_models.columns import last
from millrace.resources.read_models.declaration import ReadModel
from millrace.resources.read_models.versions import ensure_version, serve_if_caught_up
from tests.support.elsewhere import postgres_at

ORDERS = declared("millrace.examples.shop", ["read_models"]).models["orders"]


@pytest.fixture(autouse=True)
def nobody_asked_before() -> None:
    ASKED.clear()


@pytest.fixture
def kept() -> Iterator[dg.DagsterInstance]:
    """Yield an empty instance that also keeps which sensors are off; one in memory does not."""
    with dg.instance_for_test() as instance:
        yield instance


@pytest.fixture
def shop(store: EventStore) -> EventStore:
    register_shop(store)
    ensure_version(store.connection, ORDERS)
    return store


def place(store: EventStore) -> None:
    store.append_events([NewEvent("order", "o-1", "order_placed", uuid4(), {}, uuid4())])


def tick(
    instance: dg.DagsterInstance, dsn: str, sensor: str, model: ReadModel = ORDERS, cursor: str | None = None
) -> dg.SensorResult:
    defs = build_defs(declarations=Declarations(models={"orders": model}), resources={"postgres": postgres_at(dsn)})
    context = dg.build_sensor_context(
        instance, cursor=cursor, definitions=defs, resources={"postgres": postgres_at(dsn)}
    )
    result = defs.resolve_sensor_def(sensor)(context)
    assert isinstance(result, dg.SensorResult)
    return result


def reason(result: dg.SensorResult) -> str:
    assert isinstance(result.skip_reason, dg.SkipReason)
    return result.skip_reason.skip_message or ""


def started_by(result: dg.SensorResult) -> tuple[str | None, str | None]:
    """Return the job and the partition of the one run that a tick asked for."""
    (request,) = result.run_requests or []
    assert request.run_key is None
    ASKED.clear()
    return request.job_name, request.partition_key


def shared_run(instance: dg.DagsterInstance, status: dg.DagsterRunStatus = dg.DagsterRunStatus.STARTED) -> str:
    """Record a run of all views."""
    defs = build_defs(declarations=Declarations(models={"orders": ORDERS}))
    run = instance.create_run_for_job(job_def=defs.resolve_job_def(SHARED_JOB), status=status)
    if status is dg.DagsterRunStatus.STARTED:
        # only an event gives it the time of its start
        started = dg.DagsterEvent(dg.DagsterEventType.RUN_START.value, SHARED_JOB)
        instance.report_dagster_event(started, run.run_id)
    return run.run_id


def own_run(instance: dg.DagsterInstance, view: str) -> str:
    """Record a run of one view."""
    job = build_defs().resolve_job_def("apply_schema")
    run = instance.create_run_for_job(job_def=job, tags={PARTITION_TAG: view}, status=dg.DagsterRunStatus.STARTED)
    return run.run_id


def joined_long_ago(instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sensors, "JOIN_S", -1.0)
    return shared_run(instance)


def test_while_a_drain_of_all_views_starts_or_serves_the_view_no_other_is_asked_for(
    instance: dg.DagsterInstance, dsn: str, shop: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(shop)
    run = shared_run(instance, dg.DagsterRunStatus.NOT_STARTED)
    assert reason(tick(instance, dsn, "poll_orders")) == "orders: a drain of all views starts, 1 due"
    monkeypatch.setattr(sensors, "JOIN_S", -1.0)
    shop.attach_consumer("orders", run)
    assert reason(tick(instance, dsn, "poll_orders")) == "orders: drained together with other views, 1 due"


def test_a_view_that_the_drain_of_all_views_left_gets_a_drain_of_its_own(
    instance: dg.DagsterInstance, dsn: str, shop: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(shop)
    run = joined_long_ago(instance, monkeypatch)
    shop.register_view("other", "-infinity", mode="bulk")
    shop.attach_consumer("other", run)
    result = tick(instance, dsn, "poll_orders")
    assert started_by(result) == ("drain", "orders")
    assert (result.run_requests or [])[0].tags["millrace/view"] == "orders"
    # it serves nobody any more, and Dagster does not know yet that it died
    shop.detach_consumer("other", run)
    assert started_by(tick(instance, dsn, "poll_orders")) == (SHARED_JOB, None)
    # but one whose only view it left is attached to none, too
    instance.add_run_tags(run, {LEFT_TAG: json.dumps({"orders": "a bad value"})})
    assert started_by(tick(instance, dsn, "poll_orders")) == ("drain", "orders")


def test_a_drain_of_its_own_that_died_does_not_hide_behind_the_drain_of_all_views(
    instance: dg.DagsterInstance, dsn: str, shop: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "STARTUP_S", -1.0)
    monkeypatch.setattr(sensors, "LARGE_BACKLOG", 0)
    place(shop)
    dead = own_run(instance, "orders")
    instance.report_dagster_event(dg.DagsterEvent(dg.DagsterEventType.RUN_START.value, "apply_schema"), dead)
    shop.attach_consumer("orders", shared_run(instance))
    assert started_by(tick(instance, dsn, "poll_orders")) == ("drain", "orders")
    shop.attach_consumer("orders", dead)
    assert "a drain is in flight" in reason(tick(instance, dsn, "poll_orders"))


def test_streams_to_try_again_and_a_large_backlog_are_for_a_drain_of_the_views_own(
    instance: dg.DagsterInstance, dsn: str, shop: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(shop)
    (lease, *_) = shop.claim_batch("orders", "a drain")
    shop.fail_streams("orders", lease, [StreamFailure("order", "o-1", "no", 1)])
    shop.commit_batch("orders", [lease])
    shop.connection.execute("update event_store.stream_locks set locked_until = clock_timestamp()")
    assert started_by(tick(instance, dsn, "poll_orders")) == ("drain", "orders")
    shop.connection.execute("delete from event_store.stream_locks")
    shop.append_events([NewEvent("order", "o-2", "order_placed", uuid4(), {}, uuid4())])
    assert started_by(tick(instance, dsn, "poll_orders")) == (SHARED_JOB, None)
    monkeypatch.setattr(sensors, "LARGE_BACKLOG", 0)
    assert started_by(tick(instance, dsn, "poll_orders")) == ("drain", "orders")


def test_the_runs_of_a_view_are_seen_those_in_flight_and_those_that_failed(
    instance: dg.DagsterInstance, dsn: str, shop: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reason(tick(instance, dsn, "poll_orders")) == "orders: nothing is due"
    place(shop)
    run = instance.get_run_by_id(shared_run(instance))
    assert run is not None
    instance.report_run_failed(run)
    assert "1 drains failed in a row" in reason(tick(instance, dsn, "poll_orders"))
    # the view's partition is asked for until there is one
    monkeypatch.setattr(sensors, "LARGE_BACKLOG", 0)
    for known in (False, True):
        result = tick(instance, dsn, "poll_orders")
        assert bool(result.dynamic_partitions_requests) is not known
        assert started_by(result) == ("drain", "orders")
        instance.add_dynamic_partitions("views", ["orders"])
    # also one that was started from the UI
    own_run(instance, "orders")
    assert "a drain is in flight" in reason(tick(instance, dsn, "poll_orders"))


def test_the_first_drain_of_a_model_whose_view_is_not_registered_yet_is_started(
    instance: dg.DagsterInstance, dsn: str
) -> None:
    assert started_by(tick(instance, dsn, "poll_orders")) == (SHARED_JOB, None)


def test_a_changed_declaration_is_drained_under_the_declared_name_until_it_serves(
    instance: dg.DagsterInstance, dsn: str, shop: EventStore
) -> None:
    changed = replace(ORDERS, columns={"status": last("event")})

    def poll() -> dg.SensorResult:
        return tick(instance, dsn, "poll_orders", changed)

    assert started_by(poll()) == (SHARED_JOB, None)  # its first drain makes its tables
    place(shop)
    shop.commit_batch("orders", shop.claim_batch("orders", "the code before"))
    new = ensure_version(shop.connection, changed)
    assert started_by(poll()) == (SHARED_JOB, None)  # it is behind
    shop.commit_batch(new.view, shop.claim_batch(new.view, "a drain that was killed before the switch"))
    assert started_by(poll()) == (SHARED_JOB, None)  # it could serve
    assert serve_if_caught_up(shop.connection, new)
    assert reason(poll()) == "orders: nothing is due"


def test_events_that_a_view_does_not_want_start_no_drain(
    instance: dg.DagsterInstance, dsn: str, shop: EventStore
) -> None:
    shop.register_decider_event("weather", "measured", "it is so warm")
    for crowd in (1, 5, MOST_UNWANTED, 1):
        shop.append_events([NewEvent("weather", "w-1", "measured", uuid4(), {}, uuid4()) for _ in range(crowd)])
        assert reason(tick(instance, dsn, "poll_orders")) == "orders: nothing is due"
        (row,) = shop.poll_views(["orders"])
        assert row.ahead < MOST_UNWANTED
    place(shop)
    assert tick(instance, dsn, "poll_orders").run_requests


def test_one_sensor_looks_at_all_read_models_and_wakes_their_drain(
    kept: dg.DagsterInstance, dsn: str, shop: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reason(tick(kept, dsn, "poll_read_models")) == "No read model waits for a drain: of 1, 0 are due."
    place(shop)
    assert started_by(tick(kept, dsn, "poll_read_models")) == (SHARED_JOB, None)
    # who consumes it is enough: nobody asks Dagster
    run = joined_long_ago(kept, monkeypatch)
    shop.attach_consumer("orders", run)
    assert reason(tick(kept, dsn, "poll_read_models")) == "No read model waits for a drain: of 1, 1 are due."
    # unless the view needs a run of its own
    monkeypatch.setattr(sensors, "LARGE_BACKLOG", 0)
    assert started_by(tick(kept, dsn, "poll_read_models")) == ("drain", "orders")


def test_two_sensors_that_find_the_same_events_ask_for_one_drain(
    kept: dg.DagsterInstance, dsn: str, shop: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(shop)
    asked = tick(kept, dsn, "poll_read_models")
    assert reason(tick(kept, dsn, "poll_orders")) == "orders: 1 due; a drain of all views was asked for"
    assert started_by(asked) == (SHARED_JOB, None)
    monkeypatch.setattr(sensors, "LARGE_BACKLOG", 0)
    assert started_by(tick(kept, dsn, "poll_orders")) == ("drain", "orders")
    assert tick(kept, dsn, "poll_orders").run_requests
    assert "; a drain was asked for" in reason(tick(kept, dsn, "poll_read_models"))


def test_a_disabled_view_wakes_no_drain(instance: dg.DagsterInstance, dsn: str, shop: EventStore) -> None:
    place(shop)
    shop.enable_view("orders", enabled=False)
    assert not tick(instance, dsn, "poll_read_models").run_requests
    assert reason(tick(instance, dsn, "poll_orders")) == "orders: the view is disabled"


def test_sensors_of_many_views_tick_once_a_second_together() -> None:
    for many in (1, 5, 40):
        models = {f"m{n}": replace(ORDERS, name=f"m{n}", view=f"m{n}") for n in range(many)}
        sensors = build_defs(declarations=Declarations(models=models)).sensors or []
        each = [
            sensor.minimum_interval_seconds
            for sensor in sensors
            if isinstance(sensor, dg.SensorDefinition) and sensor.name.startswith("poll_m")
        ]
        assert each == [many] * many


def test_a_view_registered_by_sql_with_a_url_is_drained_without_a_reload(
    instance: dg.DagsterInstance, dsn: str, shop: EventStore
) -> None:
    place(shop)
    assert "Nothing to poll: every registered view is a declared read model or has no" in reason(
        tick(instance, dsn, "poll_views")
    )
    shop.register_view("pushed", "-infinity", pooling_delay_s=1, edge_function_url="http://127.0.0.1:9/")
    (request,) = tick(instance, dsn, "poll_views").run_requests or []
    assert request.partition_key == "pushed"


def test_a_sensor_says_what_to_do_when_the_store_does_not_answer(instance: dg.DagsterInstance) -> None:
    with pytest.raises(Unreachable, match="Check MILLRACE_DSN"):
        tick(instance, "postgresql://nobody@127.0.0.1:1/nothing", "poll_orders")


def test_many_pushed_views_start_some_runs_at_once_in_turn(
    instance: dg.DagsterInstance, dsn: str, shop: EventStore
) -> None:
    views = [f"push-{n:02}" for n in range(2 * PUSHES_AT_ONCE + 3)]
    for view in views:
        shop.register_view(view, "-infinity", edge_function_url="http://127.0.0.1:1/")
    place(shop)
    first = tick(instance, dsn, "poll_views")
    assert [request.partition_key for request in first.run_requests or []] == views[:PUSHES_AT_ONCE]
    assert {request.tags["dagster/priority"] for request in first.run_requests or []} == {"0"}
    second = tick(instance, dsn, "poll_views", cursor=first.cursor)
    chosen = [request.partition_key for request in second.run_requests or []]
    assert chosen == views[PUSHES_AT_ONCE : 2 * PUSHES_AT_ONCE]
    # as if those of the first tick ran: nothing more, also not after it
    for view in views[:PUSHES_AT_ONCE]:
        own_run(instance, view)
    third = tick(instance, dsn, "poll_views", cursor=second.cursor)
    assert not third.run_requests
    assert f"{views[-1]}: {PUSHES_AT_ONCE} views are pushed at once" in reason(third)
    assert f"{views[0]}: a drain is in flight" in reason(third)
    # read models need no turn
    (request,) = tick(instance, dsn, "poll_orders").run_requests or []
    assert request.tags["dagster/priority"] == "1"
