"""A run of many views as Dagster runs it: a real run on an instance, a real Postgres, a real Spark."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import dagster as dg
import pytest

from millrace.assets.consumption import KEY
from millrace.assets.declarations import Declarations, declared
from millrace.assets.rounds import SHARED_JOB, left_by
from millrace.examples.shop.events import register_shop
from millrace.platform_defs.definitions import build_defs
from millrace.resources.event_store import EventStore, NewEvent
from millrace.resources.read_models.declaration import ReadModel
from tests.support.elsewhere import postgres_at

SHOP = declared("millrace.examples.shop", ["read_models"]).models
TOGETHER = {name: SHOP[name] for name in ("orders", "customers", "shipments")}
QUICKLY = {"ops": {"rounds": {"config": {"idle_s": 0}}}}


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
        yield instance


@pytest.fixture
def shop(store: EventStore) -> EventStore:
    register_shop(store)
    return store


def job(dsn: str, models: dict[str, ReadModel] = TOGETHER) -> dg.JobDefinition:
    return build_defs(
        declarations=Declarations(models=models), resources={"postgres": postgres_at(dsn)}
    ).resolve_job_def(SHARED_JOB)


def run(instance: dg.DagsterInstance, dsn: str, models: dict[str, ReadModel] = TOGETHER) -> dg.ExecuteInProcessResult:
    return job(dsn, models).execute_in_process(instance=instance, run_config=QUICKLY, raise_on_error=False)


def place(store: EventStore, number: int, amount: object = 1.5) -> None:
    store.append_events(
        NewEvent("order", f"order-{n}", event, uuid4(), data, uuid4())
        for n in range(number)
        for event, data in (
            ("order_placed", {"customer_id": "c", "channel": "web"}),
            ("order_line_added", {"product": "p", "quantity": 1, "amount": amount}),
        )
    )


def shown(instance: dg.DagsterInstance, key: dg.AssetKey, partition: str) -> dict[str, object]:
    """Return the metadata of the newest materialization of an asset's partition."""
    (record,) = instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=key, asset_partitions=[partition]), limit=1
    ).records
    assert record.asset_materialization is not None
    return {name: value.value for name, value in record.asset_materialization.metadata.items()}


@pytest.mark.usefixtures("spark_remote")
def test_one_run_drains_all_views_and_each_has_its_own_progress(
    instance: dg.DagsterInstance, dsn: str, shop: EventStore
) -> None:
    place(shop, 40)
    result = run(instance, dsn)
    assert result.success
    assert set(instance.get_dynamic_partitions("views")) == set(TOGETHER)
    progress = {view: shown(instance, KEY, view) for view in ("orders", "customers")}
    assert {view: (one["events"], one["lag"]) for view, one in progress.items()} == {
        "orders": (80, 0),
        "customers": (80, 0),
    }
    # nothing that it wants came: no progress is claimed for it
    assert instance.get_materialized_partitions(KEY) == {"orders", "customers"}
    partitions = instance.get_materialized_partitions(dg.AssetKey(["read_models", "orders"]))
    assert len(partitions) == 16
    assert shop.owned_leases(result.run_id) == {}
    assert shop.connection.execute("select count(*), sum(lines) from read_models.orders").fetchall() == [(40, 40)]


@pytest.mark.usefixtures("spark_remote")
def test_a_view_that_fails_leaves_the_run_green_and_is_named_in_its_log(
    instance: dg.DagsterInstance, dsn: str, shop: EventStore
) -> None:
    place(shop, 3, amount="a lot")
    result = run(instance, dsn, {name: TOGETHER[name] for name in ("orders", "customers")})
    assert result.success
    said = [record.user_message for record in instance.all_logs(result.run_id)]
    assert any("orders goes on without this run: " in one and "a lot" in one for one in said)
    assert instance.get_materialized_partitions(KEY) == {"customers"}
    told = instance.get_run_by_id(result.run_id)
    assert told is not None
    assert "a lot" in left_by(told)["orders"]


@pytest.mark.usefixtures("spark_remote")
def test_a_run_finds_another_one_at_work_and_ends_at_once(
    instance: dg.DagsterInstance, dsn: str, shop: EventStore
) -> None:
    place(shop, 3)
    assert run(instance, dsn).success
    other = instance.create_run_for_job(job_def=job(dsn), status=dg.DagsterRunStatus.STARTED).run_id
    shop.append_events([NewEvent("order", "late", "order_placed", uuid4(), {}, uuid4())])
    shop.attach_consumer("orders", other)
    assert run(instance, dsn).success
    assert shop.connection.execute("select count(*) from read_models.orders").fetchall() == [(3,)]
    # one that died, whatever Dagster says of it
    shop.detach_consumer("orders", other)
    assert run(instance, dsn).success
    assert shop.connection.execute("select count(*) from read_models.orders").fetchall() == [(4,)]


@pytest.mark.usefixtures("spark_remote")
def test_the_leases_of_a_run_that_was_killed_are_given_back_by_the_next_one(
    instance: dg.DagsterInstance, dsn: str, shop: EventStore
) -> None:
    assert run(instance, dsn).success
    place(shop, 5)
    killed = instance.create_run_for_job(job_def=job(dsn), status=dg.DagsterRunStatus.FAILURE).run_id
    assert shop.claim_views(["orders", "customers"], killed, lease_s=600)
    assert run(instance, dsn).success
    assert shop.connection.execute("select count(*) from read_models.orders").fetchall() == [(5,)]


@pytest.mark.usefixtures("spark_remote")
def test_a_version_that_is_built_shows_under_the_declared_name(
    instance: dg.DagsterInstance, dsn: str, shop: EventStore
) -> None:
    place(shop, 5)
    assert run(instance, dsn).success
    orders = TOGETHER["orders"]
    changed = replace(orders, columns={**orders.columns, "again": orders.columns["status"]})
    assert run(instance, dsn, {**TOGETHER, "orders": changed}).success
    assert shop.connection.execute("select count(again) from read_models.orders").fetchall() == [(5,)]
    assert shown(instance, KEY, "orders")["lag"] == 0
