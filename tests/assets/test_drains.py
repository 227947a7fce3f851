"""Drains and rebuilds in Dagster: real runs on an instance, a real Postgres, a real Spark.

Here are the runs, and how Dagster shows a read model's log partitions: red where a drain made no progress, green
where it did. Not here: the store's own assets and checks (`test_event_store.py`), the built rows (`consumption`).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import dagster as dg
import pytest

from millrace.assets.declarations import Declarations, declared
from millrace.assets.drains import DrainProgress
from millrace.assets.lineage import COLUMN_LINEAGE
from millrace.assets.partitions import VIEW_EVENTS, log_partitions
from millrace.assets.partitions import log_partition_key as key
from millrace.assets.rounds import ALL_VIEWS, SHARED_JOB
from millrace.assets.shown_partitions import ShownPartitions
from millrace.drain.limits import Limits
from millrace.drain.loop import Drain
from millrace.drain.report import PartitionsFailed
from millrace.errors import MillraceError, PartitionLeased, UnknownView
from millrace.event_store.platform import PlatformStore
from millrace.platform_defs.loading import build_defs
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.declared.words import first, last, min_
from millrace.read_models.stored import tables
from millrace.read_models.stored.versions import ensure_version
from tests.support.elsewhere import postgres_at
from tests.support.factories import pump, register_shop_without_schemas
from tests.support.running.in_process import failed_with
from tests.support.sql_calls import BatchEvent, append_events

AT_ONCE = {"ops": {"read_models__orders": {"config": {"wait_s": 0}}}}
QUICKLY = {"ops": {"consumption__view_events": {"config": {"idle_s": 0}}}}
TOGETHER_QUICKLY = {"ops": {"rounds": {"config": {"idle_s": 0}}}}
SHOP = declared("millrace.examples.shop", ["read_models"]).models
ORDERS = replace(SHOP["orders"], lookups={}, indexes=())
TOGETHER = {"orders": ORDERS, "customers": SHOP["customers"], "shipments": SHOP["shipments"]}
READ_MODEL = dg.AssetKey(["read_models", "orders"])
ALL = set(range(16))

Result = dg.ExecuteInProcessResult
Instance = dg.DagsterInstance
Run = Callable[..., Result]
pytestmark = pytest.mark.usefixtures("spark_remote")


@pytest.fixture
def shop(store: PlatformStore) -> PlatformStore:
    register_shop_without_schemas(store)
    return store


def place(store: PlatformStore, number: int) -> None:
    """Append two events for each of `number` new orders."""
    append_events(
        store,
        (
            BatchEvent("order", order, event, uuid4(), data, uuid4())
            for order in [f"order-{uuid4()}" for _ in range(number)]
            for event, data in (
                ("order_placed", {"customer_id": "c", "channel": "web"}),
                ("order_line_added", {"product": "p", "quantity": 1, "amount": 1.5}),
            )
        ),
    )


def definitions(dsn: str, models: Mapping[str, ReadModel]) -> dg.Definitions:
    return build_defs(declarations=Declarations(models=models), resources={"postgres": postgres_at(dsn)})


@pytest.fixture
def drain(instance: Instance, dsn: str) -> Run:
    def drain(model: ReadModel = ORDERS, view: str = "orders") -> Result:
        instance.add_dynamic_partitions("views", [view])  # the sensor adds it with its first request
        job = definitions(dsn, {"orders": model}).resolve_job_def("drain")
        return job.execute_in_process(instance=instance, partition_key=view, run_config=QUICKLY, raise_on_error=False)

    return drain


@pytest.fixture
def drain_together(instance: Instance, dsn: str) -> Run:
    def drain(models: Mapping[str, ReadModel] = TOGETHER) -> Result:
        job = definitions(dsn, models).resolve_job_def(SHARED_JOB)
        return job.execute_in_process(instance=instance, run_config=TOGETHER_QUICKLY)

    return drain


@pytest.fixture
def rebuild(instance: Instance, dsn: str) -> Run:
    """Return a function that rebuilds log partitions of orders, and does not wait for leases."""

    def rebuild(model: ReadModel = ORDERS, **which: Any) -> Result:  # noqa: ANN401 - arguments of Dagster
        job = definitions(dsn, {"orders": model}).resolve_job_def("rebuild")
        return job.execute_in_process(instance=instance, run_config=AT_ONCE, raise_on_error=False, **which)

    return rebuild


def orders(store: PlatformStore) -> int:
    return store.connection.execute("select count(*) from read_models.orders").fetchall()[0][0]  # type: ignore[no-any-return]


def newest(instance: Instance, asset: dg.AssetKey = READ_MODEL) -> dict[str, Any]:
    event = instance.get_latest_materialization_event(asset)
    assert event is not None
    assert event.asset_materialization is not None
    return {name: value.value for name, value in event.asset_materialization.metadata.items()}


def progress(instance: Instance, view: str = "orders") -> dict[str, object]:
    return partitions_shown(instance, VIEW_EVENTS, view)


def partitions_shown(instance: Instance, asset: dg.AssetKey, partition: str) -> dict[str, object]:
    wanted = dg.AssetRecordsFilter(asset_key=asset, asset_partitions=[partition])
    (record,) = instance.fetch_materializations(wanted, limit=1).records
    assert record.asset_materialization is not None
    return {name: value.value for name, value in record.asset_materialization.metadata.items()}


def states(instance: Instance, asset: dg.AssetKey = READ_MODEL) -> dict[str, set[int]]:
    """Return the log partitions in each state."""
    found: dict[str, set[int]] = {}
    known = instance.get_status_by_partition(asset, log_partitions(16).get_partition_keys(), log_partitions(16)) or {}
    for partition in ALL:
        state = known.get(key(partition))
        found.setdefault(state.name if state else "MISSING", set()).add(partition)
    return found


def why_red(instance: Instance) -> str:
    (newest,) = instance.fetch_observations(READ_MODEL, limit=1).records
    assert newest.asset_observation is not None
    return str(newest.asset_observation.metadata["fails"].value)


def said_of_columns(instance: Instance, asset: dg.AssetKey = READ_MODEL) -> dict[str, list[str]]:
    deps_by_column = newest(instance, asset)[COLUMN_LINEAGE].deps_by_column
    return {column: [dep.column_name for dep in deps] for column, deps in deps_by_column.items()}


def check(instance: Instance, dsn: str, model: ReadModel, name: str) -> dg.AssetCheckEvaluation:
    job = definitions(dsn, {"orders": model}).resolve_job_def("apply_schema")
    checks = job.execute_in_process(instance=instance).get_asset_check_evaluations()
    return next(each for each in checks if each.check_name == name)


# One view --------------------------------------------------------------------------------------------------


def test_a_drain_builds_shows_and_serves(instance: Instance, shop: PlatformStore, drain: Run, rebuild: Run) -> None:
    place(shop, 40)
    ensure_version(shop.connection, ORDERS)
    job = build_defs().resolve_job_def("apply_schema")
    dead = instance.create_run_for_job(job_def=job, status=dg.DagsterRunStatus.FAILURE)
    # the next drain releases this lease at once
    assert shop.claim_batch("orders", dead.run_id, lease_s=3600)
    assert drain().success
    assert orders(shop) == 40
    assert (progress(instance)["events"], progress(instance)["lag"]) == (80, 0)
    # also partitions without events for this model: they are up to date
    assert states(instance) == {"MATERIALIZED": ALL}
    assert said_of_columns(instance, dg.AssetKey(["read_models", "orders_by_status"]))["status"] == ["status"]
    assert shop.lease_owners("orders") == []

    place(shop, 10)
    changed = replace(ORDERS, columns={"status": last("event")}, rollups=())
    assert drain(changed).success
    assert instance.get_materialized_partitions(VIEW_EVENTS) == {"orders"}
    assert (progress(instance)["events"], progress(instance)["lag"]) == (100, 0)
    columns = shop.connection.execute("select * from read_models.orders").description or ()
    assert [column.name for column in columns] == ["order_id", "status"]
    assert [poll.view for poll in shop.poll_views()] == ["orders_v2"]
    assert rebuild(changed, partition_key="p03").success


def test_failing_streams_leave_a_drain_green_and_are_counted(
    instance: Instance, shop: PlatformStore, drain: Run
) -> None:
    place(shop, 10)
    append_events(shop, [BatchEvent("order", "bad", "order_line_added", uuid4(), {"amount": "a lot"}, uuid4())])
    assert drain().success
    assert orders(shop) == 10
    assert (progress(instance)["failed_streams"], progress(instance)["dead_letters"]) == (1, 0)

    shop.connection.execute("update event_store.stream_locks set attempts = 4, locked_until = clock_timestamp()")
    assert drain().success
    assert progress(instance)["dead_letters"] == 1
    (letter,) = shop.dead_letters("orders")
    assert (letter.decider_id, "a lot" in letter.last_error) == ("bad", True)
    assert shop.lease_owners("orders") == []


def test_log_partitions_whose_events_all_failed_are_not_green(
    instance: Instance, shop: PlatformStore, drain: Run
) -> None:
    # one failing stream only: with several of one cause the log partitions would fail, and be red
    append_events(shop, [BatchEvent("order", "bad", "order_line_added", uuid4(), {"amount": "a lot"}, uuid4())])
    assert drain().success
    waiting = {lag.partition for lag in shop.view_lag("orders") if lag.lag}
    assert waiting
    assert states(instance) == {"MISSING": waiting, "MATERIALIZED": ALL - waiting}


def test_what_cannot_be_built_is_red_alone(instance: Instance, shop: PlatformStore, drain: Run, rebuild: Run) -> None:
    place(shop, 40)
    shop.sequence_events()
    ensure_version(shop.connection, ORDERS)
    # stands for any fault of one log partition that no event causes
    shop.connection.execute(
        "create function refuse() returns trigger language plpgsql as"
        " $$ begin raise exception 'could not extend file: No space left on device' using errcode = '53100'; end $$"
    )
    lags = shop.view_lag("orders")
    behind, beside = [lag.partition for lag in lags if lag.high_water_mark][:2]
    both = {"dagster/asset_partition_range_start": key(behind), "dagster/asset_partition_range_end": key(beside)}
    shop.connection.execute(
        "create trigger refuse before insert on read_models.orders_state for each row"
        f" when (new.partition = {behind}) execute function refuse()".encode()
    )
    red = drain()
    assert not red.success
    assert PartitionsFailed.__name__ in failed_with(red)
    assert "No space left" in failed_with(red)
    assert "No space left" in why_red(instance)
    assert [lag.partition for lag in shop.view_lag("orders") if lag.behind] == [behind]
    assert states(instance) == {"FAILED": {behind}, "MATERIALIZED": ALL - {behind}}
    planned = instance.get_latest_planned_materialization_info(READ_MODEL, key(behind))
    assert planned is not None
    assert planned.run_id == red.run_id
    assert shop.lease_owners("orders") == []

    # one run for a range, in which another log partition fails
    shop.connection.execute("drop function refuse() cascade")
    lease = shop.claim_partition("orders", beside, "somebody else", 600)
    result = rebuild(tags=both)
    assert PartitionLeased.__name__ in failed_with(result)
    assert "somebody else" in failed_with(result)
    assert states(instance) == {"FAILED": {beside}, "MATERIALIZED": ALL - {beside}}
    assert partitions_shown(instance, READ_MODEL, key(behind))["position"] == lags[behind].high_water_mark
    assert said_of_columns(instance)["customer_id"] == ["data.customer_id"]

    shop.release_batch("orders", [lease])
    assert rebuild(partition_key=key(beside)).success
    assert states(instance) == {"MATERIALIZED": ALL}


def materializations(instance: Instance) -> list[dg.AssetMaterialization | None]:
    return [one.asset_materialization for one in instance.fetch_materializations(READ_MODEL, limit=1000).records]


def test_drains_show_only_what_changed_or_was_not_shown(
    instance: Instance, shop: PlatformStore, drain: Run, drain_together: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(shop, 40)
    with monkeypatch.context() as patch:
        # stands for a process that dies between the commit in Postgres and its report to Dagster
        patch.setattr(ShownPartitions, "make_green", lambda *_: None)
        assert drain().success
    assert states(instance) == {"MISSING": ALL}
    assert drain().success
    assert states(instance) == {"MATERIALIZED": ALL}
    assert len(materializations(instance)) == len(ALL)
    assert drain_together({"orders": ORDERS}).success
    assert len(materializations(instance)) == len(ALL)
    place(shop, 1)
    assert drain_together({"orders": ORDERS}).success
    assert said_of_columns(instance)["customer_id"] == ["data.customer_id"]
    # of materializations that are written together, only the newest has it
    told = [COLUMN_LINEAGE in one.metadata for one in materializations(instance) if one]
    assert told == [True, True, *[False] * (len(ALL) - 1)]


def test_a_drain_that_cannot_begin_is_red_where_events_wait(
    instance: Instance, shop: PlatformStore, drain: Run, drain_together: Run
) -> None:
    place(shop, 3)
    shop.sequence_events()
    ensure_version(shop.connection, ORDERS)
    waiting = {lag.partition for lag in shop.view_lag("orders") if lag.lag}
    assert 0 < len(waiting) <= 3
    # as after a restore to an earlier time
    shop.connection.execute(
        "update event_store.checkpoints set position = 1000000 where view = 'orders' and partition = %s",
        [min(ALL - waiting)],
    )
    assert not drain().success
    assert states(instance)["FAILED"] == waiting
    assert "ahead of the log" in why_red(instance)

    shop.connection.execute("update event_store.checkpoints set position = 0 where position = 1000000")
    assert drain_together({"orders": ORDERS, "shipments": SHOP["shipments"]}).success
    assert states(instance) == {"MATERIALIZED": ALL}
    # no event that this model wants came: it is up to date
    assert states(instance, dg.AssetKey(["read_models", "shipments"])) == {"MATERIALIZED": ALL}


def test_a_state_that_cannot_be_shown_does_not_hide_why_a_drain_failed(
    instance: Instance, shop: PlatformStore, drain: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: DrainProgress) -> None:
        raise UnknownView("view orders is not registered")

    place(shop, 10)
    monkeypatch.setattr(DrainProgress, "finish", refused)
    wrong = replace(ORDERS, columns={**ORDERS.columns, "channel": min_("data.channel", type="timestamp")})
    failed = drain(wrong)
    assert not failed.success
    (error,) = (event.step_failure_data.error for event in failed.all_events if event.is_step_failure)
    assert "is not registered" not in str(error and error.cause and error.cause.message)
    assert "not exactly a timestamp" in why_red(instance)
    assert "is not registered" not in why_red(instance)


def test_a_view_that_nothing_consumes_is_refused_with_a_remedy(shop: PlatformStore, drain: Run) -> None:
    shop.register_view("strangers", "-infinity", pooling_delay_s=1)
    result = drain(view="strangers")
    assert not result.success
    assert "Declare a read model for it" in failed_with(result)


def test_a_drain_pushes_as_the_settings_say(
    shop: PlatformStore, drain: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MILLRACE_PUSH_ALLOW", "127.0.0.1")
    # no server listens there
    shop.register_view("strangers", "-infinity", edge_function_url="http://127.0.0.1:1/")
    place(shop, 1)
    pump(shop, "strangers")
    drain(view="strangers")
    # the push went to the listed address, and the event waits
    waits = shop.connection.execute("select last_error from event_store.stream_locks where view = 'strangers'")
    assert waits.fetchall() == [("No answer.",)]
    monkeypatch.setenv("MILLRACE_KEYS", str(tmp_path))
    shop.register_view("strangers", push_unseal=True)
    assert "has no file epoch-1.key" in failed_with(drain(view="strangers"))


def test_each_way_to_build_keeps_to_the_settings(
    instance: Instance,
    shop: PlatformStore,
    drain: Run,
    rebuild: Run,
    drain_together: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert shop.poll_views() == []
    given: list[Limits] = []

    def far_enough(*_: object, limits: Limits, **__: object) -> None:
        given.append(limits)
        raise MillraceError("far enough")

    monkeypatch.setattr(Drain, "__init__", far_enough)
    monkeypatch.setenv("MILLRACE_CORES", "3")
    monkeypatch.setenv("MILLRACE_BUILD_TIMEOUT_S", "50")
    assert "far enough" in failed_with(drain())
    assert "far enough" in failed_with(rebuild(partition_key="p03"))
    with pytest.raises(MillraceError, match="far enough"):
        drain_together()
    assert given == [Limits(cores=3, build_s=50, round_s=5)] * 3
    # no drain has made the model
    assert states(instance) == {"FAILED": ALL}


# Many views ------------------------------------------------------------------------------------------------


def test_one_run_drains_all_views_alone(instance: Instance, dsn: str, shop: PlatformStore, drain_together: Run) -> None:
    place(shop, 40)
    first = drain_together()
    assert first.success
    assert set(instance.get_dynamic_partitions("views")) == set(TOGETHER)
    for view in ("orders", "customers"):
        assert (progress(instance, view)["events"], progress(instance, view)["lag"]) == (80, 0)
    # no event that `shipments` wants came: no progress is shown for it
    assert instance.get_materialized_partitions(VIEW_EVENTS) == {"orders", "customers"}
    assert states(instance) == {"MATERIALIZED": ALL}
    assert shop.owned_leases(first.run_id) == {}
    assert shop.connection.execute("select count(*), sum(lines) from read_models.orders").fetchall() == [(40, 40)]

    assert shop.drain_states(ALL_VIEWS)[ALL_VIEWS].since_s is None
    place(shop, 1)
    assert shop.begin_drain(ALL_VIEWS, "another run")
    assert drain_together().success
    assert orders(shop) == 40
    shop.end_drain(ALL_VIEWS, "another run")
    # a killed run that did not release its leases
    job = definitions(dsn, TOGETHER).resolve_job_def(SHARED_JOB)
    killed = instance.create_run_for_job(job_def=job, status=dg.DagsterRunStatus.FAILURE).run_id
    assert shop.claim_views(["orders", "customers"], killed, lease_s=600)
    assert drain_together().success
    assert orders(shop) == 41

    changed = replace(ORDERS, columns={**ORDERS.columns, "again": ORDERS.columns["status"]})
    assert drain_together({**TOGETHER, "orders": changed}).success
    assert shop.connection.execute("select count(again) from read_models.orders").fetchall() == [(41,)]
    # the progress of a version that is built shows under the declared name
    assert progress(instance)["lag"] == 0


def test_a_failing_view_leaves_the_run_green(instance: Instance, shop: PlatformStore, drain_together: Run) -> None:
    # only orders that fail, and all with one cause
    place(shop, 8)
    wrong = replace(ORDERS, columns={**ORDERS.columns, "channel": min_("data.channel", type="timestamp")})
    result = drain_together({"orders": wrong, "customers": TOGETHER["customers"]})
    assert result.success
    said = [record.user_message for record in instance.all_logs(result.run_id)]
    assert any("orders goes on without this run: " in one and "'web'" in one for one in said)
    assert instance.get_materialized_partitions(VIEW_EVENTS) == {"customers"}
    # the store records a failed attempt of the view, and a success of the drain of all views
    states = shop.drain_states(ALL_VIEWS, "orders", "customers")
    assert {name: state.failures for name, state in states.items()} == {ALL_VIEWS: 0, "orders": 1, "customers": 0}
    assert "'web'" in (states["orders"].error or "")


def test_the_page_and_a_check_tell_of_indexes(
    instance: Instance, dsn: str, shop: PlatformStore, drain: Run, rebuild: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    indexed = replace(ORDERS, indexes=SHOP["orders"].indexes)
    check_indexes = partial(check, instance, dsn, indexed, "indexes_are_made")
    assert check_indexes().passed
    place(shop, 3)
    drain(indexed)
    page = newest(instance)
    assert page["indexes"] == ["order_id", "customer_id", "status, placed_at"]
    assert (page["bytes"] >= 4 * 8192, page["dagster/row_count"]) == (True, orders(shop))
    # the row count of a large table is an estimate
    monkeypatch.setattr(tables, "_COUNTED_BYTES", 0)
    assert check_indexes().passed
    first, second = sorted(f"orders_state_{one.digits}" for one in indexed.indexes)
    shop.connection.execute(f"drop index read_models.{first}, read_models.{second}")
    shop.connection.execute("create index by_hand on read_models.orders_state (lines)")
    shop.connection.execute(
        f"comment on table read_models.orders_state is 'too long: orders_state_{indexed.indexes[0].digits}'"
    )
    shop.connection.execute("analyze read_models.orders_state")
    rebuild(indexed, partition_key=key(3))
    page = newest(instance)
    assert page["dagster/row_count"] == 3
    assert page["indexes"] == [
        "order_id",
        "customer_id (left out: a value is too long for it)",
        "status, placed_at (not made yet)",
        "btree (lines) (by_hand, made by hand)",
    ]
    found = check_indexes()
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert {name: each.value for name, each in found.metadata.items()} == {
        "customer_id": "left out: a value is too long for it",
        "status, placed_at": "not made yet",
    }


def test_a_version_that_waits_fails_a_check(instance: Instance, dsn: str, shop: PlatformStore, drain: Run) -> None:
    waits = replace(ORDERS, columns={**ORDERS.columns, "status": first("event")}, serve="approved")
    check_approval = partial(check, instance, dsn, waits, "version_is_approved")
    place(shop, 3)
    drain()
    assert check_approval().passed
    drain(waits)
    for _ in range(2):  # compared only once
        failed = check_approval()
        assert not failed.passed
        assert failed.metadata["table"].value == "read_models.orders_diff_1"
        assert str(failed.metadata["diff"].value) == "3 of 3 rows change, all in `status`."
    approve = definitions(dsn, {"orders": waits}).resolve_job_def("approve")
    config = {"ops": {"approve_version": {"config": {"model": "orders", "reason": "looked at"}}}}
    approved = approve.execute_in_process(instance=instance, run_config=config)
    assert "it serves" in {record.user_message for record in instance.all_logs(approved.run_id)}
    assert [(e.operation, e.reason) for e in shop.audit_log() if e.operation == "approve_version"] == [
        ("approve_version", "looked at")
    ]
    assert check_approval().passed
    again = approve.execute_in_process(instance=instance, run_config=config, raise_on_error=False)
    assert "Version 2 of read model orders serves: nothing waits." in failed_with(again)


def test_a_model_is_built_as_of_a_time_and_the_asset_says_what(
    instance: Instance, dsn: str, shop: PlatformStore
) -> None:
    place(shop, 3)
    mark = shop.mark_log("three orders")
    place(shop, 2)
    config = {"model": "orders", "time": mark.marked_at.isoformat(), "keep_days": 1.0}
    job = definitions(dsn, {"orders": ORDERS}).resolve_job_def("as_of")

    def run(**other: object) -> Result:
        ops = {"ops": {"consumption__as_of": {"config": config | other}}}
        return job.execute_in_process(instance=instance, run_config=ops, raise_on_error=False)

    (built,) = run().asset_materializations_for_node("consumption__as_of")
    shown = {name: each.value for name, each in built.metadata.items()}
    assert (shown["dagster/table_name"], shown["dagster/row_count"]) == (f"read_models.orders_at_{mark.mark_id}", 3)
    assert (shown["moment"], shown["marks"], shown["failed_streams"]) == (mark.mark_id, mark.marks, 0)
    assert {"seconds", "marked_at", "expires_at"} <= shown.keys()
    assert "There is no read model 'ordrs'." in failed_with(run(model="ordrs"))


def test_no_model_is_built_as_of_a_time_while_a_schema_differs(
    instance: Instance, dsn: str, shop: PlatformStore
) -> None:
    shop.register_event_schema("order", "order_placed", {"type": "array"})
    shop.mark_log("a schema differs")
    names = {"orders": ORDERS, "shipments": SHOP["shipments"]}
    events = declared("millrace.examples.shop").events
    defs = build_defs(declarations=Declarations(names, events=events), resources={"postgres": postgres_at(dsn)})

    def run(model: str) -> Result:
        ops = {"ops": {"consumption__as_of": {"config": {"model": model, "time": "infinity"}}}}
        return defs.resolve_job_def("as_of").execute_in_process(instance=instance, run_config=ops, raise_on_error=False)

    assert "event order_placed version 1 of decider order has the schema" in failed_with(run("orders"))
    assert run("shipments").success
