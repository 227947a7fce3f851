"""A read model or subscription that becomes late turns red by itself, and green when it is fresh again."""

from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import dagster as dg
import psycopg
import pytest

from millrace.assets.declarations import Declarations, Fault, declared
from millrace.assets.drains import model_objective
from millrace.assets.verdicts import LAG_CHECK, LOADS_CHECK
from millrace.event_store.platform import PlatformStore
from millrace.platform_defs.checks import lag_check
from millrace.read_models.stored.versions import ensure_version, reset_model
from tests.support.elsewhere import postgres_at
from tests.support.factories import register_shop_without_schemas
from tests.support.running import in_process
from tests.support.sql_calls import BatchEvent, append_events

MODELS = declared("millrace.examples.shop", ["read_models"]).models
ORDERS, SHIPMENTS = replace(MODELS["orders"], lookups={}), MODELS["shipments"]


@pytest.fixture
def shop(store: PlatformStore) -> PlatformStore:
    register_shop_without_schemas(store)
    for model in (ORDERS, SHIPMENTS):
        ensure_version(store.connection, model)
    return store


def tick(instance: dg.DagsterInstance, dsn: str, cursor: str | None, max_lag_s: int) -> dg.SensorResult:
    models = {model.name: model for model in (ORDERS, SHIPMENTS)}
    with psycopg.connect(dsn) as connection:
        connection.execute("update event_store.views set max_lag_s = %s", (max_lag_s,))
    return in_process.tick(instance, dsn, Declarations(models=models), "watch_freshness", cursor)


def said(instance: dg.DagsterInstance, model: str) -> list[bool]:
    key = dg.AssetCheckKey(dg.AssetKey(["read_models", model]), LAG_CHECK)
    history = instance.event_log_storage.get_asset_check_execution_history(key, limit=10)
    return [record.status.value == "SUCCEEDED" for record in history]


def place(store: PlatformStore) -> None:
    append_events(store, [BatchEvent("order", str(uuid4()), "order_placed", uuid4(), {}, uuid4())])
    store.sequence_events()


def test_a_model_turns_red_once_and_green_once(instance: dg.DagsterInstance, dsn: str, shop: PlatformStore) -> None:
    place(shop)
    fresh = tick(instance, dsn, None, max_lag_s=3600)
    assert said(instance, "orders") == []
    late = tick(instance, dsn, fresh.cursor, max_lag_s=0)
    assert late.skip_reason == dg.SkipReason("late: read_models/orders")
    still = tick(instance, dsn, late.cursor, max_lag_s=0)
    assert said(instance, "orders") == [False]
    tick(instance, dsn, still.cursor, max_lag_s=3600)
    assert said(instance, "orders") == [True, False]


def test_a_model_that_no_drain_has_made_is_not_late(
    instance: dg.DagsterInstance, dsn: str, store: PlatformStore
) -> None:
    register_shop_without_schemas(store)
    place(store)
    assert tick(instance, dsn, None, max_lag_s=0).skip_reason == dg.SkipReason("none of 2 views is late")
    assert said(instance, "orders") == []


def test_a_model_that_nobody_judges_stays_as_it_was(
    instance: dg.DagsterInstance, dsn: str, shop: PlatformStore
) -> None:
    place(shop)
    late = tick(instance, dsn, None, max_lag_s=0)
    reset_model(shop.connection, ORDERS)
    unknown = tick(instance, dsn, late.cursor, max_lag_s=3600)
    assert said(instance, "orders") == [False]
    ensure_version(shop.connection, ORDERS)
    tick(instance, dsn, unknown.cursor, max_lag_s=3600)
    assert said(instance, "orders") == [True, False]


def test_a_declaration_that_fails_to_load_is_red(instance: dg.DagsterInstance, dsn: str, shop: PlatformStore) -> None:
    fault = Fault("read_models", "orders", Path("orders.py"), 3, "SyntaxError: invalid syntax")
    assert shop.standing() == []
    # no read model remains that could become late
    declared_now = Declarations(faults=(fault,))
    asset = dg.AssetKey(["read_models", "orders"])
    # from the time when the file loaded
    instance.report_runless_asset_event(dg.AssetMaterialization(asset, partition="p03"))
    for _ in range(2):
        in_process.tick(instance, dsn, declared_now, "watch_freshness")
        key = dg.AssetCheckKey(asset, LOADS_CHECK)
        (record,) = instance.event_log_storage.get_asset_check_execution_history(key, limit=9)
        assert record.evaluation is not None
        assert record.evaluation.metadata["fails"].value == ["orders.py:3: SyntaxError: invalid syntax"]
        assert not record.evaluation.passed


def test_the_hourly_check_decides_as_the_sensor_does(dsn: str, shop: PlatformStore) -> None:
    place(shop)
    for most, passed in ((0, False), (3600, True)):
        # the store learns the declared objective at the next drain
        ensure_version(shop.connection, replace(ORDERS, max_lag_s=most))
        result = lag_check(model_objective(replace(ORDERS, max_lag_s=most)))(postgres=postgres_at(dsn))
        assert isinstance(result, dg.AssetCheckResult)
        assert result.passed is passed
        assert result.metadata["objective_seconds"] == dg.MetadataValue.float(float(most))
