"""Declared events in a store: new ones are registered, a refused one affects no other, a history is judged."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel, Field, RootModel

from millrace.errors import DataRefused, Malformed, SchemaDiffers, UpcastDiffers
from millrace.event_schemas import event, nest, register_events, rename
from millrace.event_schemas.catalog import catalog
from millrace.event_schemas.model import DeclaredEvent, declared_event
from millrace.event_schemas.registering import UnfitStream, states_in_store, unfit_history
from millrace.event_store.platform import PlatformStore
from tests.support.factories import Connect
from tests.support.logins import logins
from tests.support.sql_calls import BatchEvent, append_events


@event(decider="cart", name="item_added")
class ItemAdded(BaseModel):
    """A customer put an item into the cart."""

    cents: int


@event(decider="cart", name="item_added")
class OtherAdded(BaseModel):
    """A customer put another thing into the cart."""

    cents: str


@event(decider="cart")
class Tagged(BaseModel):
    """Somebody tagged the cart."""

    tags: set[str]


@event(decider="cart")
class Paid(BaseModel):
    """The customer paid."""

    cents: int = Field(ge=0)


@event(decider="cart")
class Noted(RootModel[object]):
    """Somebody noted what they liked."""


@event(decider="cart", name="item_added", version=3, upcasts={2: [nest(["cents"], into="price")], 3: []})
class PricedAdded(BaseModel):
    """A customer put an item with a price into the cart."""

    price: dict[str, int]


@event(decider="cart", name="item_added", version=2, upcasts={2: [rename("cents", "price")]})
class RenamedAdded(BaseModel):
    """A customer put an item with another price into the cart."""

    price: int


def declared(*models: type[BaseModel]) -> list[DeclaredEvent]:
    return [each for each in map(declared_event, models) if each]


def stands(store: PlatformStore, *models: type[BaseModel], keep: bool = False) -> list[str]:
    return [each.state for each in states_in_store(store, declared(*models), keep=keep)]


def test_registered_events_are_guarded_and_described_and_again_is_no_op(store: PlatformStore) -> None:
    for _ in range(2):
        register_events(store, [ItemAdded, Paid])
    found = store.connection.execute("select event, description from event_store.deciders order by 1").fetchall()
    assert found == [("item_added", "A customer put an item into the cart."), ("paid", "The customer paid.")]
    store.append("cart", "cart-1", ItemAdded(cents=5))
    with pytest.raises(DataRefused):
        append_events(store, [BatchEvent("cart", "cart-1", "item_added", data={"cents": "5"})])
    with pytest.raises(SchemaDiffers):
        register_events(store, [OtherAdded])


def test_upcasts_that_are_registered_stay_as_they_are(store: PlatformStore) -> None:
    register_events(store, [ItemAdded])
    append_events(store, [BatchEvent("cart", "cart-1", "item_added", data={"cents": 5})])
    assert stands(store, PricedAdded) == ["new"]
    for _ in range(2):
        register_events(store, [PricedAdded])
    assert stands(store, PricedAdded, RenamedAdded) == ["registered", "differs"]
    (stored,) = store.read("cart", "cart-1", upcast=True)
    assert stored.as_(PricedAdded).price == {"cents": 5}
    with pytest.raises(UpcastDiffers):
        register_events(store, [RenamedAdded])


def test_an_upcast_that_only_the_code_has_makes_an_event_new(store: PlatformStore) -> None:
    declares = declared(PricedAdded)
    register_events(store, [ItemAdded])
    store.register_event_upcast("cart", "item_added", 2, [])
    store.register_event_schema("cart", "item_added", dict(declares[0].schema), 3)
    only_to_3 = replace(declares[0], upcasts={3: []})
    assert [one.state for one in states_in_store(store, [only_to_3], keep=True)] == ["new"]
    assert [one.state for one in states_in_store(store, [only_to_3], keep=True)] == ["registered"]


def test_to_ask_how_events_stand_registers_none(store: PlatformStore) -> None:
    for _ in range(2):
        assert stands(store, ItemAdded, Tagged, Paid) == ["new", "refused", "new"]
    assert store.connection.execute("select from event_store.deciders").fetchall() == []


def test_an_event_that_is_refused_keeps_no_other_back(store: PlatformStore) -> None:
    register_events(store, [ItemAdded])
    for state in ("new", "registered"):
        found = states_in_store(store, declared(OtherAdded, Tagged, Paid, ItemAdded), keep=True)
        assert [each.state for each in found] == ["differs", "refused", state, "registered"]
        assert [each.is_wrong for each in found] == [True, True, False, False]
        digests = store.connection.execute("select digest from event_store.event_schemas").fetchall()
        assert digests[0][0] in found[0].error
        assert found[0].error.count("digest") == 1
        assert "uniqueItems at /properties/tags/uniqueItems is not taken" in found[1].error
    registered = store.connection.execute("select event from event_store.deciders order by 1").fetchall()
    assert registered == [("item_added",), ("paid",)]


def history(store: PlatformStore, streams: dict[str, list[Any]], version: int = 1) -> None:
    store.register_decider_event("cart", "item_added", "", version)
    append_events(
        store,
        (
            BatchEvent("cart", stream, "item_added", data=each, event_version=version)
            for stream, data in streams.items()
            for each in data
        ),
    )


def test_a_history_is_judged_before_its_schema_is_set(store: PlatformStore, connect: Connect) -> None:
    (judged,) = declared(ItemAdded)
    assert unfit_history(store, judged).streams == 0
    # a schema without rules
    store.register_decider_event("cart", "noted", "")
    append_events(store, [BatchEvent("cart", "d", "noted", data=[1])])
    assert unfit_history(store, *declared(Noted)).events == 0
    history(store, {"b": [{"cents": 1}, {"cents": "1"}, {}], "a": [None], "c": [{"cents": 2}]})
    history(store, {"b": [{"cents": "2"}]}, version=2)  # of another version, which is not judged
    found = unfit_history(store, judged)
    assert (found.events, found.streams) == (3, 2)
    assert found.first == [UnfitStream("a", 1, 1), UnfitStream("b", 2, 2)]
    assert store.connection.execute("select from event_store.event_schemas").fetchall() == []
    # a registered schema is not judged again, and gives the same result
    register_events(PlatformStore(connect()), [ItemAdded])
    assert unfit_history(store, judged) == found
    with pytest.raises(SchemaDiffers):
        unfit_history(store, *declared(OtherAdded))
    with pytest.raises(Malformed):
        unfit_history(store, *declared(Tagged))


def test_of_many_streams_twenty_are_listed_and_all_counted(store: PlatformStore) -> None:
    history(store, {f"cart-{number:02}": [{}, {}] for number in range(25)})
    found = unfit_history(store, *declared(ItemAdded))
    assert (found.events, found.streams, len(found.first)) == (50, 25, 20)
    assert found.first[-1] == UnfitStream("cart-19", 2, 1)


def test_a_writer_registers_and_the_login_that_runs_a_store_does_all(store: PlatformStore) -> None:
    with logins(store.connection) as login:
        register_events(PlatformStore(login("event_store_writer")), [ItemAdded])
        runner = PlatformStore(login("event_store_owner"))
        assert stands(runner, ItemAdded, Paid, keep=True) == ["registered", "new"]
        assert unfit_history(runner, *declared(Paid)).streams == 0
        assert [entry.event for entry in catalog(runner)] == ["item_added", "paid"]
