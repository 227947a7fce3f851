"""Column lineage in Dagster, for the example shop."""

import dagster as dg
import pytest

from millrace import computed, count, field, first, last, read_model, rollup, row, stream_id, sum_
from millrace.assets.declarations import Declarations, declared
from millrace.assets.lineage import EVENTS
from millrace.platform_defs.loading import build_defs
from millrace.read_models.shown.lineage import origins

SHOP = declared("millrace.examples.shop")


@pytest.fixture(scope="module")
def defs() -> dg.Definitions:
    return build_defs(declarations=SHOP)


def deps(defs: dg.Definitions, model: str, column: str) -> set[tuple[str, str]]:
    lineage = defs.resolve_asset_graph().get(dg.AssetKey(["read_models", model])).metadata["dagster/column_lineage"]
    assert isinstance(lineage, dg.TableColumnLineage)
    return {(dep.asset_key.to_user_string(), dep.column_name) for dep in lineage.deps_by_column[column]}


def of(*sources: str) -> set[tuple[str, str]]:
    """Return columns of the log as dependencies."""
    return {(EVENTS.to_user_string(), source) for source in sources}


def building(view: str, columns: dict[str, object], key: str, each: str | None = None) -> dg.Definitions:
    declared_class = type(view, (), {"__doc__": "One row per order, or article.", **columns})
    model = read_model(view=view, deciders=["order"], key=[key], each=each)(declared_class)
    return build_defs(declarations=Declarations(models={view: model}))


def test_each_column_of_each_read_model_leads_to_a_field_of_events(defs: dg.Definitions) -> None:
    for name, model in SHOP.models.items():
        for column in model.public_columns():
            assert EVENTS.to_user_string() in {asset for asset, _ in deps(defs, name, column)}
    ordered = ("events/order", "order_placed.customer_id")
    assert deps(defs, "orders", "customer_id") == {*of("data.customer_id"), ordered}
    # each event that has the field, of each decider, but no event that the column ignores
    paid = {("events/payment", f"payment_{what}.customer_id") for what in ("requested", "received", "failed")}
    given = ("events/customer", "email_given.customer_id")
    whose = {*of("decider", "decider_id", "data.customer_id"), ordered, given, *paid}
    assert deps(defs, "customers", "customer_id") == whose
    assert deps(defs, "customers", "paid") == {*of("data.amount"), ("events/payment", "payment_received.amount")}
    assert deps(defs, "orders", "order_id") == of("decider_id")
    assert deps(defs, "crm_customers", "city") == of("data", "event")
    # of another model, and of a captured table
    assert deps(defs, "orders", "customer") == {*of("data.customer_id"), ordered, ("read_models/customers", "name")}
    asset = defs.resolve_asset_graph().get(dg.AssetKey(["read_models", "orders"]))
    assert dg.AssetKey(["read_models", "customers"]) in asset.parent_keys
    captured = ("crm/public/customers", "email")
    assert deps(defs, "crm_customer_history", "email") == {*of("data.record.email"), captured}
    assert deps(defs, "crm_customer_history", "committed_at") == of("data.committed_at")


def test_what_a_model_computes_comes_from_its_columns() -> None:
    columns = {
        "order_id": stream_id(),
        "customer_id": last("data.customer_id"),
        "begun_at": first("data.at", type="timestamp"),
        "age": computed("paid_at - begun_at"),
        "paid_at": last("data.paid_at", type="timestamp"),
    }
    assert deps(building("ages", columns, "order_id"), "ages", "age") == of("data.at", "data.paid_at")


def test_a_rollup_is_an_asset_behind_its_model() -> None:
    members = {"status": row("status"), "orders": count(), "worth": sum_("total")}
    orders = SHOP.models["orders"]
    by_status = rollup(of=orders, key=["status"])(type("ByStatus", (), {"__doc__": "Orders by status.", **members}))
    built = build_defs(declarations=Declarations(models={"orders": orders}, rollups={"by_status": by_status}))
    assert deps(built, "by_status", "worth") == {("read_models/orders", "total")}
    assert deps(built, "by_status", "orders") == {("read_models/orders", "order_id")}
    asset = built.resolve_asset_graph().get(dg.AssetKey(["read_models", "by_status"]))
    assert asset.parent_keys == {dg.AssetKey(["read_models", "orders"])}
    assert (asset.is_executable, asset.partitions_def) == (False, None)
    assert not {sensor.name for sensor in built.sensors or ()} & {"poll_by_status"}
    schema = asset.metadata["dagster/column_schema"]
    assert [(one.name, one.type, one.description) for one in schema.columns] == [
        ("status", "text", "key: status of read model orders"),
        ("orders", "bigint", "number of rows of read model orders"),
        ("worth", "numeric", "sum of total of read model orders"),
    ]
    assert [one.sources for one in origins(by_status)] == [("event",), ("decider_id",), ("data.amount",)]


def test_what_is_read_of_elements_comes_from_their_array() -> None:
    columns = {"sku": field("item.sku"), "lines": count(), "pieces": sum_("item.pieces", events=["order_placed"])}
    built = building("sold", columns, "sku", each="data.lines")
    assert [deps(built, "sold", name) for name in columns] == [of("data.lines", *more) for more in ((), ("event",), ())]
    schema = built.resolve_asset_graph().get(dg.AssetKey(["read_models", "sold"])).metadata["dagster/column_schema"]
    assert [one.description for one in schema.columns] == [
        "key: item.sku",
        "count of data.lines of all events",
        "sum of item.pieces in data.lines of order_placed",
    ]


def test_each_column_is_described_by_its_declaration(defs: dg.Definitions) -> None:
    schema = defs.resolve_asset_graph().get(dg.AssetKey(["read_models", "orders"])).metadata["dagster/column_schema"]
    assert isinstance(schema, dg.TableSchema)
    assert {column.name: column.description for column in schema.columns} == {
        "order_id": "key: decider_id",
        "customer_id": "last of data.customer_id in order_placed",
        "status": "last of event in all events",
        "lines": "count of order_line_added",
        "total": "sum of data.amount in order_line_added",
        "placed_at": "min of created_at in all events",
        "customer": "name of read model customers by customer_id",
    }
