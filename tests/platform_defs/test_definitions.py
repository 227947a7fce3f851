import re
from dataclasses import replace
from itertools import pairwise

import dagster as dg
import pytest

from millrace.assets.declarations import declared
from millrace.assets.event_store import TABLES
from millrace.platform_defs.dagster_internals.coordinator import MUST_GO_ON
from millrace.platform_defs.loading import build_defs
from tests.support.project import PROJECT

SHOP = declared("millrace.examples.shop")


@pytest.fixture(scope="module")
def defs() -> dg.Definitions:
    return build_defs(declarations=SHOP)


def test_definitions_load_without_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_DSN", "postgresql://nobody@127.0.0.1:1/nothing")
    dg.Definitions.validate_loadable(build_defs(declarations=SHOP))


def test_every_table_and_read_model_is_a_described_asset(defs: dg.Definitions) -> None:
    graph = defs.resolve_asset_graph()
    expected = {dg.AssetKey(["event_store", table]) for table in TABLES}
    expected |= {dg.AssetKey(["read_models", name]) for name in (*SHOP.models, *SHOP.rollups)}
    expected |= {
        dg.AssetKey(["consumption", "view_events"]),
        dg.AssetKey(["consumption", "as_of"]),
        dg.AssetKey(["reports", "daily_orders"]),
    }
    expected |= {dg.AssetKey(["archive", "events"]), dg.AssetKey(["privacy", "subjects"])}
    expected |= {dg.AssetKey(["change_capture", table]) for table in ("wal_events", "change_events")}
    expected |= {dg.AssetKey(["subscriptions", view]) for view in ("mails", "unpaid_orders")}
    expected |= {dg.AssetKey(["crm", "public", "customers"])}
    expected |= {dg.AssetKey(["events", decider]) for decider in ("customer", "order", "payment", "shipment")}
    assert expected == set(graph.get_all_asset_keys())
    for key in expected:
        node = graph.get(key)
        assert node.group_name in {
            "event_store", "consumption", "read_models", "reports", "archive", "change_capture", "sources",
            "subscriptions", "events",
        }  # fmt: skip
        assert "postgres" in node.kinds
        assert node.owners
        assert node.description


def test_lineage_leads_from_captured_tables_to_read_models(defs: dg.Definitions) -> None:
    graph = defs.resolve_asset_graph()
    way = [["crm", "public", "customers"], ["change_capture", "wal_events"], ["change_capture", "change_events"]]
    for table, following in pairwise([*way, ["event_store", "events"]]):
        assert dg.AssetKey(table) in graph.get(dg.AssetKey(following)).parent_keys
    assert dg.AssetKey(way[0]) in graph.get_ancestor_asset_keys(dg.AssetKey(["read_models", "crm_customers"]))
    for name in SHOP.models:
        ancestors = graph.get_ancestor_asset_keys(dg.AssetKey(["read_models", name]))
        assert dg.AssetKey(["event_store", "events"]) in ancestors


def test_captures_are_partitions_and_the_event_store_has_none(defs: dg.Definitions) -> None:
    graph = defs.resolve_asset_graph()
    for table in ("wal_events", "change_events"):
        partitions = graph.get(dg.AssetKey(["change_capture", table])).partitions_def
        assert partitions is not None
        assert partitions.get_partition_keys() == list(SHOP.captures)
    assert graph.get(dg.AssetKey(["event_store", "events"])).partitions_def is None
    assert defs.resolve_job_def("apply_schema").partitions_def is None


def test_without_captures_there_is_nothing_of_them() -> None:
    defs = build_defs(declarations=replace(SHOP, captures={}))
    dg.Definitions.validate_loadable(defs)
    groups = {defs.resolve_asset_graph().get(key).group_name for key in defs.resolve_asset_graph().get_all_asset_keys()}
    assert not groups & {"sources", "change_capture"}
    assert "capture" not in {job.name for job in defs.jobs or []}


def test_read_models_have_log_partitions_and_columns(defs: dg.Definitions) -> None:
    graph = defs.resolve_asset_graph()
    for name, model in SHOP.models.items():
        node = graph.get(dg.AssetKey(["read_models", name]))
        assert node.partitions_def is not None
        assert node.partitions_def.get_partition_keys() == [f"p{n:02}" for n in range(16)]
        assert node.backfill_policy == dg.BackfillPolicy.single_run()
        schema = node.metadata["dagster/column_schema"]
        assert isinstance(schema, dg.TableSchema)
        assert [column.name for column in schema.columns] == list(model.public_columns())


def test_there_are_sensors_jobs_and_checks(defs: dg.Definitions) -> None:
    sensors = {sensor.name for sensor in defs.sensors or []}
    named = {model.view for model in SHOP.models.values()} | set(SHOP.captures)
    others = {"poll_read_models", "poll_views", "watch_freshness", "watch_subscriptions"}
    assert sensors == {f"poll_{name}" for name in named} | others
    # alerts name these sensors
    told = re.findall(r"`(poll_\w+)`", (PROJECT / "sql" / "functions" / "operations" / "standing.sql").read_text())
    assert told
    assert set(told) <= sensors
    # the jobs with reserved places
    assert {job.name for job in defs.resolve_all_job_defs()} >= MUST_GO_ON
    checks = {key.name for key in defs.resolve_asset_graph().asset_check_keys}
    assert {"slots_are_healthy", "no_quarantined_changes"} <= checks
