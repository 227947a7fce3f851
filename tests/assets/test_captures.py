"""Captures in Dagster: real runs and ticks on an instance, a real source, a real store."""

from dataclasses import replace
from typing import Any, cast

import dagster as dg
import psycopg
import pytest

from millrace.assets.captures.asset import CHANGE_EVENTS, WAL_EVENTS
from millrace.assets.declarations import Declarations
from millrace.capture import drain as pipeline
from millrace.capture.declaration import Capture, CapturedTable
from millrace.capture.store import CaptureStore
from millrace.event_store.migrations import validate
from millrace.event_store.platform import PlatformStore
from millrace.platform_defs.loading import build_defs
from millrace.platform_defs.names import PARTITION_TAG
from tests.support.capturing.captured import Captured, captured, new_source
from tests.support.elsewhere import postgres_at
from tests.support.factories import rows
from tests.support.running import in_process
from tests.support.running.in_process import failed_with, reason

__all__ = ["captured", "new_source"]

NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"
QUICKLY = {"ops": {"change_capture": {"config": {"idle_s": 0}}}}
Instance = dg.DagsterInstance


def declaring(captured: Captured, capture: Capture | None = None) -> Declarations:
    capture = capture or captured.capture
    return Declarations(captures={capture.name: capture})


def definitions(captured: Captured, capture: Capture | None = None) -> dg.Definitions:
    return build_defs(declarations=declaring(captured, capture), resources={"postgres": postgres_at(captured.dsn)})


def run(instance: Instance, captured: Captured, capture: Capture | None = None) -> dg.ExecuteInProcessResult:
    job = definitions(captured, capture).resolve_job_def("capture")
    return job.execute_in_process(instance=instance, partition_key="shop", run_config=QUICKLY, raise_on_error=False)


def shown(result: dg.ExecuteInProcessResult, asset: dg.AssetKey) -> dict[str, Any]:
    found = [m for m in result.asset_materializations_for_node("change_capture") if m.asset_key == asset]
    return {name: metadata.value for name, metadata in found[-1].metadata.items()}


def tick(instance: Instance, captured: Captured, capture: Capture | None = None) -> dg.SensorResult:
    return in_process.tick(instance, captured.dsn, declaring(captured, capture), "poll_shop")


def forget(captured: Captured) -> None:
    """Reset the store to no requested run."""
    captured.store.execute("delete from event_store.drains")


def requested(result: dg.SensorResult) -> list[str | None]:
    assert result.skip_reason is None
    return [request.partition_key for request in result.run_requests or []]


def test_a_store_of_another_version_is_migrated_first(instance: Instance, captured: Captured) -> None:
    captured.store.execute("update event_store.migrations set name = 'other' where version = 0")
    captured.store.execute("drop function event_store_platform.store_changes, event_store_platform.emit_changes")
    captured.source.run("insert into items values (1)")
    assert requested(tick(instance, captured)) == ["shop"]
    assert run(instance, captured).success
    validate(captured.dsn)
    assert captured.replayed() == captured.table()


def some_run(instance: Instance, captured: Captured, status: dg.DagsterRunStatus) -> dg.DagsterRun:
    job = definitions(captured).resolve_job_def("capture")
    return instance.create_run_for_job(job_def=job, tags={PARTITION_TAG: "shop"}, status=status)


def lease_owner(captured: Captured) -> str | None:
    (owner,) = rows(captured.store, "select lease_owner from event_store.captures")[0]
    return None if owner is None else str(owner)


def drop_slot(captured: Captured) -> None:
    captured.source.run(
        "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = current_database()"
    )


# Runs ------------------------------------------------------------------------------------------------------


def test_a_materialization_shows_numbers_that_plot(instance: Instance, captured: Captured) -> None:
    captured.source.run("insert into items values (1, 'there before')")
    first = run(instance, captured)
    assert first.success
    assert (shown(first, WAL_EVENTS)["changes"], shown(first, CHANGE_EVENTS)["backfilled"]) == (0, 1)
    captured.source.run("insert into items values (2), (3)", "delete from items where id = 1")
    with psycopg.connect(captured.source.dsn) as writer:
        # the slot cannot advance past this transaction id
        writer.execute("select pg_current_xact_id()")
        second = run(instance, captured)
    log, events = shown(second, WAL_EVENTS), shown(second, CHANGE_EVENTS)
    assert set(log) == {
        "changes", "changes_per_s", "slot_lag_bytes", "slot_lag_seconds", "retained_wal_bytes", "slot_xid_age",
        "stopped_tables",
    }  # fmt: skip
    assert log["slot_xid_age"] > 0
    assert (log["changes"], log["changes_per_s"] > 0, log["slot_lag_seconds"]) == (3, True, 0)
    assert (log["slot_lag_bytes"] >= 0, log["retained_wal_bytes"] >= 0) == (True, True)
    assert events == {"events": 3, "backfilled": 0, "unchanged": 0, "quarantined": 0, "lag_seconds": 0}
    assert captured.replayed() == captured.table()
    for asset in (WAL_EVENTS, CHANGE_EVENTS):
        assert instance.get_materialized_partitions(asset) == {"shop"}
    assert lease_owner(captured) is None


def test_a_source_that_does_not_answer_shows_red(instance: Instance, captured: Captured) -> None:
    red = run(instance, captured, replace(captured.capture, source=lambda: NOWHERE))
    assert not red.success
    assert "The source database does not answer." in failed_with(red)
    assert run(instance, captured).success
    assert lease_owner(captured) is None


def test_the_lease_of_a_run_that_is_over_is_given_back(instance: Instance, captured: Captured) -> None:
    captured.drain()
    dead = some_run(instance, captured, dg.DagsterRunStatus.FAILURE)
    alive = some_run(instance, captured, dg.DagsterRunStatus.STARTED)
    for owner, goes_on in ((dead.run_id, True), (alive.run_id, False), ("restart by process 1", False)):
        CaptureStore(captured.store).claim_capture("shop", owner, 3600)
        result = run(instance, captured)
        assert result.success == goes_on
        if not goes_on:
            assert owner in failed_with(result)
            captured.store.execute("update event_store.captures set leased_until = event_store_private.clock()")


def test_tables_that_are_declared_by_a_pattern_are_one_asset(captured: Captured) -> None:
    capture = replace(captured.capture, patterns=("public.*",))
    graph = definitions(captured, capture).resolve_asset_graph()
    upstream = {key.to_user_string() for key in graph.get(WAL_EVENTS).parent_keys}
    assert upstream == {"shop/public/items", "shop/by_pattern"}


# The sensor ------------------------------------------------------------------------------------------------


def test_a_change_starts_one_run_and_an_idle_source_none(instance: Instance, captured: Captured) -> None:
    assert requested(tick(instance, captured)) == ["shop"]
    assert reason(tick(instance, captured)) == "shop: a drain is in flight, 1 due"
    forget(captured)
    captured.drain()
    assert reason(tick(instance, captured)) == "shop: nothing is due"
    captured.source.run("create table other ()", "insert into items values (1)")
    (request,) = tick(instance, captured).run_requests or []
    assert (request.partition_key, request.run_key, request.tags["millrace/capture"]) == ("shop", None, "shop")
    captured.drain()
    assert reason(tick(instance, captured)) == "shop: nothing is due"


def test_a_run_in_flight_is_enough_and_one_that_failed_rests(instance: Instance, captured: Captured) -> None:
    captured.drain()
    captured.source.run("insert into items values (1)")
    running = some_run(instance, captured, dg.DagsterRunStatus.STARTED)
    store = PlatformStore(captured.store)
    assert store.begin_drain("shop", running.run_id)
    assert "a drain is in flight" in reason(tick(instance, captured))
    with captured.process(running.run_id):
        away = replace(captured.capture, source=lambda: NOWHERE)
        assert "a drain is in flight" in reason(tick(instance, captured, away))
    store.end_drain("shop", running.run_id, "no")
    assert "1 drains failed in a row; the next one starts in" in reason(tick(instance, captured))


def test_a_lease_of_somebody_else_is_named(instance: Instance, captured: Captured) -> None:
    captured.drain()
    with captured.process("a script"):
        assert "captured by a script, which is no run here, until" in reason(tick(instance, captured))
    dead = some_run(instance, captured, dg.DagsterRunStatus.SUCCESS)
    CaptureStore(captured.store).claim_capture("shop", dead.run_id, 3600)
    assert requested(tick(instance, captured)) == ["shop"]


def test_sources_that_cannot_be_asked_are_a_reason(
    instance: Instance, captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    from millrace.examples.shop.captures.crm import CRM

    away = replace(captured.capture, source=lambda: NOWHERE)
    monkeypatch.setenv("MILLRACE_DSN", captured.dsn)
    monkeypatch.delenv("MILLRACE_CRM_DSN", raising=False)
    unconfigured = replace(captured.capture, source=CRM.source)
    for _ in range(2):
        assert "The source database does not answer." in reason(tick(instance, captured, away))
        assert "Set MILLRACE_CRM_DSN" in reason(tick(instance, captured, unconfigured))
        captured.drain()
    captured.source.run("create role somebody_small login", "insert into items values (1)")
    small = captured.source.dsn.replace("postgres@", "somebody_small@")
    try:
        said = reason(tick(instance, captured, replace(captured.capture, source=lambda: small)))
    finally:
        captured.source.run("drop role somebody_small")
    assert "does not tell how it is" in said
    assert "millrace capture check shop" in said


def test_a_lost_slot_starts_one_run_that_says_so(instance: Instance, captured: Captured) -> None:
    captured.drain()
    drop_slot(captured)
    assert requested(tick(instance, captured)) == ["shop"]
    assert "There is no slot" in failed_with(run(instance, captured))
    assert PlatformStore(captured.store).drain_states("shop")["shop"].failures == 1
    assert "millrace capture restart shop --reason WHY" in reason(tick(instance, captured))


def test_an_idle_slot_is_moved_on(instance: Instance, captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    captured.drain()
    captured.source.run(
        "create table other (t text)", "insert into other select repeat('x', 900) from generate_series(1, 2000)"
    )
    assert reason(tick(instance, captured)) == "shop: nothing is due"
    monkeypatch.setattr("millrace.capture.health.IDLE_LAG_BYTES", 1_000_000)
    assert requested(tick(instance, captured)) == ["shop"]
    forget(captured)
    monkeypatch.undo()
    # where reading the log would cost too much, its growth is enough to start a run
    monkeypatch.setattr("millrace.capture.health.DEAR_BYTES", 0)
    assert requested(tick(instance, captured)) == ["shop"]
    monkeypatch.undo()
    monkeypatch.setattr(pipeline, "IDLE_ADVANCE_S", 0.0)
    assert run(instance, captured).success
    assert reason(tick(instance, captured)) == "shop: nothing is due"


# Checks ----------------------------------------------------------------------------------------------------


def checks(
    instance: Instance, captured: Captured, capture: Capture | None = None
) -> dict[str, dg.AssetCheckEvaluation]:
    """Run the hourly job, which runs every check, and return the checks that failed."""
    job = definitions(captured, capture).resolve_job_def("apply_schema")
    result = job.execute_in_process(instance=instance)
    evaluations = {check.check_name: check for check in result.get_asset_check_evaluations()}
    assert {"slots_are_healthy", "no_quarantined_changes"} <= set(evaluations)
    return {name: check for name, check in evaluations.items() if not check.passed}


def test_a_check_says_of_each_slot_what_is_wrong(instance: Instance, captured: Captured) -> None:
    for _ in range(2):  # also before the first run
        assert checks(instance, captured) == {}
        captured.drain()
    captured.source.run("insert into items select n, repeat('x', 900) from generate_series(1, 2000) n")

    def problems(capture: Capture | None = None) -> str:
        failed = checks(instance, captured, capture)
        assert set(failed) == {"slots_are_healthy"}
        return str(failed["slots_are_healthy"].metadata["problems"].value)

    strict = replace(captured.capture, max_retained_bytes=1_000_000, max_lag_s=-1)
    assert "bytes of its log for the slot; at most 1,000,000 are expected" in problems(strict)
    assert "changes wait for up to" in problems(strict)
    assert "does not answer" in problems(replace(captured.capture, source=lambda: NOWHERE))
    drop_slot(captured)
    assert "there is no slot" in problems()
    run(instance, captured)
    assert "millrace capture restart shop" in problems()


def test_a_check_says_which_tables_are_stopped(instance: Instance, captured: Captured) -> None:
    captured.source.run("create table other (id int primary key)")
    capture = replace(captured.capture, tables=(*captured.capture.tables, CapturedTable("other")))
    replace(captured, capture=capture).drain()
    captured.source.run("drop table other")
    replace(captured, capture=capture).drain()
    metadata = checks(instance, captured, capture)["slots_are_healthy"].metadata
    (said,) = cast("list[str]", metadata["stopped_tables"].value)
    assert said.startswith("table public.other is stopped")
    assert metadata["problems"].value == {"shop": [said]}


def test_a_check_counts_the_changes_that_are_no_events(instance: Instance, captured: Captured) -> None:
    captured.drain()
    captured.source.run(
        "insert into items values (1, repeat('x', 2000000))", "update items set name = 'b' where id = 1"
    )
    result = run(instance, captured)
    assert shown(result, CHANGE_EVENTS)["quarantined"] == 2
    failed = checks(instance, captured)
    assert set(failed) == {"no_quarantined_changes"}
    assert failed["no_quarantined_changes"].severity == dg.AssetCheckSeverity.WARN
    assert "2 changes wait for an operator" in str(failed["no_quarantined_changes"].metadata["shop"].value)
