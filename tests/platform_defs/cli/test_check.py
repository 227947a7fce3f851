"""`millrace check`, and `millrace migrate` with declared events: the report on code and store, and the exit code."""

import json
from typing import Any

import pytest

from millrace.assets.declarations import declared
from millrace.errors import MillraceError
from millrace.event_store import NewEvent
from millrace.event_store.platform import PlatformStore
from millrace.read_models.stored.versions import ensure_version
from tests.platform_defs.cli.conftest import Declare
from tests.support import command_line
from tests.support.command_line import cells
from tests.support.sql_calls import BatchEvent, append_events

EVENTS = """
from millrace.event_schemas import event
from pydantic import BaseModel

@event(decider="cart")
class ItemAdded(BaseModel):
    '''A customer put an item into the cart.'''

    model_config = {"extra": "forbid"}
    cents: int

@event(decider="cart")
class Paid(BaseModel):
    '''The customer paid.'''

    by: str
"""
MODEL = """
from millrace import last, read_model, stream_id, sum_

@read_model(view="carts", deciders=["cart"], key=["cart_id"])
class Carts:
    '''One row per cart.'''

    cart_id = stream_id()
    cents = sum_("data.cents")
"""
PROCESS = """
from millrace.commands import process, starts

@process(view="checkout", key={"cart": "decider_id"})
class Checkout:
    '''From a cart to its payment.'''
    cents: int = 0

    @starts("item_added")
    def added(self, event, do):
        do.end()
"""
SENTENCE = "read model carts, column {}: property data.{} is in no schema of the events that it is read from; {}"
NO_X_Y_Z = SENTENCE.format("x", "x_y_z", "there are data.cents")
ADDED = {"properties": {"cents": {"type": "integer"}}, "required": ["cents"], "type": "object"}


def check(dsn: str, *arguments: str, code: int = 0) -> str:
    return command_line.millrace("check", *arguments, dsn=dsn, code=code)


def told(dsn: str, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(check(dsn, "--json", code=code))
    found["events"] = {each["event"]: each["state"] for each in found["events"]}
    return found


def test_events_are_new_until_they_are_registered(declare: Declare, store: PlatformStore, dsn: str) -> None:
    declare(events=EVENTS, read_models=MODEL)
    for _ in range(2):
        said = check(dsn)
        assert cells(said) == [["cart", "item_added", "1", "new"], ["cart", "paid", "1", "new"]]
        assert "Nothing is wrong." in said
    assert "Registered: event paid version 1 of decider cart." in command_line.millrace("migrate", dsn=dsn)
    assert "Registered" not in command_line.millrace("migrate", dsn=dsn)
    registered = {"item_added": "registered", "paid": "registered"}
    assert told(dsn) == {"events": registered, "errors": [], "warnings": [], "built_anew": []}
    assert len(store.connection.execute("select from event_store.event_schemas").fetchall()) == 2


def test_examples_never_come_into_a_stated_store(
    store: PlatformStore, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MILLRACE_DECLARATIONS", raising=False)
    command_line.millrace("migrate", dsn=dsn)
    with pytest.raises(MillraceError, match="Nothing is declared here that could be compared"):
        check(dsn)
    assert store.connection.execute("select from event_store.deciders").fetchall() == []


def test_wrong_schemas_and_files_that_fail_are_told(declare: Declare, store: PlatformStore, dsn: str) -> None:
    declare(events=EVENTS.replace("by: str", "by: set[str]"), read_models=MODEL, captures="1 / 0\n")
    store.register_event_schema("cart", "item_added", ADDED)
    found = told(dsn, code=1)
    assert found["events"] == {"item_added": "differs", "paid": "refused"}
    fails, differs, refused = found["errors"]
    assert "captures.py:1: ZeroDivisionError" in fails
    assert "event item_added version 1 of decider cart has the schema with digest " in differs
    assert "uniqueItems at /properties/by/uniqueItems is not taken" in refused
    assert "event has another schema" in check(dsn, code=1)
    # a refused declaration blocks no other
    declare(events=EVENTS, captures="")
    with pytest.raises(MillraceError, match="event has another schema") as raised:
        command_line.millrace("migrate", dsn=dsn)
    assert "Registered: event paid" in "".join(raised.value.__notes__)


# the columns of a model, and the report on them
COLUMNS: tuple[tuple[str, list[str], list[str]], ...] = (
    ('x = sum_("data.cents")\n    y = last("data.by")\n    z = last("event")', [], []),
    ('x = last("data.bye")', [], [SENTENCE.format("x", "bye", "did you mean data.by?")]),
    ('x = sum_("data.x_y_z", events=["item_added"])', [NO_X_Y_Z], []),
    ('x = last("data.by", events=["item_added"])', [SENTENCE.format("x", "by", "there are data.cents")], []),
    # nothing is known of an event without a schema
    ('x = last("data.x_y_z", events=["emptied"])', [], []),
    ('x = sum_("data.x_y_z", events=["emptied", "item_added"])', [], [NO_X_Y_Z]),
)


def test_a_field_that_no_schema_names_is_told(declare: Declare, store: PlatformStore, dsn: str) -> None:
    store.register_decider_event("cart", "emptied", "A customer emptied the cart.")
    for columns, errors, warnings in COLUMNS:
        declare(events=EVENTS, read_models=MODEL.replace('cents = sum_("data.cents")', columns))
        found = told(dsn, code=1 if errors else 0)
        assert (found["errors"], found["warnings"]) == (errors, warnings)


def test_read_models_that_an_upcast_touches_would_be_built_anew(
    declare: Declare, store: PlatformStore, dsn: str
) -> None:
    declare(events=EVENTS, read_models=MODEL)
    command_line.millrace("migrate", dsn=dsn)
    upcast = 'decider="cart", version=2, upcasts={2: [scale("cents", 2)]}'
    evolved = EVENTS.replace("import event", "import event, scale").replace('decider="cart"', upcast, 1)
    declare(events=evolved)
    # the model has no rows yet
    assert told(dsn)["built_anew"] == []
    declare(events=EVENTS)
    ensure_version(store.connection, declared("checked_here").models["carts"])
    assert told(dsn)["built_anew"] == []
    declare(events=evolved)
    assert told(dsn)["built_anew"] == ["carts"]
    assert "read model carts would be built anew" in check(dsn)
    command_line.millrace("migrate", dsn=dsn)
    assert told(dsn)["built_anew"] == ["carts"]
    # models know the upcasts of their events, even if only models are asked for
    (carts,) = declared("checked_here", ["read_models"]).models.values()
    assert [event.event for event in carts.declared_events or ()] == ["item_added"]
    ensure_version(store.connection, carts)
    assert told(dsn)["built_anew"] == []
    declare(events="1 / 0")
    assert declared("checked_here", ["read_models"]).models["carts"].declared_events is None


def test_a_schema_that_only_the_store_has_counts_too(declare: Declare, store: PlatformStore, dsn: str) -> None:
    store.register_event_schema("cart", "emptied", {"properties": {"why": {}}})
    declare(events=EVENTS, read_models=MODEL.replace('sum_("data.cents")', 'last("data.why")'))
    assert told(dsn)["warnings"] == []
    # of another decider
    declare(read_models=MODEL.replace('["cart"]', '["order"]').replace("data.cents", "data.lost"))
    assert told(dsn)["warnings"] == []


def test_a_history_is_judged_by_what_is_declared(declare: Declare, store: PlatformStore, dsn: str) -> None:
    declare(events=EVENTS)
    store.register_decider_event("cart", "item_added", "")
    append_events(store, [BatchEvent("cart", "cart-1", "item_added", data={"cents": 5})])
    assert "event item_added version 1 of decider cart: all fit" in check(dsn, "--history", "cart", "item_added")
    append_events(store, (BatchEvent("cart", f"cart-{n}", "item_added", data={"cents": "5"}) for n in (1, 2, 1)))
    said = check(dsn, "--history", "cart", "item_added", code=1)
    assert "3 events of 2 streams do not fit" in said
    assert cells(said) == [["cart-1", "2", "2"], ["cart-2", "1", "1"]]
    assert store.connection.execute("select from event_store.event_schemas").fetchall() == []
    with pytest.raises(MillraceError, match="No event 'lost' of decider 'cart' is declared"):
        check(dsn, "--history", "cart", "lost")


def test_states_that_a_process_cannot_read_are_faults(declare: Declare, store: PlatformStore, dsn: str) -> None:
    declare(events=EVENTS, subscriptions=PROCESS)
    assert told(dsn)["errors"] == []
    store.register_decider_event("process:checkout", "step", "")
    for cart, cents in (("c-1", "many"), ("c-1", 7), ("c-2", "many"), ("c-3", "many")):
        step = NewEvent("step", {"state": {"cents": cents}, "ended": cart == "c-3"})
        store.append("process:checkout", cart, step)
    unfit = "The state of process:checkout c-2 does not fit checked_here.subscriptions.Checkout: cents."
    assert told(dsn, code=1)["errors"] == [unfit]
