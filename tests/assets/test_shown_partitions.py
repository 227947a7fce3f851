"""What Dagster shows of a read model's log partitions: red where a drain made no progress, green where it did."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import dagster as dg
import pytest

from millrace.assets.consumption import DrainProgress
from millrace.assets.declarations import Declarations, declared
from millrace.assets.lineage import COLUMN_LINEAGE
from millrace.assets.partitions import log_partition_key, log_partitions
from millrace.assets.rounds import SHARED_JOB
from millrace.assets.shown_partitions import ShownPartitions
from millrace.examples.shop.events import register_shop
from millrace.platform_defs.definitions import build_defs
from millrace.resources.errors import UnknownView
from millrace.resources.event_store import EventStore, NewEvent
from millrace.resources.read_models.columns import min_
from millrace.resources.read_models.declaration import ReadModel
from tests.support.elsewhere import postgres_at

SHOP = declared("millrace.examples.shop", ["read_models"]).models
ORDERS = SHOP["orders"]
WRONG = replace(ORDERS, columns={**ORDERS.columns, "channel": min_("data.channel", type="timestamp")})
ASSET = dg.AssetKey(["read_models", "orders"])
ALL = set(range(16))
QUICKLY = {"ops": {"consumption__view_events": {"config": {"idle_s": 0}}}}
TOGETHER = {"ops": {"rounds": {"config": {"idle_s": 0}}}}
WHOLE = {"dagster/asset_partition_range_start": "p00", "dagster/asset_partition_range_end": "p15"}


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
        instance.add_dynamic_partitions("views", ["orders"])
        yield instance


@pytest.fixture
def shop(store: EventStore) -> EventStore:
    register_shop(store)
    place(store, 40)
    return store


def place(store: EventStore, number: int) -> None:
    store.append_events(
        NewEvent("order", f"order-{uuid4()}", "order_placed", uuid4(), {"customer_id": "c", "channel": "web"}, uuid4())
        for _ in range(number)
    )


def definitions(dsn: str, models: Mapping[str, ReadModel]) -> dg.Definitions:
    return build_defs(declarations=Declarations(models=models), resources={"postgres": postgres_at(dsn)})


def drain(instance: dg.DagsterInstance, dsn: str, model: ReadModel) -> dg.ExecuteInProcessResult:
    job = definitions(dsn, {"orders": model}).resolve_job_def("drain")
    return job.execute_in_process(instance=instance, partition_key="orders", run_config=QUICKLY, raise_on_error=False)


def drain_together(instance: dg.DagsterInstance, dsn: str, models: Mapping[str, ReadModel]) -> None:
    job = definitions(dsn, models).resolve_job_def(SHARED_JOB)
    assert job.execute_in_process(instance=instance, run_config=TOGETHER).success


def states(instance: dg.DagsterInstance, asset: dg.AssetKey = ASSET) -> dict[str, set[int]]:
    """Return the log partitions in each state."""
    found: dict[str, set[int]] = {}
    known = instance.get_status_by_partition(asset, log_partitions(16).get_partition_keys(), log_partitions(16)) or {}
    for partition in ALL:
        state = known.get(log_partition_key(partition))
        found.setdefault(state.name if state else "MISSING", set()).add(partition)
    return found


def said_of_columns(instance: dg.DagsterInstance) -> dict[str, list[str]]:
    """Return where columns come from by the asset's newest materialization."""
    newest = instance.get_latest_materialization_event(ASSET)
    assert newest is not None
    assert newest.asset_materialization is not None
    lineage = newest.asset_materialization.metadata[COLUMN_LINEAGE].value
    assert isinstance(lineage, dg.TableColumnLineage)
    return {column: [dep.column_name for dep in deps] for column, deps in lineage.deps_by_column.items()}


def materializations(instance: dg.DagsterInstance) -> int:
    return len(instance.fetch_materializations(ASSET, limit=1000).records)


@pytest.mark.usefixtures("spark_remote")
def test_a_drain_that_fails_makes_the_log_partitions_red_that_made_no_progress_and_a_rebuild_green(
    instance: dg.DagsterInstance, dsn: str, shop: EventStore
) -> None:
    red = drain(instance, dsn, WRONG)
    assert not red.success
    behind = {lag.partition for lag in shop.view_lag("orders") if lag.lag}
    assert len(behind) > 8
    # those without events are up to date
    assert states(instance) == {"FAILED": behind, **({"MATERIALIZED": ALL - behind} if ALL - behind else {})}
    (newest,) = instance.fetch_observations(ASSET, limit=1).records
    assert newest.asset_observation is not None
    assert "not exactly a timestamp" in str(newest.asset_observation.metadata["fails"].value)
    planned = instance.get_latest_planned_materialization_info(ASSET, log_partition_key(min(behind)))
    assert planned is not None
    assert planned.run_id == red.run_id

    rebuild = definitions(dsn, {"orders": ORDERS}).resolve_job_def("rebuild")
    assert rebuild.execute_in_process(instance=instance, tags=WHOLE).success
    assert states(instance) == {"MATERIALIZED": ALL}
    assert said_of_columns(instance)["customer_id"] == ["data.customer_id"]


@pytest.mark.usefixtures("spark_remote")
def test_a_drain_that_cannot_begin_makes_only_log_partitions_red_where_events_wait(
    instance: dg.DagsterInstance, dsn: str, shop: EventStore
) -> None:
    assert drain(instance, dsn, ORDERS).success
    place(shop, 3)
    shop.sequence_events()
    waiting = {lag.partition for lag in shop.view_lag("orders") if lag.lag}
    assert 0 < len(waiting) <= 3
    # as after a restore to an earlier time
    shop.connection.execute(
        "update event_store.checkpoints set position = 1000000 where view = 'orders' and partition = %s",
        [min(ALL - waiting)],
    )
    assert not drain(instance, dsn, ORDERS).success
    assert states(instance) == {"FAILED": waiting, "MATERIALIZED": ALL - waiting}
    (newest,) = instance.fetch_observations(ASSET, limit=1).records
    assert newest.asset_observation is not None
    assert "ahead of the log" in str(newest.asset_observation.metadata["fails"].value)


@pytest.mark.usefixtures("spark_remote", "shop")
def test_a_log_partition_that_failed_becomes_green_by_the_drain_of_all_views(
    instance: dg.DagsterInstance, dsn: str
) -> None:
    assert not drain(instance, dsn, WRONG).success
    models = {name: SHOP[name] for name in ("orders", "shipments")}
    drain_together(instance, dsn, models)
    assert states(instance) == {"MATERIALIZED": ALL}
    # nothing that this one wants came: it is up to date
    assert states(instance, dg.AssetKey(["read_models", "shipments"])) == {"MATERIALIZED": ALL}


@pytest.mark.usefixtures("spark_remote")
def test_a_drain_writes_only_what_changed_also_since_other_drains(
    instance: dg.DagsterInstance, dsn: str, shop: EventStore
) -> None:
    assert drain(instance, dsn, ORDERS).success
    before = materializations(instance)
    assert before == len(ALL)
    assert drain(instance, dsn, ORDERS).success
    drain_together(instance, dsn, {"orders": ORDERS})
    assert materializations(instance) == before
    place(shop, 1)
    drain_together(instance, dsn, {"orders": ORDERS})
    assert materializations(instance) == before + 1
    assert said_of_columns(instance)["customer_id"] == ["data.customer_id"]
    # of those that are written together, the newest one alone
    written = instance.fetch_materializations(ASSET, limit=1000).records
    assert [COLUMN_LINEAGE in one.asset_materialization.metadata for one in written if one.asset_materialization] == [
        True,
        True,
        *[False] * (before - 1),
    ]


@pytest.mark.usefixtures("spark_remote", "shop")
def test_a_drain_says_what_one_that_died_after_its_commit_did_not(
    instance: dg.DagsterInstance, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        # stands for a process that dies between the commit in Postgres and what Dagster is told of it
        patch.setattr(ShownPartitions, "make_green", lambda *_: None)
        assert drain(instance, dsn, ORDERS).success
    assert states(instance) == {"MISSING": ALL}
    assert drain(instance, dsn, ORDERS).success
    assert states(instance) == {"MATERIALIZED": ALL}


def test_the_partitions_that_a_person_picks_are_rebuilt_in_one_run(dsn: str) -> None:
    asset = definitions(dsn, {"orders": ORDERS}).resolve_asset_graph().get(ASSET)
    assert asset.backfill_policy == dg.BackfillPolicy.single_run()


@pytest.mark.usefixtures("spark_remote", "shop")
def test_a_state_that_cannot_be_shown_does_not_hide_why_a_drain_failed(
    instance: dg.DagsterInstance, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: DrainProgress) -> None:
        raise UnknownView("view orders is not registered")

    monkeypatch.setattr(DrainProgress, "finish", refused)
    failed = drain(instance, dsn, WRONG)
    assert not failed.success
    (error,) = (event.step_failure_data.error for event in failed.all_events if event.is_step_failure)
    assert "is not registered" not in str(error and error.cause and error.cause.message)
    observed = instance.fetch_observations(dg.AssetRecordsFilter(ASSET), limit=16).records
    said = {str(each.asset_observation.metadata["fails"].value) for each in observed if each.asset_observation}
    assert said
    assert not [each for each in said if "is not registered" in each]
