"""Breakage by an upgrade of Dagster: each private part that we depend on exists, with the shape that we expect.

Not here: that our code on top of them works (the other tests of this folder; `assets/`; `processes/test_services.py`).
"""

import inspect
import pkgutil
from pathlib import Path
from typing import Any, get_type_hints

import dagster as dg
import grpc
import psycopg
import pytest
from sqlalchemy import Engine

from millrace.platform_defs.dagster_internals.coordinator import ReservingRunCoordinator
from millrace.platform_defs.dagster_internals.launcher import PatientRunLauncher
from millrace.platform_defs.dagster_internals.prune import FORGET_EVALUATIONS, FORGET_THEIR_EVENTS
from millrace.platform_defs.dagster_internals.storage import PooledPostgresStorage
from millrace.platform_defs.local.answers import BEATS
from millrace.postgres.embedded import EmbeddedPostgres

# functions that we call or extend, with the arguments that we pass
CALLS = {
    "dagster_postgres:DagsterPostgresStorage": ("postgres_url", "should_autocreate_tables", "inst_data"),
    "dagster_postgres:DagsterPostgresStorage.from_config_value": ("inst_data", "config_value"),
    "dagster_postgres.utils:create_pg_engine": ("postgres_url",),
    "dagster_postgres.utils:pg_url_from_config": ("config_value",),
    "dagster_webserver.app:create_app_from_workspace_process_context": ("workspace_process_context",),
    "dagster_webserver.cli:create_app_from_workspace_process_context": ("workspace_process_context",),
    "dagster:DefaultRunLauncher.launch_run": ("self", "context"),
    "dagster:QueuedRunCoordinator.submit_run": ("self", "context"),
    "dagster:DagsterInstance.report_engine_event": ("self", "message", "dagster_run"),
    "dagster:DagsterInstance.add_run_tags": ("self", "run_id", "new_tags"),
    "dagster:DagsterInstance.get_latest_materialization_event": ("self", "asset_key"),
    "dagster:DagsterInstance.get_latest_storage_id_by_partition": ("self", "asset_key", "event_type"),
    # of assets.runs
    "dagster:Executor.execute": ("self", "plan_context", "execution_plan"),
}
COLUMNS = {
    "asset_check_executions": {"asset_key", "check_name", "create_timestamp", "evaluation_event", "evaluation_event_storage_id", "evaluation_event_timestamp", "execution_status", "id", "partition"},
    "event_logs": {"id", "run_id", "timestamp", "dagster_event_type"},
}  # fmt: skip
# the forms in which assets.shown_partitions and assets.verdicts write events
STORED = {
    "dagster._core.events:StepMaterializationData": {"materialization", "asset_lineage"},
    "dagster._core.events:AssetObservationData": {"asset_observation"},
    "dagster._core.events:AssetMaterializationPlannedData": {"asset_key", "partition", "partitions_subset"},
    "dagster._core.definitions.asset_checks.asset_check_evaluation:AssetCheckEvaluationTargetMaterializationData": {
        "storage_id", "run_id", "timestamp",
    },
}  # fmt: skip
# routes that the gate has rules for, and the route that health checks ask
ROUTES = {
    "/server_info",
    "/graphql",
    "/report_asset_materialization/{asset_key:path}",
    "/report_asset_check/{asset_key:path}",
    "/report_asset_observation/{asset_key:path}",
}


@pytest.fixture(scope="module")
def dsn(postgres: EmbeddedPostgres) -> str:
    postgres.create_database("dagster_upgraded")
    return postgres.dsn("dagster_upgraded")


@pytest.fixture(scope="module")
def storage(dsn: str) -> PooledPostgresStorage:
    return PooledPostgresStorage(dsn)


@pytest.mark.parametrize("name", CALLS)
def test_what_is_called_takes_the_arguments_that_we_give(name: str) -> None:
    taken = inspect.signature(pkgutil.resolve_name(name)).parameters
    assert tuple(taken)[: len(CALLS[name])] == CALLS[name]
    assert all(each.default is not each.empty for each in [*taken.values()][len(CALLS[name]) :] if each.kind < 2)


@pytest.mark.parametrize("part", ["_run_storage", "_event_log_storage", "_schedule_storage"])
def test_each_part_of_the_storage_goes_by_an_engine_of_its_own(storage: PooledPostgresStorage, part: str) -> None:
    assert isinstance(vars(getattr(storage, part))["_engine"], Engine)


def test_a_session_at_the_tables_of_events_is_opened_by_the_storage(storage: PooledPostgresStorage) -> None:
    with storage.event_log_storage.index_connection() as connection:  # type: ignore[attr-defined]
        for statement in (FORGET_EVALUATIONS, FORGET_THEIR_EVENTS):
            assert connection.execute(statement, {"before": "2000-01-01"}).rowcount == 0


@pytest.mark.parametrize("table", COLUMNS)
def test_what_is_read_and_pruned_is_in_tables_of_these_columns(
    storage: PooledPostgresStorage, dsn: str, table: str
) -> None:
    assert storage.run_storage.get_runs() == []
    with psycopg.connect(dsn) as connection:
        query = "select column_name from information_schema.columns where table_name = %s"
        columns = {name for (name,) in connection.execute(query, [table])}
    assert COLUMNS[table] - columns == set()


@pytest.mark.parametrize("kind", [PatientRunLauncher, ReservingRunCoordinator])
def test_what_is_extended_knows_its_instance(
    instance: dg.DagsterInstance, kind: type[PatientRunLauncher | ReservingRunCoordinator]
) -> None:
    made = kind()
    made.register_instance(instance)
    assert made._instance is instance


@pytest.mark.parametrize("method", [dg.DefaultRunLauncher.launch_run, dg.QueuedRunCoordinator.submit_run])
def test_a_run_comes_in_a_context(method: Any) -> None:  # noqa: ANN401 - of two classes
    assert "dagster_run" in get_type_hints(method)["context"].__annotations__


def test_a_code_server_that_does_not_answer_is_the_cause_of_the_error(tmp_path: Path) -> None:
    client = pkgutil.resolve_name("dagster._grpc.client:DagsterGrpcClient")(socket=str(tmp_path / "none"))
    with pytest.raises(dg.DagsterError) as failed:
        client.list_repositories()
    assert isinstance(failed.value.__cause__, grpc.RpcError)


def test_the_code_server_is_asked_by_this_name() -> None:
    # as in platform_defs.local.answers
    api = pkgutil.resolve_name("dagster._grpc.__generated__.dagster_api_pb2:DESCRIPTOR").services_by_name["DagsterApi"]
    assert api.full_name == "api.DagsterApi"
    assert "ListRepositories" in api.methods_by_name


def test_the_command_of_the_ui_makes_its_app_by_a_name_of_its_module() -> None:
    name = "create_app_from_workspace_process_context"
    cli = pkgutil.resolve_name("dagster_webserver.cli")
    assert vars(cli)[name] is pkgutil.resolve_name(f"dagster_webserver.app:{name}")
    assert name in cli.host_dagster_ui_with_workspace_process_context.__code__.co_names
    assert callable(cli.cli)


def test_the_ui_has_these_routes_and_is_posted_to_by_no_others() -> None:
    routes = pkgutil.resolve_name("dagster_webserver.webserver:DagsterWebserver")(None).build_routes()
    assert ROUTES - {route.path for route in routes} == set()
    assert {route.path for route in routes if "POST" in (getattr(route, "methods", None) or ())} - ROUTES == set()


def test_the_ui_tells_when_daemons_lived() -> None:
    schema = pkgutil.resolve_name("dagster_graphql.schema:create_schema")().graphql_schema
    graphql = pkgutil.resolve_name("graphql")
    assert graphql.validate(schema, graphql.parse(BEATS)) == []


@pytest.mark.parametrize("name", STORED)
def test_an_event_is_stored_with_these_fields(name: str) -> None:
    kept = pkgutil.resolve_name(name)
    assert STORED[name] - {*getattr(kept, "_fields", kept.__annotations__)} == set()


def test_an_executor_does_and_has_what_ours_hands_on() -> None:
    assert dg.Executor.__abstractmethods__ == {"execute", "retries"}
    assert dg.in_process_executor.executor_creation_fn is not None
