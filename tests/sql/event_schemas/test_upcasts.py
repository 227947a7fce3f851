"""An event's upcasts: valid moves, their effects, which role registers them, and which schemas need them."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, LiteralString

import pytest

from millrace.errors import InvalidEvent, Malformed, UpcastMissing, UpcastNeeded
from millrace.event_schemas.moves import cast, default, drop, lift, moved, nest, rename, scale, values
from millrace.event_store import Json
from millrace.event_store.json_text import flat
from millrace.event_store.platform import PlatformStore
from millrace.event_store.refusals import refusals
from tests.support.factories import refusal, rows, value
from tests.support.logins import Login
from tests.support.sql_calls import BatchEvent, append_events, get_events

WRITER, READER = "event_store_writer", "event_store_reader"


def by_postgres(store: PlatformStore, data: str, moves: list[Any]) -> str:
    """Return the text that the moves make of data in SQL; assert that Python makes the same."""
    upcasts = [{"to_version": 2, "moves": flat(moves)}]
    both: LiteralString = (
        "select d::text, event_store_platform.moved(d, 1, %s::jsonb)::text from (select %s::jsonb) t (d)"
    )
    ((given, made),) = rows(store.connection, both, json.dumps(upcasts), data)
    assert moved(given, 1, upcasts) == made
    return str(made)


SEVENS = "7" * 100
# the value of "a" before and after
OF_A: list[tuple[Any, str]] = [
    (cast("a", "string"), '12.50 -> "12.50"; true -> "true"; null -> null'),
    (cast("a", "number"), '"12.50" -> 12.50; "-0.0" -> 0.0; "1e5" -> "1e5"'),
    (cast("a", "number"), f'"{SEVENS}.{SEVENS}" -> {SEVENS}.{SEVENS}; "7{SEVENS}" -> "7{SEVENS}"'),
    (cast("a", "number"), f'"0.7{SEVENS}" -> "0.7{SEVENS}"'),
    (cast("a", "integer"), '"12.0" -> 12; 12.00 -> 12; 12.5 -> 12.5; "12.5" -> "12.5"'),
    (cast("a", "boolean"), '"false" -> false; "no" -> "no"'),
    (values("a", {"open": "placed", "1": None}), '"open" -> "placed"; 1 -> 1; "1" -> null'),
    (scale("a", 2), '12.50 -> 1250; "1" -> "1"'),
    (scale("a", -2), "-1250 -> -12.5"),
    (scale("a", -18), "0.10 -> 0.0000000000000000001"),
    (scale("a", 1), f"{SEVENS * 10} -> {SEVENS * 10}0; {SEVENS * 10}7 -> {SEVENS * 10}7"),
]
MEANS: list[tuple[Any, str, str]] = [
    (rename("a", "b"), '{"a": 1, "b": 2}', '{"b": 1}'),
    (rename("a", "b.c"), '{"a": null}', '{"b": {"c": null}}'),
    (rename("a", "b.c.d"), '{"a": [1], "b": {"x": 1}}', '{"b": {"c": {"d": [1]}, "x": 1}}'),
    (rename("a", "b.c"), '{"a": 1, "b": 2}', '{"a": 1, "b": 2}'),
    (rename("a", "b.c"), '{"a": 1, "b": [{}]}', '{"a": 1, "b": [{}]}'),
    (rename("a.b", "a"), '{"a": {"b": {"b": 1}, "c": 2}}', '{"a": {"b": 1}}'),
    (rename("a.0", "b"), '{"a": [1]}', '{"a": [1]}'),
    (rename("a", "b"), '[{"a": 1}]', '[{"a": 1}]'),
    (default("a", {"zz": 1.5, "b": [True]}), "{}", '{"a": {"b": [true], "zz": 1.5}}'),
    (default("a", 1), '{"a": null}', '{"a": null}'),
    (default("a.b.c", 1e22), "{}", '{"a": {"b": {"c": 10000000000000000000000}}}'),
    (default("a.b", 1), '{"a": "x"}', '{"a": "x"}'),
    (default("a.0", 1), '{"a": []}', '{"a": []}'),
    (default("a", -0.0), "{}", '{"a": 0.0}'),
    (drop("a.b"), '{"a": {"b": 1, "c": 2}, "b": 3}', '{"a": {"c": 2}, "b": 3}'),
    (drop("a.0"), '{"a": [1, 2]}', '{"a": [1, 2]}'),
    (nest(["a", "x.b"], into="c"), '{"a": 1, "x": {"b": 2}}', '{"c": {"a": 1, "b": 2}, "x": {}}'),
    (lift("x.c", ["a", "b"]), '{"x": {"c": {"a": 1, "z": 2}}}', '{"x": {"a": 1}}'),
    (rename(["a.b"], ["", "a"]), '{"a.b": 1}', '{"": {"a": 1}}'),
    *(
        (move, *(f'{{"a": {each}}}' for each in pair.split(" -> ")))
        for move, pairs in OF_A
        for pair in pairs.split("; ")
    ),
]


def test_a_move_does_what_it_says_and_leaves_data_where_it_does_not_apply(store: PlatformStore) -> None:
    for move, data, made in MEANS:
        assert by_postgres(store, data, [move]) == made, move


def test_moves_go_as_deep_as_data_do(store: PlatformStore) -> None:
    deep = '{"a": ' * 199 + "1" + "}" * 199
    assert by_postgres(store, deep, [rename("a", ["b"] * 32)]) == '{"b": ' * 32 + deep[6:-1] + "}" * 32
    brackets = "[" * 3000 + "]" * 3000
    made = by_postgres(store, f'{{"a": {{"b": {brackets}}}}}', [rename("a.b", "c")])
    assert made == f'{{"a": {{}}, "c": {brackets}}}'


INVALID: dict[Callable[..., Any], list[tuple[Any, ...]]] = {
    rename: [("a", "a.b"), ("a", "a"), ("", "a")],
    drop: [("a..b",), ([],), (["a"] * 33,), ("\ud800",)],
    default: [("a", float("nan")), ("a", "\x00")],
    cast: [("a", "text")],
    values: [("a", {}), ("a", {"b": []}), ("a", {1: "b"})],
    scale: [("a", 0), ("a", 19), ("a", 1.0)],
    partial(nest, into="a"): [([],)],
    lift: [("a", [])],
}


def test_a_move_that_cannot_work_is_refused_where_it_is_written() -> None:
    for make, wrong in INVALID.items():
        for arguments in wrong:
            with pytest.raises(InvalidEvent):
                make(*arguments)


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
    *(([{"move": move} | A], f"/0/{key} is missing") for move, key in (("rename", "to"), ("default", "value"))),
    ([{"move": "drop", "a/~": 1} | A], "/0/a~1~0 is no key of drop"),
    *(([{"move": "drop", "path": p}], "/0/path is no list of 1 to 32 keys") for p in ([], "a", [1], ["a"] * 33)),
    ([{"move": "rename", "to": [None]} | A], "/0/to is no list"),
    *(([{"move": "rename", "to": to} | A], "/0/to lies within the path") for to in (["a", "b"], ["a"])),
    ([{"move": "cast", "type": "text"} | A], '/0/type is "text"'),
    ([{"move": "cast", "type": None} | A], "/0/type is null"),
    *(
        ([{"move": "values", "values": json.loads(v)} | A], "/0/values is no")
        for v in ("[]", "{}", '{"x": {}}', '{"x": []}')
    ),
    *(([{"move": "scale", "power": n} | A], "/0/power is ") for n in (0, 19, -19, 1.0, "2", None)),
]


def test_moves_that_are_malformed_are_refused_by_place(orders: PlatformStore) -> None:
    statement: LiteralString = "select event_store.register_event_upcast('order', 'placed', 2, %s::jsonb)"
    for moves, why in REFUSED:
        with pytest.raises(Malformed) as refused, refusals():
            orders.connection.execute(statement, [None if moves is None else json.dumps(moves)])
        assert why in str(refused.value.detail), moves
        assert "Paths are lists of 1 to 32 keys" in str(refused.value.hint)
    assert value(orders.connection, "select count(*) from event_store.event_upcasts") == 0


def test_whatever_a_constructor_makes_is_taken(orders: PlatformStore) -> None:
    made = [move for move, _, _ in MEANS]
    assert orders.register_event_upcast("order", "placed", 2, made).to_version == 2
    refusal(Malformed, lambda: orders.register_event_upcast("order", "placed", 1, []))
    refusal(Malformed, lambda: orders.register_event_upcast("", "placed", 2, []))


def test_an_upcast_registers_its_version_described_as_the_one_before(orders: PlatformStore) -> None:
    first = orders.register_event_upcast("order", "placed", 2, [rename("n", "amount")])
    audited = [entry.detail for entry in orders.audit_log() if entry.operation == "register_event_upcast"]
    assert audited == [{"decider": "order", "event": "placed", "to_version": 2, "digest": first.digest}]
    described: LiteralString = "select count(distinct description), max(event_version) from event_store.deciders"
    assert rows(orders.connection, described + " where (decider, event) = ('order', 'placed')") == [(1, 2)]


def test_a_gap_between_a_version_and_an_upcast_is_refused(orders: PlatformStore) -> None:
    for to_version in (3, 9 * 10**18):
        register = partial(orders.register_event_upcast, "order", "placed", to_version, [])
        error = refusal(UpcastMissing, register)
        assert "no upcast to version 2" in str(error.detail)
    for to_version in (2, 3):
        orders.register_event_upcast("order", "placed", to_version, [])
    error = refusal(UpcastMissing, lambda: orders.register_event_upcast("order", "placed", 5, []))
    assert "no upcast to version 4" in str(error.detail)
    # if there was no earlier version, no upcast is missing
    assert orders.register_event_upcast("order", "new", 4, []).to_version == 4


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


def test_a_schema_that_cannot_read_the_version_before_needs_an_upcast(store: PlatformStore) -> None:
    for number, (old, new, why) in enumerate(UNREADABLE):
        first, then = f"first {number}", f"then {number}"
        store.register_event_schema("order", first, old)
        error = refusal(UpcastNeeded, partial(store.register_event_schema, "order", first, new, 2))
        assert why in str(error.detail)
        assert "register_event_upcast" in str(error.hint)
        # in either order of the two
        store.register_event_schema("order", then, new, 2)
        later = refusal(UpcastNeeded, partial(store.register_event_schema, "order", then, old))
        assert "version 2 after 1" in str(later.detail)
        assert why in str(later.detail)
        # only between neighbouring versions
        store.register_event_schema("order", first, new, 3)
        store.register_event_upcast("order", first, 2, [])
        store.register_event_schema("order", first, new, 2)


def test_a_schema_that_reads_the_version_before_or_may_needs_no_upcast(store: PlatformStore) -> None:
    for number, (old, new) in enumerate(READABLE):
        for version, schema in enumerate((old, new), 1):
            store.register_event_schema("order", str(number), schema, version)


def test_events_are_read_in_the_newest_shape_by_all_who_may_read_them(orders: PlatformStore, login: Login) -> None:
    orders.register_event_upcast("order", "placed", 2, [rename("n", "amount"), default("currency", "EUR")])
    orders.register_event_upcast("order", "placed", 3, [scale("amount", 2)])
    stored: list[Json] = [{"n": 12.5}, {"amount": 7}, {"n": 1}]
    kinds = (("placed", 1), ("placed", 2), ("paid", 1))
    append_events(
        orders,
        (
            BatchEvent("order", "o-1", name, data=data, event_version=version)
            for (name, version), data in zip(kinds, stored, strict=True)
        ),
    )
    newest: list[Json] = [{"amount": 1250, "currency": "EUR"}, {"amount": 700}, {"n": 1}]
    for role in (WRITER, READER, "event_store_consumer"):
        reader = PlatformStore(login(role))
        assert [event.data for event in get_events(reader, "o-1", "order")] == stored
        assert [event.data for event in reader.read("order", "o-1", upcast=True)] == newest
        back = list(reader.read("order", "o-1", 2, backwards=True, upcast=True))
        told = [(event.version, event.event_version, event.data) for event in back]
        assert told == [(2, 2, newest[1]), (1, 1, newest[0])]
    reading = login(READER)
    by_hand: LiteralString = """
        select event_store_platform.moved(data, event_version, (
          select jsonb_agg(jsonb_build_object('to_version', to_version, 'moves', moves)) from event_store.event_upcasts
        )) from event_store.events where event = 'placed' order by version
    """
    assert [moved for (moved,) in rows(reading, by_hand)] == newest[:2]
