import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph

from assets.event_store import TABLES
from assets.read_models import declared
from platform_defs.definitions import build_defs
from resources.settings import PROJECT


@pytest.fixture(scope="module")
def graph() -> AssetGraph:
    return build_defs().resolve_asset_graph()


def test_the_workspace_validates_without_any_setting() -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "dagster", "definitions", "validate"],
        env={k: v for k, v in os.environ.items() if not k.startswith(("DAGSTER_", "MILLRACE_", "SPARK_"))},
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "All code locations passed validation" in done.stdout + done.stderr


def test_definitions_load_without_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_DSN", "postgresql://nobody@127.0.0.1:1/nothing")
    dg.Definitions.validate_loadable(build_defs())


def test_every_asset_has_a_group_kinds_an_owner_and_a_description(graph: AssetGraph) -> None:
    for key in graph.get_all_asset_keys():
        node = graph.get(key)
        assert node.group_name in {"event_store", "consumption", "read_models", "reports", "archive"}
        assert "postgres" in node.kinds
        assert node.owners
        assert node.description


def test_lineage_leads_from_events_to_every_read_model(graph: AssetGraph) -> None:
    events = dg.AssetKey(["event_store", "events"])
    for name in declared():
        assert events in graph.get_ancestor_asset_keys(dg.AssetKey(["read_models", name]))


def test_every_table_and_every_read_model_is_an_asset(graph: AssetGraph) -> None:
    expected = {dg.AssetKey(["event_store", table]) for table in TABLES}
    expected |= {dg.AssetKey(["read_models", name]) for name in declared()}
    expected |= {dg.AssetKey(["consumption", "view_events"]), dg.AssetKey(["reports", "daily_orders"])}
    expected.add(dg.AssetKey(["archive", "events"]))
    assert expected == set(graph.get_all_asset_keys())


def test_read_models_have_the_log_partitions_and_their_column_schema(graph: AssetGraph) -> None:
    for name, model in declared().items():
        node = graph.get(dg.AssetKey(["read_models", name]))
        assert node.partitions_def is not None
        assert node.partitions_def.get_partition_keys() == [f"p{n:02}" for n in range(16)]
        schema = node.metadata["dagster/column_schema"]
        assert isinstance(schema, dg.TableSchema)
        assert [column.name for column in schema.columns] == list(model.public_columns())


def test_each_declared_view_has_a_sensor_and_one_serves_the_others() -> None:
    sensors = {sensor.name for sensor in build_defs().sensors or []}
    assert sensors == {f"poll_{model.view}" for model in declared().values()} | {"poll_views"}
