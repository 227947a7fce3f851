"""Names of a declaration that the store does not know are told; names that it knows are not."""

from typing import cast
from uuid import uuid4

import dagster as dg
import pytest

from millrace.events import drop, rename
from millrace.platform_defs.checks import names_check
from millrace.resources.event_store import EventStore, NewEvent
from millrace.resources.read_models.declared.columns import Column
from millrace.resources.read_models.declared.declaration import ReadModel, read_model
from millrace.resources.read_models.declared.words import bucket, count, field, last, max_, stream_id, sum_
from millrace.resources.read_models.shown.known_names import unknown_names
from tests.support.elsewhere import postgres_at

KNOWN = ["order"]


def model(
    *columns: Column,
    deciders: list[str] | None = KNOWN,
    events: list[str] | None = None,
    deletes: list[str] | None = None,
    each: str | None = None,
) -> ReadModel:
    class Orders:
        """One row per order."""

        order_id = stream_id()

    for number, column in enumerate(columns or [count()]):
        setattr(Orders, f"c{number}", column)
    return read_model(view="orders", deciders=deciders, key=["order_id"], events=events, deletes=deletes, each=each)(
        Orders
    )


@pytest.fixture
def orders(store: EventStore) -> EventStore:
    for event, versions in {"placed": (1, 2), "paid": (1,), "sent": (1,)}.items():
        for version in versions:
            store.register_decider_event("order", event, "", version)
    store.register_decider_event("invoice", "drawn", "")
    events = {
        ("placed", 1): {"total": 1, "who": {"name": "ann"}, "note": None},
        ("placed", 2): {"amount": 1, "who": {"name": "ann"}, "note": "", "a.b": 1},
        ("paid", 1): {"amount": 1, "by": "card", "parts": [None, {"of": {"fee": 1}}]},
    }
    store.append_events(
        [
            NewEvent("order", f"o-{n}", event, uuid4(), data, uuid4(), version)
            for n, ((event, version), data) in enumerate(events.items())
        ]
        + [NewEvent("invoice", "i-1", "drawn", uuid4(), [1], uuid4())]
    )
    return store


TOLD: list[tuple[ReadModel, list[str]]] = [
    (
        model(count(where={"data.by": "card", "data.bye": "cash"}, events=["paid"])),
        ["column c0: field data.bye is in none of the newest events; did you mean data.by?"],
    ),
    (model(), []),
    (
        model(
            last("data.who.name"), max_("data.note", type="string"), sum_("data.amount", events=["paid"]), last("event")
        ),
        [],
    ),
    # of events that did not come nothing is known
    (model(last("data.x", events=["sent"])), []),
    (
        model(last("data.x"), deciders=["invoice"]),
        ["column c0: field data.x is in none of the newest events; there are none"],
    ),
    (model(deciders=["ordr"]), ["decider ordr is not registered; did you mean order?"]),
    (model(deciders=["else"]), ["decider else is not registered; there are invoice, order"]),
    (model(events=["palced"]), ["event palced is not registered; did you mean placed?"]),
    (model(events=["drawn"]), ["event drawn is not registered; there are paid, placed, sent"]),
    (model(count(events=["piad"])), ["event piad is not registered; did you mean paid?"]),
    (model(deletes=["gone"]), ["event gone is not registered; there are paid, placed, sent"]),
    (
        model(sum_("data.amout"), last("data.who.nam")),
        [
            "column c0: field data.amout is in none of the newest events; did you mean data.amount?",
            "column c1: field data.who.nam is in none of the newest events; there are"
            " data.a.b, data.amount, data.by, data.note, data.parts, data.total, data.who",
        ],
    ),
    (model(sum_("item.of.fee"), last("item"), last("data.by"), each="data.parts", events=["paid"]), []),
    (model(sum_("item.fee"), each="data.by", events=["paid"]), []),
    (
        model(sum_("item.fee"), each="data.parts"),
        ["column c0: item.fee is in no element that each= names of the newest events"],
    ),
    (
        model(each="data.part", events=["paid"]),
        ["each=: field data.part is in none of the newest events; did you mean data.parts?"],
    ),
    (
        model(last("data.a.b", events=["placed"])),
        [
            "column c0: data.a.b is a path of 2 keys, and events have one key 'a.b'; no column reads a key with a dot:"
            " append the event with another one, or use a fold"
        ],
    ),
    (
        model(sum_("data.total"), sum_("data.amount")),
        [
            "column c0: placed of order has no data.total in version 2, and has it in others;"
            " the column does not change with these events",
            "column c1: placed of order has no data.amount in version 1, and has it in others;"
            " the column does not change with these events",
        ],
    ),
]


def test_a_store_without_any_name_tells_nothing(store: EventStore) -> None:
    assert unknown_names(store.connection, model(last("data.x"), deciders=["order"])) == []


def test_names_that_the_store_does_not_know_are_told_and_no_others(orders: EventStore) -> None:
    for declared, told in TOLD:
        assert unknown_names(orders.connection, declared) == told


def test_a_key_is_a_name_too_and_the_check_of_the_model_warns(orders: EventStore, dsn: str) -> None:
    @read_model(view="owners", key=["owner"])
    class Owners:
        """One row per owner."""

        owner = field("data.owner")
        events = count()

    result = names_check(cast("ReadModel", Owners))(postgres=postgres_at(dsn))
    assert isinstance(result, dg.AssetCheckResult)
    assert (result.passed, result.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "column owner: field data.owner is in none of the newest events" in str(result.metadata["unknown"])
    assert orders.connection.info.dbname


def test_the_source_of_a_decider_is_looked_for_in_its_events_alone(orders: EventStore) -> None:
    @read_model(view="days", deciders=["order", "invoice"], key=["payer", "day"])
    class Days:
        """One row per payer and day."""

        payer = field({"order": "data.by", "invoice": "data.amount"})
        day = bucket({"order": "data.amount", "invoice": "data.at"}, every="1 day")
        events = count(events=["paid", "drawn"])

    assert [one for one in unknown_names(orders.connection, cast("ReadModel", Days)) if "in none of" in one] == [
        "column payer: field data.amount is in none of the newest events; there are none",
        "column day: field data.at is in none of the newest events; there are none",
    ]


def test_a_field_that_an_upcast_renamed_or_dropped_is_told_with_its_new_name(orders: EventStore) -> None:
    orders.register_event_upcast("order", "placed", 2, [rename("total", "amount")])
    orders.register_event_upcast("order", "paid", 2, [drop("by")])
    said = unknown_names(orders.connection, model(*map(last, ("data.total", "data.by", "data.amount", "data.note"))))
    assert said == [
        "column c0: field data.total is data.amount since version 2 of placed of order",
        "column c1: field data.by is no more since version 2 of paid of order",
    ]
