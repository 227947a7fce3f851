"""`millrace show catalog`: the events, their fields, and the views that take them."""

from millrace.event_store.platform import PlatformStore
from tests.support.command_line import cells, millrace, parsed


def test_each_version_is_shown_with_its_fields_and_the_views_that_take_it(store: PlatformStore, dsn: str) -> None:
    store.register_decider_event("order", "placed", "A customer ordered.")
    added = {"description": "An item came.", "properties": {"cents": {"type": "integer"}}, "required": ["cents"]}
    store.register_event_schema("cart", "item_added", added)
    store.register_event_schema("cart", "item_added", {"properties": {"price": {"type": "number"}}}, 2)
    store.register_view("all")
    store.register_view("carts", deciders=["cart"], events=["item_added"])
    store.register_view("others", deciders=["cart"], events=["lost"])
    found = parsed(millrace("show", "catalog", "--json", dsn=dsn))
    assert [(each["decider"], each["event_version"], each["fields"], each["views"]) for each in found] == [
        ("cart", 1, {"cents": "integer"}, ["all", "carts"]),
        ("cart", 2, {"price": "number?"}, ["all", "carts"]),
        ("order", 1, {}, ["all"]),
    ]
    assert (found[0]["schema"], found[2]["schema"]) == (added, None)
    (shown,) = cells(millrace("show", "catalog", "--decider", "order", dsn=dsn))
    assert shown == ["order", "placed", "1", "A customer ordered.", "", "all"]
