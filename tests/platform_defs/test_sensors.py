"""Sensors on an instance with real run records and a real database."""

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import dagster as dg
import pytest

from millrace.assets.declarations import Declarations, declared
from millrace.assets.rounds import ALL_VIEWS, DRAIN_TAG, RENEWS_TAG, SHARED_JOB
from millrace.drain import decision
from millrace.drain.decision import PUSHES_AT_ONCE
from millrace.errors import Unreachable
from millrace.event_store import StreamFailure
from millrace.event_store.platform import PlatformStore
from millrace.platform_defs import sensors
from millrace.platform_defs.loading import build_defs
from millrace.platform_defs.names import PARTITION_TAG
from millrace.platform_defs.sensors import MOST_UNWANTED
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.declared.words import last
from millrace.read_models.stored.versions import ensure_version, serve_if_caught_up
from tests.operations.metrics.test_dagster_metrics import switched
from tests.support.elsewhere import postgres_at
from tests.support.factories import register_shop_without_schemas
from tests.support.running import in_process
from tests.support.running.in_process import reason
from tests.support.sql_calls import BatchEvent, append_events

ORDERS = replace(declared("millrace.examples.shop", ["read_models"]).models["orders"], rollups=(), lookups={})


@pytest.fixture
def kept() -> Iterator[dg.DagsterInstance]:
    """Yield an empty instance that also stores which sensors are off, unlike one in memory."""
    with dg.instance_for_test() as instance:
        yield instance


@pytest.fixture
def shop(store: PlatformStore) -> PlatformStore:
    register_shop_without_schemas(store)
    ensure_version(store.connection, ORDERS)
    return store


def place(store: PlatformStore) -> None:
    append_events(store, [BatchEvent("order", "o-1", "order_placed", uuid4(), {}, uuid4())])


def tick(
    instance: dg.DagsterInstance,
    dsn: str,
    sensor: str,
    model: ReadModel = ORDERS,
    cursor: str | None = None,
    **others: ReadModel,
) -> dg.SensorResult:
    return in_process.tick(instance, dsn, Declarations(models={"orders": model, **others}), sensor, cursor)


def started_by(result: dg.SensorResult) -> tuple[str | None, str | None]:
    (request,) = result.run_requests or []
    assert request.run_key is None
    return request.job_name, request.partition_key


def forget(store: PlatformStore) -> None:
    store.connection.execute("delete from event_store.drains")


def queued_run(instance: dg.DagsterInstance, view: str | None) -> None:
    """Record a run that waits, of one view or of all."""
    if view is None:
        defs = build_defs(declarations=Declarations(models={"orders": ORDERS}))
        job, tags = defs.resolve_job_def(SHARED_JOB), {}
    else:
        job, tags = build_defs().resolve_job_def("apply_schema"), {PARTITION_TAG: view}
    instance.create_run_for_job(job_def=job, tags=tags, status=dg.DagsterRunStatus.NOT_STARTED)


def serve_all(store: PlatformStore, *views: str) -> None:
    store.begin_drain(ALL_VIEWS, "all views")
    for view in views:
        store.attach_consumer(view, "all views")


def retry_a_stream(store: PlatformStore) -> None:
    """Make a stream of orders fail, and its retry due."""
    (lease, *_) = store.claim_batch("orders", "a drain")
    store.fail_streams("orders", lease, [StreamFailure("order", "o-1", "no", 1)])
    store.commit_batch("orders", [lease])
    store.connection.execute("update event_store.stream_locks set locked_until = clock_timestamp()")


def test_beside_a_drain_of_all_views_no_other_starts(
    instance: dg.DagsterInstance, dsn: str, shop: PlatformStore
) -> None:
    assert reason(tick(instance, dsn, "poll_orders")) == "orders: nothing is due"
    place(shop)
    assert started_by(tick(instance, dsn, "poll_orders")) == (SHARED_JOB, None)
    assert reason(tick(instance, dsn, "poll_orders")) == "orders: a drain of all views starts, 1 due"
    serve_all(shop, "orders")
    assert reason(tick(instance, dsn, "poll_orders")) == "orders: drained together with other views, 1 due"


def test_a_view_that_left_gets_a_drain_of_its_own(
    instance: dg.DagsterInstance, dsn: str, shop: PlatformStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(shop)
    shop.end_drain("orders", "all views", "a bad value")
    said = reason(tick(instance, dsn, "poll_orders"))
    assert "1 drains failed in a row; the next one starts in " in said
    assert said.endswith(": a bad value")
    shop.connection.execute("update event_store.drains set ended_at = ended_at - interval '1 minute'")
    # the sensor requests the view's partition until it exists
    result = tick(instance, dsn, "poll_orders")
    assert started_by(result) == ("drain", "orders")
    assert result.dynamic_partitions_requests
    assert (result.run_requests or [])[0].tags["millrace/view"] == "orders"
    assert reason(tick(instance, dsn, "poll_orders")) == "orders: a drain is in flight, 1 due"
    shop.begin_drain("orders", "its own")
    shop.end_drain("orders", "its own")
    shop.connection.execute("update event_store.drains set ended_at = ended_at - interval '1 minute'")
    assert started_by(tick(instance, dsn, "poll_orders")) == (SHARED_JOB, None)
    # a running shared drain that does not consume this view does not count
    monkeypatch.setattr(decision, "JOIN_S", -1.0)
    shop.register_view("other", "-infinity", mode="bulk", owner="event_store_owner")
    serve_all(shop, "other")
    instance.add_dynamic_partitions("views", ["orders"])
    result = tick(instance, dsn, "poll_orders")
    assert started_by(result) == ("drain", "orders")
    assert not result.dynamic_partitions_requests


def test_streams_to_try_again_get_a_drain_of_their_own(kept: dg.DagsterInstance, dsn: str, shop: PlatformStore) -> None:
    place(shop)
    retry_a_stream(shop)
    serve_all(shop, "orders")
    # later than the server's start: right after a start a running drain may still reconnect
    soon = (datetime.now(UTC) + timedelta(minutes=3)).strftime("%Y-%m-%dT%H:%M:%SZ")
    dsn += f"&options=-c%20event_store.clock%3D{soon}"
    for sensor in ("poll_orders", "poll_read_models"):
        assert started_by(tick(kept, dsn, sensor)) == ("drain", "orders")
        # the drain of all views does not stand in for it
        shop.connection.execute(
            "update event_store.drains set asked_at = asked_at - interval '1 day' where drain = 'orders'"
        )
    shop.begin_drain("orders", "its own")
    shop.attach_consumer("orders", "its own")
    assert reason(tick(kept, dsn, "poll_orders")) == "orders: a drain is in flight, 1 due"


def test_a_queued_run_is_not_asked_for_again(instance: dg.DagsterInstance, dsn: str, shop: PlatformStore) -> None:
    place(shop)
    queued_run(instance, None)
    queued = "orders: 1 due; a drain of all views waits in Dagster's queue"
    assert reason(tick(instance, dsn, "poll_orders")) == queued
    retry_a_stream(shop)
    assert started_by(tick(instance, dsn, "poll_orders")) == ("drain", "orders")
    forget(shop)
    queued_run(instance, "orders")
    assert reason(tick(instance, dsn, "poll_orders")).endswith("; a drain waits in Dagster's queue")


def test_one_alone_far_behind_gets_its_own_drain(
    kept: dg.DagsterInstance, dsn: str, shop: PlatformStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision, "LARGE_BACKLOG", 0)
    monkeypatch.setattr(sensors, "LARGE_BACKLOG", 0)
    place(shop)
    for sensor in ("poll_orders", "poll_read_models"):
        assert started_by(tick(kept, dsn, sensor)) == ("drain", "orders")
        forget(shop)
    also = replace(ORDERS, name="also", view="also")
    ensure_version(shop.connection, also)
    for sensor in ("poll_orders", "poll_also"):
        assert started_by(tick(kept, dsn, sensor, also=also)) == (SHARED_JOB, None)
        forget(shop)
    result = tick(kept, dsn, "poll_read_models", also=also)
    assert started_by(result) == (SHARED_JOB, None)


def test_a_model_without_a_view_gets_its_first_drain(instance: dg.DagsterInstance, dsn: str) -> None:
    assert started_by(tick(instance, dsn, "poll_orders")) == (SHARED_JOB, None)


def test_a_changed_declaration_is_drained_by_its_name(
    instance: dg.DagsterInstance, dsn: str, shop: PlatformStore
) -> None:
    changed = replace(ORDERS, columns={"status": last("event")}, indexes=())

    def poll() -> dg.SensorResult:
        forget(shop)
        return tick(instance, dsn, "poll_orders", changed)

    assert started_by(poll()) == (SHARED_JOB, None)  # its first drain makes its tables
    place(shop)
    shop.commit_batch("orders", shop.claim_batch("orders", "the code before"))
    new = ensure_version(shop.connection, changed)
    assert started_by(poll()) == (SHARED_JOB, None)  # the new version is behind
    shop.commit_batch(new.view, shop.claim_batch(new.view, "a drain that was killed before the switch"))
    assert started_by(poll()) == (SHARED_JOB, None)  # the new version could serve
    assert serve_if_caught_up(shop.connection, new)
    assert reason(poll()) == "orders: nothing is due"


def test_unwanted_events_start_no_drain(instance: dg.DagsterInstance, dsn: str, shop: PlatformStore) -> None:
    shop.register_decider_event("weather", "measured", "it is so warm")
    for crowd in (1, 5, MOST_UNWANTED, 1):
        append_events(shop, [BatchEvent("weather", "w-1", "measured", uuid4(), {}, uuid4()) for _ in range(crowd)])
        assert reason(tick(instance, dsn, "poll_orders")) == "orders: nothing is due"
        (row,) = shop.poll_views(["orders"])
        assert row.ahead < MOST_UNWANTED
    place(shop)
    assert tick(instance, dsn, "poll_orders").run_requests
    # a disabled view starts no drain either
    shop.enable_view("orders", enabled=False)
    assert not tick(instance, dsn, "poll_read_models").run_requests
    assert reason(tick(instance, dsn, "poll_orders")) == "orders: the view is disabled"


def test_one_sensor_wakes_the_drain_of_all_models(kept: dg.DagsterInstance, dsn: str, shop: PlatformStore) -> None:
    place(shop)
    assert started_by(tick(kept, dsn, "poll_read_models")) == (SHARED_JOB, None)
    # one consumer of the view is enough
    serve_all(shop, "orders")
    assert re.fullmatch(r"orders 1 due for \d+ seconds", reason(tick(kept, dsn, "poll_read_models")))


def renews(result: dg.SensorResult) -> bool:
    (request,) = result.run_requests or []
    assert (request.job_name, request.tags[DRAIN_TAG]) == (SHARED_JOB, "together")
    return RENEWS_TAG in request.tags


def test_a_drain_of_all_models_is_kept_alive(kept: dg.DagsterInstance, dsn: str, shop: PlatformStore) -> None:
    nothing = "1 read model up to date"
    # before the first event; requested once
    assert not renews(tick(kept, dsn, "poll_read_models"))
    assert reason(tick(kept, dsn, "poll_read_models")) == nothing
    serve_all(shop, "orders")
    assert reason(tick(kept, dsn, "poll_read_models")) == nothing
    # shortly before its end the next run is requested; it waits in the queue, and no third one is
    shop.connection.execute("update event_store.drains set began_at = began_at - interval '3500 s'")
    assert renews(tick(kept, dsn, "poll_read_models"))
    queued_run(kept, None)
    queued_run(kept, None)
    assert reason(tick(kept, dsn, "poll_read_models")) == nothing


def test_no_drain_is_kept_alive_for_sensors_that_are_off(
    kept: dg.DagsterInstance, dsn: str, shop: PlatformStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # it would hold cores that other programs of the cluster may want
    with monkeypatch.context() as cluster:
        cluster.delenv("SPARK_REMOTE", raising=False)
        cluster.setenv("SPARK_MASTER", "spark://127.0.0.1:7077")
        assert not tick(kept, dsn, "poll_read_models").run_requests
    shop.enable_view("orders", enabled=False)
    assert not tick(kept, dsn, "poll_read_models").run_requests
    # a failed drain is followed by its backoff
    shop.enable_view("orders", enabled=True)
    shop.begin_drain(ALL_VIEWS, "a run")
    shop.end_drain(ALL_VIEWS, "a run", "Spark is gone")
    assert not tick(kept, dsn, "poll_read_models").run_requests
    switched(kept, "here", "poll_orders", "STOPPED", 1)
    forget(shop)
    assert not tick(kept, dsn, "poll_read_models").run_requests


def test_of_sensors_that_find_the_same_events_at_once_one_asks_for_a_drain(dsn: str, shop: PlatformStore) -> None:
    place(shop)
    for start in decision.Start:
        found = decision.Poll("orders", start, "orders: 1 due")
        assert sensors.request_drains(postgres_at(dsn), [found, found], set()) == [
            found,
            replace(
                found,
                start=None,
                reason=f"orders: 1 due; a drain{' of all views' * (start is decision.Start.TOGETHER)} was asked for",
            ),
        ]


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


def test_a_view_registered_by_sql_is_drained(instance: dg.DagsterInstance, dsn: str, shop: PlatformStore) -> None:
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


def test_many_pushed_views_start_runs_in_turn(instance: dg.DagsterInstance, dsn: str, shop: PlatformStore) -> None:
    views = [f"push-{n:02}" for n in range(2 * PUSHES_AT_ONCE + 3)]
    for view in views:
        shop.register_view(view, "-infinity", edge_function_url="http://127.0.0.1:1/")
    place(shop)
    first = tick(instance, dsn, "poll_views")
    assert [request.partition_key for request in first.run_requests or []] == views[:PUSHES_AT_ONCE]
    assert {request.tags["dagster/priority"] for request in first.run_requests or []} == {"0"}
    # the limit is reached: no further request
    second = tick(instance, dsn, "poll_views", cursor=first.cursor)
    assert not second.run_requests
    assert f"{views[-1]}: {PUSHES_AT_ONCE} views are pushed at once" in reason(second)
    assert f"{views[0]}: a drain is in flight" in reason(second)
    # when some have ended, the next ones start; a run in Dagster's queue counts
    for view in views[:4]:
        shop.begin_drain(view, view)
        shop.end_drain(view, view)
    queued_run(instance, views[PUSHES_AT_ONCE])
    third = tick(instance, dsn, "poll_views", cursor=first.cursor)
    chosen = [request.partition_key for request in third.run_requests or []]
    assert chosen == views[PUSHES_AT_ONCE + 1 : PUSHES_AT_ONCE + 4]
    # read models do not wait for a turn
    (request,) = tick(instance, dsn, "poll_orders").run_requests or []
    assert request.tags["dagster/priority"] == "1"
