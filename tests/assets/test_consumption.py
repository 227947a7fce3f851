"""Drains and rebuilds as Dagster runs them: real runs on an instance, a real Postgres, a real Spark."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import dagster as dg
import psycopg
import pytest

from millrace.assets.consumption import KEY
from millrace.assets.declarations import Declarations, declared
from millrace.assets.partitions import log_partition_key, log_partitions
from millrace.examples.shop.events import register_shop
from millrace.platform_defs.definitions import build_defs
from millrace.resources.consumption.report import PartitionsFailed
from millrace.resources.errors import PartitionLeased
from millrace.resources.event_store import EventStore, NewEvent
from millrace.resources.producers import ProducerStore
from millrace.resources.read_models.columns import last
from millrace.resources.read_models.declaration import ReadModel
from millrace.resources.read_models.versions import ensure_version
from tests.support.elsewhere import postgres_at
from tests.support.factories import pump

AT_ONCE = {"ops": {"read_models__orders": {"config": {"wait_s": 0}}}}
SHOP = declared("millrace.examples.shop", ["read_models", "captures"])
ORDERS = SHOP.models["orders"]
READ_MODEL = dg.AssetKey(["read_models", "orders"])
QUICKLY = {"ops": {"consumption__view_events": {"config": {"idle_s": 0}}}}


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
        instance.add_dynamic_partitions("views", ["strangers"])
        yield instance


@pytest.fixture
def shop(store: EventStore) -> EventStore:
    register_shop(store)
    return store


def place(store: EventStore, number: int, *, amount: object = 1.5) -> None:
    store.append_events(
        NewEvent("order", f"order-{n}", event, uuid4(), data, uuid4())
        for n in range(number)
        for event, data in (
            ("order_placed", {"customer_id": "c", "channel": "web"}),
            ("order_line_added", {"product": "p", "quantity": 1, "amount": amount}),
        )
    )


def run_job(
    instance: dg.DagsterInstance,
    dsn: str,
    job: str,
    partition: str,
    config: dict[str, Any] | None = None,
    model: ReadModel = ORDERS,
) -> dg.ExecuteInProcessResult:
    if job == "drain":  # the sensor adds it with its first request
        instance.add_dynamic_partitions("views", [partition])
    defs = build_defs(declarations=Declarations(models={"orders": model}), resources={"postgres": postgres_at(dsn)})
    resolved = defs.resolve_job_def(job)
    return resolved.execute_in_process(
        instance=instance, partition_key=partition, run_config=config or {}, raise_on_error=False
    )


def rows(store: EventStore) -> int:
    return store.connection.execute("select count(*) from read_models.orders").fetchall()[0][0]  # type: ignore[no-any-return]


def failed_with(result: dg.ExecuteInProcessResult) -> str:
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    error = failure.step_failure_data.error
    assert error is not None
    return error.to_string()


@pytest.mark.usefixtures("spark_remote")
def test_a_drain_fills_the_read_model_and_records_progress_on_its_partitions(
    instance: dg.DagsterInstance, dsn: str, shop: EventStore
) -> None:
    place(shop, 40)
    result = run_job(instance, dsn, "drain", "orders", QUICKLY)
    assert result.success
    assert rows(shop) == 40
    drained = [m for m in result.asset_materializations_for_node("consumption__view_events") if m.asset_key == KEY][-1]
    assert drained.metadata["events"].value == 80
    assert drained.metadata["lag"].value == 0
    # also those that had nothing for this model: they are up to date
    assert instance.get_materialized_partitions(READ_MODEL) == set(log_partitions(16).get_partition_keys())
    assert shop.lease_owners("orders") == []


@pytest.mark.usefixtures("spark_remote")
def test_a_drain_with_a_failing_stream_is_green_and_shows_how_many_wait(
    instance: dg.DagsterInstance, dsn: str, shop: EventStore
) -> None:
    place(shop, 10)
    shop.append_events([NewEvent("order", "bad", "order_line_added", uuid4(), {"amount": "a lot"}, uuid4())])
    result = run_job(instance, dsn, "drain", "orders", QUICKLY)
    assert result.success
    assert rows(shop) == 10
    drained = [m for m in result.asset_materializations_for_node("consumption__view_events") if m.asset_key == KEY]
    shown = drained[-1].metadata
    assert (shown["failed_streams"].value, shown["dead_letters"].value) == (1, 0)

    shop.connection.execute("update event_store.stream_locks set attempts = 4, locked_until = clock_timestamp()")
    result = run_job(instance, dsn, "drain", "orders", QUICKLY)
    assert result.success
    drained = [m for m in result.asset_materializations_for_node("consumption__view_events") if m.asset_key == KEY]
    assert drained[-1].metadata["dead_letters"].value == 1
    (letter,) = shop.dead_letters("orders")
    assert (letter.decider_id, "a lot" in letter.last_error) == ("bad", True)
    assert shop.lease_owners("orders") == []


@pytest.mark.usefixtures("spark_remote")
def test_a_drain_of_a_changed_declaration_builds_the_new_version_and_lets_it_serve(
    instance: dg.DagsterInstance, dsn: str, shop: EventStore
) -> None:
    place(shop, 10)
    assert run_job(instance, dsn, "drain", "orders", QUICKLY).success
    place(shop, 10)
    changed = replace(ORDERS, columns={"status": last("event")})
    result = run_job(instance, dsn, "drain", "orders", QUICKLY, changed)
    assert result.success
    drained = [m for m in result.asset_materializations_for_node("consumption__view_events") if m.asset_key == KEY]
    assert {m.partition for m in drained} == {"orders"}
    assert (drained[-1].metadata["events"].value, drained[-1].metadata["lag"].value) == (40, 0)
    columns = shop.connection.execute("select * from read_models.orders").description or ()
    assert [column.name for column in columns] == ["order_id", "status"]
    assert [poll.view for poll in shop.poll_views()] == ["orders_v2"]

    rebuilt = run_job(instance, dsn, "rebuild", "p03", model=changed)
    assert rebuilt.success


@pytest.mark.usefixtures("spark_remote")
def test_a_drain_whose_log_partition_cannot_be_built_shows_red_and_the_others_are_built(
    instance: dg.DagsterInstance, dsn: str, shop: EventStore
) -> None:
    place(shop, 10)
    ensure_version(shop.connection, ORDERS)
    # stands for whatever is wrong with one log partition and is not the fault of an event
    shop.connection.execute(
        "create function refuse() returns trigger language plpgsql as"
        " $$ begin raise exception 'could not extend file: No space left on device' using errcode = '53100'; end $$"
    )
    behind = shop.connection.execute("select event_store.stream_partition('order-1', 16)").fetchall()[0][0]
    shop.connection.execute(
        f"create trigger refuse before insert on read_models.orders_state_p{behind:04}"
        " for each row execute function refuse()".encode()
    )
    result = run_job(instance, dsn, "drain", "orders", QUICKLY)
    assert not result.success
    assert PartitionsFailed.__name__ in failed_with(result)
    assert "No space left" in failed_with(result)
    assert [lag.partition for lag in shop.view_lag("orders") if lag.behind] == [behind]
    built = instance.get_materialized_partitions(READ_MODEL)
    assert built == set(log_partitions(16).get_partition_keys()) - {log_partition_key(behind)}
    assert shop.lease_owners("orders") == []


@pytest.mark.usefixtures("spark_remote")
def test_a_failing_log_partition_of_a_read_model_shows_red_and_a_rerun_makes_it_green(
    instance: dg.DagsterInstance, dsn: str, shop: EventStore
) -> None:
    place(shop, 10)
    ensure_version(shop.connection, ORDERS)
    lease = shop.claim_partition("orders", 3, "somebody else", 600)
    red = run_job(instance, dsn, "rebuild", "p03", AT_ONCE)
    assert not red.success
    assert PartitionLeased.__name__ in failed_with(red)
    assert "somebody else" in failed_with(red)
    status = instance.get_status_by_partition(READ_MODEL, ["p03"], log_partitions(16))
    assert status is not None
    assert status["p03"] is not None
    assert status["p03"].name == "FAILED"

    shop.release_batch("orders", [lease])
    green = run_job(instance, dsn, "rebuild", "p03")
    assert green.success
    status = instance.get_status_by_partition(READ_MODEL, ["p03"], log_partitions(16))
    assert status is not None
    assert status["p03"] is not None
    assert status["p03"].name == "MATERIALIZED"


@pytest.mark.usefixtures("spark_remote")
def test_one_run_rebuilds_a_range_of_log_partitions_and_only_the_one_that_fails_shows_red(
    instance: dg.DagsterInstance, dsn: str, shop: EventStore
) -> None:
    place(shop, 40)
    ensure_version(shop.connection, ORDERS)
    shop.claim_partition("orders", 3, "somebody else", 600)
    defs = build_defs(declarations=Declarations(models={"orders": ORDERS}), resources={"postgres": postgres_at(dsn)})
    tags = {"dagster/asset_partition_range_start": "p00", "dagster/asset_partition_range_end": "p15"}
    result = defs.resolve_job_def("rebuild").execute_in_process(
        instance=instance, tags=tags, run_config=AT_ONCE, raise_on_error=False
    )
    assert PartitionLeased.__name__ in failed_with(result)
    every = log_partitions(16).get_partition_keys()
    status = instance.get_status_by_partition(READ_MODEL, every, log_partitions(16))
    assert status is not None
    assert {key for key in every if (shown := status[key]) and shown.name == "MATERIALIZED"} == set(every) - {"p03"}
    assert status["p03"] is not None
    assert status["p03"].name == "FAILED"
    lags = shop.view_lag("orders")
    assert [lag.partition for lag in lags if lag.behind] == [lag.partition for lag in lags[3:4] if lag.high_water_mark]
    wanted = dg.AssetRecordsFilter(READ_MODEL, asset_partitions=["p05"])
    (record,) = instance.fetch_materializations(wanted, limit=2).records
    assert record.asset_materialization is not None
    assert record.asset_materialization.metadata["position"].value == lags[5].position


@pytest.mark.usefixtures("spark_remote")
def test_leases_of_a_run_that_is_over_are_given_back_at_once_by_the_next_drain(
    instance: dg.DagsterInstance, dsn: str, shop: EventStore
) -> None:
    place(shop, 40)
    ensure_version(shop.connection, ORDERS)
    dead = instance.create_run_for_job(
        job_def=build_defs().resolve_job_def("apply_schema"), status=dg.DagsterRunStatus.FAILURE
    )
    assert shop.claim_batch("orders", dead.run_id, lease_s=3600)
    assert run_job(instance, dsn, "drain", "orders", QUICKLY).success
    assert rows(shop) == 40


def test_a_view_that_nothing_consumes_is_refused_with_a_remedy(
    instance: dg.DagsterInstance, dsn: str, shop: EventStore
) -> None:
    shop.register_view("strangers", "-infinity", pooling_delay_s=1)
    result = run_job(instance, dsn, "drain", "strangers", QUICKLY)
    assert not result.success
    assert "Declare a read model for it" in failed_with(result)


def test_a_drain_pushes_as_the_settings_say(
    instance: dg.DagsterInstance, dsn: str, shop: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_PUSH_PROXY", "nowhere")
    shop.register_view("strangers", "-infinity", edge_function_url="http://hooks.example.com/")
    place(shop, 1)
    pump(shop, "strangers")
    run_job(instance, dsn, "drain", "strangers", QUICKLY)
    # nothing is sent past the proxy, and the event waits
    waits = shop.connection.execute(
        "select last_error from event_store.stream_locks where view = 'strangers'"
    ).fetchall()
    assert ["MILLRACE_PUSH_PROXY" in str(error) for (error,) in waits] == [True]


def test_applying_the_schema_reports_every_table(instance: dg.DagsterInstance, dsn: str, shop: EventStore) -> None:
    place(shop, 3)
    defs = build_defs(declarations=Declarations(), resources={"postgres": postgres_at(dsn)})
    result = defs.resolve_job_def("apply_schema").execute_in_process(instance=instance)
    assert result.success
    event = result.asset_materializations_for_node("event_store")
    (log,) = [m for m in event if m.asset_key.path[-1] == "event_log"]
    schema = log.metadata["dagster/column_schema"].value
    assert isinstance(schema, dg.TableSchema)
    assert [column.name for column in schema.columns] == ["partition", "position", "offset"]
    assert schema.columns[0].description == "The log partition."


def test_what_became_of_all_producers_messages_is_plotted_and_one_that_nobody_ends_is_a_warning(
    instance: dg.DagsterInstance, dsn: str, shop: EventStore
) -> None:
    producers = ProducerStore(shop.connection)
    for name in ("one", "two"):
        epoch = producers.register_producer(name).epoch
        producers.ingest_events(name, 0, epoch, 0)
    shop.connection.execute("set event_store.clock = '2000-01-01'")
    producers.begin_transaction("two", 0, epoch, 1)
    defs = build_defs(declarations=Declarations(), resources={"postgres": postgres_at(dsn)})
    result = defs.resolve_job_def("apply_schema").execute_in_process(instance=instance)
    (shown,) = [m for m in result.asset_materializations_for_node("event_store") if m.asset_key.path[-1] == "producers"]
    names = ("producers", "received", "committed", "duplicates", "open")
    assert [shown.metadata[name].value for name in names] == [2, 3, 2, 0, 1]
    (check,) = [each for each in result.get_asset_check_evaluations() if not each.passed]
    assert (check.check_name, check.severity) == ("messages_are_settled", dg.AssetCheckSeverity.WARN)
    assert "two, partition 0: message 1, begun 2000-01-01 00:00:00 UTC" in str(check.metadata["overdue"].value)


def test_checks_pass_on_a_sound_store_and_name_what_is_wrong(
    instance: dg.DagsterInstance, dsn: str, shop: EventStore
) -> None:
    place(shop, 20)
    shop.sequence_events()
    ensure_version(shop.connection, ORDERS)

    def failing() -> set[str]:
        defs = build_defs(
            declarations=replace(SHOP, models={"orders": ORDERS}), resources={"postgres": postgres_at(dsn)}
        )
        result = defs.resolve_job_def("apply_schema").execute_in_process(instance=instance)
        checks = result.get_asset_check_evaluations()
        assert len(checks) == 8
        return {check.check_name for check in checks if not check.passed}

    assert failing() == set()
    shop.connection.execute("set event_store.clock = '2000-01-01'")
    shop.claim_batch("orders", "dead")
    shop.connection.execute("delete from event_store.event_log where position = 0")
    shop.register_view("mails", "-infinity", max_attempts=1)
    pump(shop, "mails")
    (event, *_) = shop.stream_events("mails")
    shop.fail_event("mails", event.decider_id, event.offset, "no such address")
    with psycopg.connect(dsn) as forgotten:
        forgotten.execute("select event_store.sequence_events()")
        assert failing() == {"offsets_are_dense", "leases_are_in_time", "no_dead_letters", "log_is_not_held_up"}
