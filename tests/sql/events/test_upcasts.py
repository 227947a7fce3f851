"""An event's upcasts: which moves are taken, what each does, who registers them, and which schemas need them.

Belongs here: registration, refusals, races, reading. Not here: that SQL and Python move any data alike
(test_upcast_properties).
"""

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import errors

from millrace.resources.capture.store import CaptureStore, TableRegistration
from millrace.resources.errors import (
    DeciderCaptured,
    Malformed,
    NotDeciderOwner,
    UpcastDiffers,
    UpcastMissing,
    UpcastNeeded,
)
from millrace.resources.event_store import EventStore, Json, NewEvent
from millrace.resources.event_store.json_text import flat
from millrace.resources.event_store.refusals import refusals
from millrace.resources.events.moves import InvalidEvent, cast, default, drop, lift, moved, nest, rename, scale, values
from tests.support.factories import Connect, everything, refusal, rows, start, value, wait_blocked
from tests.support.logins import Login
from tests.support.patience import patience

WRITER, READER = "event_store_writer", "event_store_reader"
AMOUNT = [rename("n", "amount")]


def by_postgres(store: EventStore, data: str, moves: list[Any]) -> str:
    """Return the text that SQL makes of data by the moves, and that Python makes the same."""
    upcasts = [{"to_version": 2, "moves": flat(moves)}]
    given, made = rows(
        store.connection,
        "select %s::jsonb::text, event_store_platform.moved(%s::jsonb, 1, %s::jsonb)::text",
        data,
        data,
        json.dumps(upcasts),
    )[0]
    assert moved(given, 1, upcasts) == made
    return str(made)


# What a move means

MEANS: list[tuple[list[Any], str, str]] = [
    ([rename("a", "b")], '{"a": 1, "b": 2}', '{"b": 1}'),
    ([rename("a", "b.c")], '{"a": null}', '{"b": {"c": null}}'),
    ([rename("a", "b.c.d")], '{"a": [1], "b": {"x": 1}}', '{"b": {"c": {"d": [1]}, "x": 1}}'),
    ([rename("a", "b.c")], '{"a": 1, "b": 2}', '{"a": 1, "b": 2}'),
    ([rename("a", "b.c")], '{"a": 1, "b": [{}]}', '{"a": 1, "b": [{}]}'),
    ([rename("a.b", "a")], '{"a": {"b": {"b": 1}, "c": 2}}', '{"a": {"b": 1}}'),
    ([rename("a.0", "b")], '{"a": [1]}', '{"a": [1]}'),
    ([rename("a", "b")], '[{"a": 1}]', '[{"a": 1}]'),
    ([default("a", {"zz": 1.5, "b": [True]})], "{}", '{"a": {"b": [true], "zz": 1.5}}'),
    ([default("a", 1)], '{"a": null}', '{"a": null}'),
    ([default("a.b.c", 1e22)], "{}", '{"a": {"b": {"c": 10000000000000000000000}}}'),
    ([default("a.b", 1)], '{"a": "x"}', '{"a": "x"}'),
    ([default("a.0", 1)], '{"a": []}', '{"a": []}'),
    ([default("a", -0.0)], "{}", '{"a": 0.0}'),
    ([drop("a.b")], '{"a": {"b": 1, "c": 2}, "b": 3}', '{"a": {"c": 2}, "b": 3}'),
    ([drop("a.0")], '{"a": [1, 2]}', '{"a": [1, 2]}'),
    ([cast("a", "string")], '{"a": 12.50}', '{"a": "12.50"}'),
    ([cast("a", "string")], '{"a": true}', '{"a": "true"}'),
    ([cast("a", "string")], '{"a": null}', '{"a": null}'),
    ([cast("a", "number")], '{"a": "12.50"}', '{"a": 12.50}'),
    ([cast("a", "number")], '{"a": "-0.0"}', '{"a": 0.0}'),
    ([cast("a", "number")], '{"a": "1e5"}', '{"a": "1e5"}'),
    ([cast("a", "integer")], '{"a": "12.0"}', '{"a": 12}'),
    ([cast("a", "integer")], '{"a": 12.00}', '{"a": 12}'),
    ([cast("a", "integer")], '{"a": 12.5}', '{"a": 12.5}'),
    ([cast("a", "integer")], '{"a": "12.5"}', '{"a": "12.5"}'),
    ([cast("a", "boolean")], '{"a": "false"}', '{"a": false}'),
    ([cast("a", "boolean")], '{"a": "no"}', '{"a": "no"}'),
    ([values("a", {"open": "placed", "1": None})], '{"a": "open"}', '{"a": "placed"}'),
    ([values("a", {"open": "placed", "1": None})], '{"a": 1}', '{"a": 1}'),
    ([values("a", {"1": None})], '{"a": "1"}', '{"a": null}'),
    ([scale("a", 2)], '{"a": 12.50}', '{"a": 1250}'),
    ([scale("a", -2)], '{"a": -1250}', '{"a": -12.5}'),
    ([scale("a", -18)], '{"a": 0.10}', '{"a": 0.0000000000000000001}'),
    ([scale("a", 2)], '{"a": "1"}', '{"a": "1"}'),
    ([scale("a", 1)], f'{{"a": {"7" * 1000}}}', f'{{"a": {"7" * 1000}0}}'),
    ([scale("a", 1)], f'{{"a": {"7" * 1001}}}', f'{{"a": {"7" * 1001}}}'),
    ([cast("a", "number")], f'{{"a": "{"7" * 100}.{"7" * 100}"}}', f'{{"a": {"7" * 100}.{"7" * 100}}}'),
    ([cast("a", "number")], f'{{"a": "{"7" * 101}"}}', f'{{"a": "{"7" * 101}"}}'),
    ([cast("a", "number")], f'{{"a": "0.{"7" * 101}"}}', f'{{"a": "0.{"7" * 101}"}}'),
    ([nest(["a", "x.b"], into="c")], '{"a": 1, "x": {"b": 2}}', '{"c": {"a": 1, "b": 2}, "x": {}}'),
    ([lift("x.c", ["a", "b"])], '{"x": {"c": {"a": 1, "z": 2}}}', '{"x": {"a": 1}}'),
    ([rename(["a.b"], ["", "a"])], '{"a.b": 1}', '{"": {"a": 1}}'),
]


def test_a_move_does_what_it_says_and_leaves_data_where_it_does_not_apply(store: EventStore) -> None:
    for moves, data, made in MEANS:
        assert by_postgres(store, data, moves) == made, moves


def test_moves_go_as_deep_as_data_do(store: EventStore) -> None:
    deep = '{"a": ' * 199 + "1" + "}" * 199
    assert by_postgres(store, deep, [rename("a", ["b"] * 32)]) == '{"b": ' * 32 + deep[6:-1] + "}" * 32
    brackets = "[" * 3000 + "]" * 3000
    assert (
        by_postgres(store, f'{{"a": {{"b": {brackets}}}}}', [rename("a.b", "c")]) == f'{{"a": {{}}, "c": {brackets}}}'
    )


INVALID: list[Callable[[], Any]] = [
    lambda: rename("a", "a.b"),
    lambda: rename("a", "a"),
    lambda: rename("", "a"),
    lambda: drop("a..b"),
    lambda: drop([]),
    lambda: drop(["a"] * 33),
    lambda: drop("\ud800"),
    lambda: default("a", float("nan")),
    lambda: default("a", "\x00"),
    lambda: cast("a", "text"),  # type: ignore[arg-type]
    lambda: values("a", {}),
    lambda: values("a", {"b": []}),
    lambda: values("a", {1: "b"}),  # type: ignore[dict-item]
    lambda: scale("a", 0),
    lambda: scale("a", 19),
    lambda: scale("a", 1.0),  # type: ignore[arg-type]
    lambda: nest([], into="a"),
    lambda: lift("a", []),
]


def test_a_move_that_cannot_work_is_refused_where_it_is_written() -> None:
    for make in INVALID:
        with pytest.raises(InvalidEvent):
            make()


# What is taken

A: dict[str, Any] = {"path": ["a"]}
REFUSED: list[tuple[Any, str]] = [
    ({}, "no list of moves"),
    (None, "no list of moves"),
    ([drop("a")] * 101, "v_moves has 101 moves"),
    ([default("a", "x" * 65536)], "bytes as text"),
    ([default("a", 10**901)], "a number of 902 digits"),
    ([drop("a"), 5], "/1 is no object"),
    ([A], "/0/move is missing"),
    ([{"move": "copy"} | A], '/0/move is "copy", which is no move'),
    ([{"move": 5} | A], "/0/move is 5, which"),
    ([{"move": "drop"}], "/0/path is missing"),
    ([{"move": "rename"} | A], "/0/to is missing"),
    ([{"move": "default"} | A], "/0/value is missing"),
    ([{"move": "drop", "a/~": 1} | A], "/0/a~1~0 is no key of drop"),
    ([{"move": "drop", "path": []}], "/0/path is no list of 1 to 32 keys"),
    ([{"move": "drop", "path": "a"}], "/0/path is no list"),
    ([{"move": "drop", "path": [1]}], "/0/path is no list"),
    ([{"move": "drop", "path": ["a"] * 33}], "/0/path is no list"),
    ([{"move": "rename", "to": [None]} | A], "/0/to is no list"),
    ([{"move": "rename", "to": ["a", "b"]} | A], "/0/to lies within the path"),
    ([{"move": "rename", "to": ["a"]} | A], "/0/to lies within the path"),
    ([{"move": "cast", "type": "text"} | A], '/0/type is "text"'),
    ([{"move": "cast", "type": None} | A], "/0/type is null"),
    ([{"move": "values", "values": []} | A], "/0/values is no object"),
    ([{"move": "values", "values": {}} | A], "/0/values is no object"),
    ([{"move": "values", "values": {"x": {}}} | A], "/0/values is no object"),
    ([{"move": "values", "values": {"x": []}} | A], "/0/values is no object"),
    *(([{"move": "scale", "power": n} | A], "/0/power is ") for n in (0, 19, -19, 1.0, "2", None)),
]


def test_moves_that_are_malformed_are_refused_by_place(orders: EventStore) -> None:
    statement: LiteralString = "select event_store.register_event_upcast('order', 'placed', 2, %s::jsonb)"
    for moves, why in REFUSED:
        with pytest.raises(Malformed) as refused, refusals():
            orders.connection.execute(statement, [None if moves is None else json.dumps(moves)])
        assert why in str(refused.value.detail), moves
        assert "Paths are lists of 1 to 32 keys" in str(refused.value.hint)
    assert value(orders.connection, "select count(*) from event_store.event_upcasts") == 0


def test_whatever_a_constructor_makes_is_taken(orders: EventStore) -> None:
    made = [moves for moves, _, _ in MEANS]
    assert orders.register_event_upcast("order", "placed", 2, made).to_version == 2
    refusal(Malformed, lambda: orders.register_event_upcast("order", "placed", 1, []))
    refusal(Malformed, lambda: orders.register_event_upcast("", "placed", 2, []))


# Who registers, and when


def test_a_version_has_one_upcast_for_ever(orders: EventStore) -> None:
    first = orders.register_event_upcast("order", "placed", 2, AMOUNT)
    before = everything(orders)
    assert orders.register_event_upcast("order", "placed", 2, AMOUNT) == first
    error = refusal(UpcastDiffers, lambda: orders.register_event_upcast("order", "placed", 2, []))
    assert first.digest in str(error.detail)
    assert everything(orders) == before
    audited = [entry.detail for entry in orders.audit_log() if entry.operation == "register_event_upcast"]
    assert audited == [{"decider": "order", "event": "placed", "to_version": 2, "digest": first.digest}]
    # the version is registered, with the description of the one before
    described = (
        "select count(distinct description), max(event_version) from event_store.deciders where event = 'placed'"
    )
    assert rows(orders.connection, described + " and decider = 'order'") == [(1, 2)]


def test_a_gap_between_a_version_and_an_upcast_is_refused(orders: EventStore) -> None:
    for to_version in (3, 9 * 10**18):
        register = partial(orders.register_event_upcast, "order", "placed", to_version, [])
        error = refusal(UpcastMissing, register)
        assert "no upcast to version 2" in str(error.detail)
    for to_version in (2, 3):
        orders.register_event_upcast("order", "placed", to_version, [])
    error = refusal(UpcastMissing, lambda: orders.register_event_upcast("order", "placed", 5, []))
    assert "no upcast to version 4" in str(error.detail)
    # where no version came before none is missing
    assert orders.register_event_upcast("order", "new", 4, []).to_version == 4


def test_only_members_of_the_deciders_role_register_its_upcasts(login: Login) -> None:
    team = login(WRITER).info.user
    member, other = EventStore(login(WRITER, team)), EventStore(login(WRITER))
    member.register_decider_event("payment", "paid", "Paid.", owner=team)
    refusal(NotDeciderOwner, lambda: other.register_event_upcast("payment", "paid", 2, []))
    member.register_event_upcast("payment", "paid", 2, [])


def test_the_decider_of_a_captured_table_has_no_upcast(orders: EventStore) -> None:
    captures = CaptureStore(orders.connection)
    first, second = (TableRegistration("public", name, f"table:{name}", None, "1") for name in ("a", "b"))
    captures.register_capture("c", "slot", "publication", [first])
    refusal(DeciderCaptured, lambda: orders.register_event_upcast("table:a", "updated", 2, []))
    orders.register_decider_event("table:b", "updated", "", owner="event_store_owner")
    orders.register_event_upcast("table:b", "updated", 2, [])
    error = refusal(DeciderCaptured, lambda: captures.register_capture("d", "slot_d", "publication", [second]))
    assert "has an upcast for its event updated" in str(error.detail)


def test_of_two_sessions_that_register_other_moves_one_is_refused(orders: EventStore, connect: Connect) -> None:
    for event in ("placed", "paid"):  # to register a version takes the same lock
        orders.register_decider_event("order", event, "", 2)
    first, second = connect(autocommit=False), EventStore(connect())
    known = EventStore(first).register_event_upcast("order", "placed", 2, AMOUNT)
    late = start(lambda: second.register_event_upcast("order", "placed", 2, []))
    wait_blocked(orders.connection, second.connection.info.backend_pid)
    first.commit()
    with pytest.raises(UpcastDiffers, match=known.digest):
        late.result(patience())
    EventStore(first).register_event_upcast("order", "paid", 2, [])
    # the same again waits for nobody
    assert second.register_event_upcast("order", "placed", 2, AMOUNT) == known
    same = start(lambda: second.register_event_upcast("order", "paid", 2, []))
    wait_blocked(orders.connection, second.connection.info.backend_pid)
    first.commit()
    assert same.result(patience()).event == "paid"
    assert value(orders.connection, "select count(*) from event_store.event_upcasts") == 2


def test_a_registration_with_an_older_snapshot_is_to_be_repeated(orders: EventStore, connect: Connect) -> None:
    old = connect(autocommit=False)
    old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    orders.register_event_upcast("order", "paid", 2, [])
    old.execute("select count(*) from event_store.deciders")
    orders.register_event_upcast("order", "paid", 3, AMOUNT)
    with pytest.raises(errors.SerializationFailure):
        EventStore(old).register_event_upcast("order", "paid", 3, [])


# Which schemas need an upcast


def an_object(required: Sequence[str] = (), **properties: Json) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": properties}


TEXT, NUMBER, INTEGER = ({"type": name} for name in ("string", "number", "integer"))
UNREADABLE: list[tuple[Any, Any, str]] = [
    (an_object(), an_object(["a"], a=TEXT), "data.a is required, and was not"),
    (an_object(a=TEXT), an_object(["a"], a=TEXT), "data.a is required, and was not"),
    (an_object(a=TEXT), an_object(a=NUMBER), 'data.a may be of type ["string"], and the new schema takes "number"'),
    (an_object(a=NUMBER), an_object(a=INTEGER), "data.a may be of type"),
    (an_object(a={"type": ["string", "null"]}), an_object(a=TEXT), "data.a may be of type"),
    (an_object(a=an_object(b=TEXT)), an_object(a=an_object(["b"])), "data.a.b is required"),
    ({"type": "array"}, {"type": "object"}, "data may be of type"),
    (an_object(b=TEXT), an_object(["a"], b=NUMBER), "data.a is required, and was not; data.b may be"),
]
READABLE: list[tuple[Any, Any]] = [
    (an_object(["a"], a=INTEGER), an_object(["a"], a=NUMBER)),
    (an_object(["a"], a=TEXT), an_object(a={"type": ["null", "string"]}, b=NUMBER)),
    (an_object(a=TEXT), an_object()),
    (an_object(a={}), an_object(a=TEXT)),
    (an_object(a=TEXT), an_object(a={})),
    ({}, True),
    (True, an_object(["a"])),
    (an_object(a={"anyOf": [TEXT]}), an_object(a=NUMBER)),
    (an_object(a=TEXT), an_object(a=NUMBER | {"not": {"minimum": 1}})),
    (an_object(), an_object(["a"]) | {"$ref": "#/$defs/x", "$defs": {"x": {}}}),
]


def test_a_schema_that_cannot_read_the_version_before_needs_an_upcast(store: EventStore) -> None:
    for number, (old, new, why) in enumerate(UNREADABLE):
        first, then = f"first {number}", f"then {number}"
        store.register_event_schema("order", first, old)
        error = refusal(UpcastNeeded, partial(store.register_event_schema, "order", first, new, 2))
        assert why in str(error.detail)
        assert "register_event_upcast" in str(error.hint)
        # whichever of the two comes first
        store.register_event_schema("order", then, new, 2)
        later = refusal(UpcastNeeded, partial(store.register_event_schema, "order", then, old))
        assert "version 2 after 1" in str(later.detail)
        assert why in str(later.detail)
        # of neighbours only
        store.register_event_schema("order", first, new, 3)
        store.register_event_upcast("order", first, 2, [])
        store.register_event_schema("order", first, new, 2)


def test_a_schema_that_reads_the_version_before_or_of_which_nobody_can_tell_needs_none(store: EventStore) -> None:
    for number, (old, new) in enumerate(READABLE):
        for version, schema in enumerate((old, new), 1):
            store.register_event_schema("order", str(number), schema, version)


# Reading


def test_events_are_read_in_the_newest_shape_by_all_who_may_read_them(orders: EventStore, login: Login) -> None:
    orders.register_event_upcast("order", "placed", 2, [rename("n", "amount"), default("currency", "EUR")])
    orders.register_event_upcast("order", "placed", 3, [scale("amount", 2)])
    stored: list[Json] = [{"n": 12.5}, {"amount": 7}, {"n": 1}]
    kinds = (("placed", 1), ("placed", 2), ("paid", 1))
    orders.append_events(
        NewEvent("order", "o-1", name, data=data, event_version=version)
        for (name, version), data in zip(kinds, stored, strict=True)
    )
    newest: list[Json] = [{"amount": 1250, "currency": "EUR"}, {"amount": 700}, {"n": 1}]
    for role in (WRITER, READER, "event_store_consumer"):
        reader = EventStore(login(role))
        assert [event.data for event in reader.get_events("o-1", "order")] == stored
        assert [event.data for event in reader.get_events("o-1", "order", upcast=True)] == newest
        assert [event.data for event in reader.read_stream("order", "o-1", upcast=True)] == newest
        back = list(reader.read_stream("order", "o-1", 2, backwards=True, upcast=True))
        assert [(event.version, event.event_version, event.data) for event in back] == [
            (2, 2, newest[1]),
            (1, 1, newest[0]),
        ]
    reading = login(READER)
    chain = value(
        reading,
        "select jsonb_agg(jsonb_build_object('to_version', to_version, 'moves', moves)) from event_store.event_upcasts",
    )
    query = "select event_store_platform.moved(data, event_version, %s::jsonb) from event_store.events where event = 'placed' order by version"
    assert [row[0] for row in rows(reading, query, json.dumps(chain))] == newest[:2]
