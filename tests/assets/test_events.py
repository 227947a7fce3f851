"""Declared events as assets of their deciders, and the check that the store has them as they are declared."""

from typing import cast

import dagster as dg
from pydantic import BaseModel, Field

from millrace import count, read_model, stream_id
from millrace.assets.declarations import Declarations
from millrace.assets.declared_events import event_specs
from millrace.event_schemas import default, event, register_events
from millrace.event_schemas.model import declared_event
from millrace.event_store.platform import PlatformStore
from millrace.platform_defs.checks import schemas_check
from millrace.platform_defs.loading import build_defs
from millrace.read_models.declared.declaration import ReadModel
from tests.support.elsewhere import postgres_at


@event(decider="cart")
class ItemAdded(BaseModel):
    """A customer put an item into the cart."""

    cents: int = Field(description="Its price.", alias="price")


@event(decider="cart", name="item_added", version=2, upcasts={2: [default("number", 1)]})
class ItemAdded2(BaseModel):
    """A customer put items into the cart."""

    cents: int | None = Field(None, description="The price of one.", alias="price")
    number: int


@event(decider="order")
class Placed(BaseModel):
    """A customer ordered."""


EVENTS = tuple(each for each in map(declared_event, (ItemAdded, ItemAdded2, Placed)) if each)


def carts(deciders: list[str] | None, events: list[str] | None = None) -> set[str]:
    """Return the assets of declared events that a read model depends on."""

    @read_model(view="carts", deciders=deciders, events=events, key=["cart_id"])
    class Carts:
        """One row per cart."""

        cart_id = stream_id()
        items = count()

    defs = build_defs(declarations=Declarations(models={"carts": cast("ReadModel", Carts)}, events=EVENTS))
    parents = defs.resolve_asset_graph().get(dg.AssetKey(["read_models", "carts"])).parent_keys
    return {key.path[-1] for key in parents if key.path[0] == "events"}


def test_an_asset_shows_the_fields_of_the_newest_versions() -> None:
    spec, _ = event_specs(EVENTS)
    assert (spec.key, [each.asset_key for each in spec.deps]) == (
        dg.AssetKey(["events", "cart"]),
        [dg.AssetKey(["event_store", "events"])],
    )
    schema = spec.metadata["dagster/column_schema"]
    assert [(column.name, column.type, column.description) for column in schema.columns] == [
        ("item_added.price", "integer | null?", "The price of one. Version 2."),
        ("item_added.number", "integer", "A customer put items into the cart. Version 2."),
    ]
    assert list(spec.metadata["versions"]) == ["item_added version 1", "item_added version 2"]


def test_a_read_model_is_behind_the_events_that_it_names_the_decider_of() -> None:
    assert carts(["cart"]) == {"cart"}
    assert carts(["cart", "order"], ["placed"]) == {"order"}
    assert carts(["other"]) == set()
    assert carts(None) == set()


def judged(dsn: str) -> tuple[bool, dg.AssetCheckSeverity, str]:
    result = schemas_check("cart", EVENTS[:2])(postgres=postgres_at(dsn))
    assert isinstance(result, dg.AssetCheckResult)
    return result.passed, result.severity, str({name: each.value for name, each in result.metadata.items()})


def test_the_check_warns_of_a_new_event_and_fails_for_another_schema(store: PlatformStore, dsn: str) -> None:
    register_events(store, [ItemAdded])
    passed, severity, said = judged(dsn)
    assert (passed, severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "'event item_added version 2 of decider cart': 'new. '" in said
    store.register_event_upcast("cart", "item_added", 2, [default("number", 1)])
    store.register_event_schema("cart", "item_added", {"type": "array"}, 2)
    passed, severity, said = judged(dsn)
    assert (passed, severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert "digest" in said


def test_the_check_passes_where_all_are_registered(store: PlatformStore, dsn: str) -> None:
    register_events(store, [ItemAdded, ItemAdded2])
    assert judged(dsn) == (True, dg.AssetCheckSeverity.WARN, "{}")
