"""An event's schema: valid schemas, which role sets them, refused data and the messages."""

import re
from calendar import monthrange
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from millrace.errors import DataRefused, EventIdReused, EventNotRegistered, Malformed
from millrace.event_store import Json
from millrace.event_store.json_text import jsonb
from millrace.event_store.platform import PlatformStore
from tests.sql.event_store.test_every_way_in import STORES, accepted, event, insert
from tests.support.factories import Connect, append, new_event, refusal, rows, value
from tests.support.sql_calls import BatchEvent, append_events, get_events

WRITER = "event_store_writer"
NUMBER = {"type": "number"}
ORDER: dict[str, Any] = {
    "description": "A customer placed an order.",
    "type": "object",
    "required": ["amount"],
    "properties": {
        "amount": {"type": "number", "minimum": 0},
        "note": {"type": ["string", "null"], "maxLength": 20},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
    },
    "$defs": {"line": {"type": "object", "properties": {"n": {"type": "integer"}}}},
}


def schemas(store: PlatformStore) -> list[tuple[Any, ...]]:
    return rows(
        store.connection,
        "select decider, event, event_version, accepts is not null, digest from event_store.event_schemas"
        " join event_store.deciders using (decider, event, event_version) order by 1, 2, 3",
    )


def refused(store: PlatformStore, schema: Json, data: Json) -> str | None:
    """Return why data do not fit a schema; None if they do. Nothing is stored."""
    with store.connection.transaction(force_rollback=True):
        store.register_event_schema("order", "judged", schema)
        try:
            append(store, event="judged", data=data)
        except DataRefused as error:
            return error.detail
    return None


SAID: list[tuple[Any, Any, str]] = [
    ({"type": "string"}, 5, "data is 5, not of type string, by /type of the schema"),
    ({"type": ["integer", "null"]}, "x", 'data is "x", not of type integer or null, by /type'),
    ({"properties": {"a": {"minimum": 0}}}, {"a": -1}, "data.a is -1, less than 0, by /properties/a/minimum"),
    ({"maximum": 2.5}, 3, "data is 3, more than 2.5, by /maximum"),
    ({"exclusiveMinimum": 0}, 0, "data is 0, not more than 0, by /exclusiveMinimum"),
    ({"exclusiveMaximum": -1}, -1, "data is -1, not less than -1, by /exclusiveMaximum"),
    ({"multipleOf": 0.01}, 0.125, "data is 0.125, no multiple of 0.01, by /multipleOf"),
    ({"minLength": 2}, "x", 'data is "x", shorter than 2 characters, by /minLength'),
    ({"minLength": 256}, "x" * 255, "x…, shorter than 256 characters, by /minLength"),
    ({"maxLength": 1000}, "x" * 1001, "x…, longer than 1000 characters, by /maxLength"),
    ({"pattern": "^a"}, "b", 'data is "b", not like "^a", by /pattern'),
    ({"format": "date"}, "x", 'data is "x", no date, by /format'),
    ({"enum": ["a", 1, None]}, "x", 'data is "x", none of "a", 1, null, by /enum'),
    ({"const": True}, False, "data is false, not true, by /const"),
    ({"required": ["a", "b"]}, {"a": 1}, 'data is {"a": 1}, without "b", by /required/1'),
    # of several faults the first
    ({"required": ["a", "b"]}, {}, 'data is {}, without "a", by /required/0'),
    ({"minItems": 1}, [], "data is [], of fewer than 1 items, by /minItems"),
    ({"maxItems": 1}, [1, 2], "data is [1, 2], of more than 1 items, by /maxItems"),
    ({"additionalProperties": False}, {"a": 1}, "with a key that is not among the properties, or whose value is unfit"),
    ({"items": {"items": NUMBER}}, [[1], [2, "x"]], 'data[1][1] is "x", not of type number, by /items/items/type'),
    ({"anyOf": [NUMBER, {"const": "x"}]}, [], "data is [], unfit for each schema of anyOf, by /anyOf"),
    ({"oneOf": [NUMBER, {"const": 1}]}, 1, "data is 1, not fit for exactly one schema of oneOf, by /oneOf"),
    ({"not": NUMBER}, 1, "data is 1, fit for the schema of not, by /not"),
    ({"allOf": [{}, {"minimum": 1}]}, 0, "by /allOf/1/minimum"),
    ({"properties": {"a/~b": False}}, {"a/~b": 1}, "data.a/~b is 1, which is not allowed, by /properties/a~1~0b of"),
    ({"$ref": "#/$defs/a~1~0b", "$defs": {"a/~b": NUMBER}}, "x", "by /$defs/a~1~0b/type"),
    (False, {}, "data is {}, which is not allowed, by the whole of the schema"),
]


def test_a_refusal_names_the_value_and_the_rule(orders: PlatformStore) -> None:
    for schema, data, said in SAID:
        detail = str(refused(orders, schema, data))
        assert said in detail, schema
        assert detail.startswith("event judged version 1 of decider order: data")


FITS = (
    "select d @@ format('strict exists($ ? (%%s))', c.predicate)::jsonpath"
    " from (select %s::jsonb as d) given cross join lateral event_store_private.compile_schema(%s) c"
)


def test_numbers_are_decimal_and_have_their_digits(orders: PlatformStore) -> None:
    cents = {"multipleOf": 0.01, "minimum": 0.3}
    for number in ("0.3", "0.30", "1e2", "19.99", "1" + "0" * 800 + ".07"):
        assert value(orders.connection, FITS, number, jsonb(cents)), number
    for number in ("0.299999999999999999999", "19.999", "0.3000000000000000000001"):
        assert not value(orders.connection, FITS, number, jsonb(cents)), number
    numbers = ("1.0", "-3e0", "1e300", "1.5", "1e-300")
    whole = [value(orders.connection, FITS, n, jsonb({"type": "integer"})) for n in numbers]
    assert whole == [True, True, True, False, False]


def test_a_hyphen_behind_a_class_is_itself(orders: PlatformStore) -> None:
    assert [refused(orders, {"pattern": r"^[\w-.]+$"}, text) is None for text in ("a-b.c", "a+b")] == [True, False]


def test_dates_are_those_of_the_calendar(orders: PlatformStore) -> None:
    said = rows(
        orders.connection,
        """
        select y, m, d, format('%%s-%%s-%%s', to_char(y, 'FM0000'), to_char(m, 'FM00'), to_char(d, 'FM00'))
          ~ event_store_private.format_pattern('date')
        from unnest('{1900,2000,2023,2024,2100,2400}'::int[]) y, generate_series(0, 13) m, generate_series(0, 32) d
        """,
    )
    days = {(y, m, d) for y, m in {row[:2] for row in said} if 1 <= m <= 12 for d in range(1, monthrange(y, m)[1] + 1)}
    assert {(y, m, d) for y, m, d, fits in said if fits} == days


UNKNOWN = ("unevaluatedProperties", "$dynamicRef", "patternProperties", "$anchor", "Type")
REFUSED: list[tuple[Any, str]] = [
    ({"if": {}}, "if at /if is not taken"),
    ({"properties": {"a": {"uniqueItems": True}}}, "uniqueItems at /properties/a/uniqueItems is not taken"),
    *(({keyword: {}}, f"{keyword} at /{keyword} is not taken") for keyword in UNKNOWN),
    ({"items": {"anyOf": [{}, {"contains": {}}]}}, "contains at /items/anyOf/1/contains is not taken"),
    ({"properties": {"a": {"$id": "x"}}}, "$id at /properties/a/$id is not taken"),
    *(({"$ref": ref}, "$ref at /$ref names nothing of the schema") for ref in ("https://example.org/a", "#/$defs/a")),
    ({"$ref": "#/%24defs/a", "$defs": {"a": {}}}, "names nothing of the schema"),
    ({"properties": {"a": {"$ref": "#"}}}, "$ref at /properties/a/$ref refers to a schema that it is in"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}}, "/$defs/a/items/$ref refers to a schema"),
    *(({"type": wrong}, "type at /type names no type") for wrong in ("text", [], [["string"]])),
    ({"minimum": "1"}, "minimum at /minimum is no number"),
    ({"exclusiveMinimum": True}, "is no number"),
    ({"multipleOf": 0}, "is not above 0"),
    *((wrong, "is no count") for wrong in ({"minItems": -1}, {"maxLength": 1.5})),
    ({"maxLength": 1001}, "maxLength at /maxLength is above 1000"),
    *(({"required": wrong}, "is no list of names") for wrong in ("a", [1])),
    ({"properties": []}, "properties at /properties is no object"),
    ({"properties": {"a~/": 5}}, "/properties/a~0~1 is no schema"),
    ({"items": [{}]}, "/items is no schema"),
    ({"anyOf": []}, "anyOf at /anyOf is no list of schemas"),
    ({"not": None}, "/not is no schema"),
    ({"enum": []}, "is no list of values"),
    ({"enum": [{}]}, "enum at /enum has an array or an object"),
    ({"const": [1]}, "const at /const has an array or an object"),
    ({"format": "email"}, 'format at /format is "email"; date, date-time and uuid are taken'),
    ({"pattern": "x" * 1001}, "pattern at /pattern has more than 1000 characters"),
    ({"format": 5}, "format at /format is 5"),
    (5, "the whole is no schema"),
    ({"properties": {f"p{n}": {"pattern": f"^a{n}$"} for n in range(25)}}, "25 different patterns"),
    ({"description": "x" * 65536}, "bytes as text"),
]
UNLIKE = [
    *("(?=a)", "(?!a)", "(?<=a)", "(?<n>a)", "(?i)a", r"\bword", r"\B", r"(a)\1", r"\p{L}", r"\u0061", r"\x61", r"\cA"),
    *(
        "a{256}",
        "a{1,256}",
        "a{,5}",
        "a{x}",
        "[]",
        "[^]",
        r"[a-\d]",
        r"[\D]",
        r"[\b]",
        "*a",
        "(a",
        "[a",
        "a**",
        "***=a",
        "[b-a]",
    ),
    *("\\", r"\A"),
]


def test_what_is_not_taken_is_refused_by_keyword_and_place(orders: PlatformStore) -> None:
    for schema, why in [*REFUSED, *(({"pattern": p}, "pattern at /pattern has something") for p in UNLIKE)]:
        error = refusal(Malformed, partial(orders.register_event_schema, "order", "placed", schema))
        assert why in str(error.detail), schema
    assert schemas(orders) == []


def test_a_schema_that_grows_beyond_measure_is_refused_at_once(orders: PlatformStore) -> None:
    deep: Any = {}
    for _ in range(40):
        deep = {"items": deep}
    # each refers twice to its predecessor: a million references in all
    doubled = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n - 1}"}] * 2} for n in range(1, 20)} | {"d0": {}}
    wide = {"properties": {f"p{n}": {"enum": [f"a rather long text {m}" for m in range(100)]} for n in range(25)}}
    large: list[tuple[Json, str]] = [
        (deep, "is nested in more than 32 schemas"),
        ({"$ref": "#/$defs/d15", "$defs": doubled}, "is too large, with what it refers to"),
        ({"allOf": [{"$ref": "#/$defs/w"}] * 3, "$defs": {"w": wide}}, "is too large, with what it refers to"),
        # each of the 300 cases is written 300 times, with a key of 1,500 letters
        ({"properties": {"k" * 1_500: {"oneOf": [{"const": n} for n in range(300)]}}}, "is too large, with what it"),
        ({"allOf": [{"$ref": "#/$defs/w"}] * 100, "$defs": {"w": wide}}, "is too large, with what it refers to"),
    ]
    for schema, why in large:
        with pytest.raises(Malformed, match=why):
            orders.register_event_schema("order", "placed", schema)
    memory = Path(f"/proc/{orders.connection.info.backend_pid}/status").read_text()
    peak = re.search(r"VmHWM:\s+([0-9]+) kB", memory)
    assert peak is not None
    assert int(peak[1]) < 300_000


def test_annotations_are_kept_and_say_nothing_of_data(orders: PlatformStore) -> None:
    schema: dict[str, Any] = {"title": "T", "x-scale": {"type": 1}, "examples": [1], "$comment": "c", "$schema": "s"}
    schema |= {"default": {}, "$id": "i", "uniqueItems": False, "properties": {"a": {"title": "A"}, "b": True}}
    orders.register_event_schema("order", "placed", schema)
    assert value(orders.connection, "select schema ->> 'x-scale' from event_store.event_schemas") == '{"type": 1}'
    assert schemas(orders)[0][3] is False
    append(orders, data=[])


def test_a_schema_is_its_content_and_each_version_has_its_own(orders: PlatformStore) -> None:
    first = orders.register_event_schema("order", "placed", ORDER)
    assert orders.register_event_schema("order", "placed", dict(reversed(ORDER.items()))) == first
    assert orders.register_event_schema("order", "placed", {"type": "object"}, 2).digest != first.digest
    assert [row[:4] for row in schemas(orders)] == [("order", "placed", 1, True), ("order", "placed", 2, True)]
    assert append_events(orders, [BatchEvent("order", "o-1", "placed", data={}, event_version=2)])[0].appended


def test_a_schema_registers_its_event_with_its_own_description(store: PlatformStore) -> None:
    store.register_event_schema("order", "placed", ORDER)
    store.register_event_schema("order", "paid", {"title": "Paid"})
    store.register_event_schema("order", "sent", True)
    assert rows(store.connection, "select event, description from event_store.deciders order by 1") == [
        ("paid", "Paid"), ("placed", "A customer placed an order."), ("sent", ""),
    ]  # fmt: skip
    refusal(Malformed, lambda: store.register_event_schema("", "placed", ORDER))


def test_data_that_do_not_fit_are_refused_whichever_way_they_come(orders: PlatformStore) -> None:
    orders.register_event_schema("order", "placed", {"properties": {"n": {"type": "integer"}}})
    bad = [(event(data='{"n": "12"}'), 'data.n is "12", not of type integer, by /properties/n/type')]
    assert accepted(orders, bad, DataRefused, ways=STORES) == []
    for way in STORES:
        with orders.connection.transaction(force_rollback=True):
            way(orders.connection, event(data='{"n": 12}'))
            assert value(orders.connection, "select count(*) from event_store.events where data = '{\"n\": 12}'") == 1


def test_a_batch_is_refused_by_its_first_unfit_event_and_stores_nothing(orders: PlatformStore) -> None:
    orders.register_event_schema("order", "placed", ORDER)
    good, bad = ({"amount": 1}, {"amount": -1})
    made = [
        BatchEvent("order", "o-1", name, data=data)
        for name, data in (("paid", bad), ("placed", good), ("placed", bad), ("placed", {}))
    ]
    said = str(refusal(DataRefused, lambda: append_events(orders, made)).detail)
    assert said.startswith("event 3 of the batch: event placed version 1 of decider order: data.amount is -1, less")
    # a malformed or unknown event is reported first
    refusal(Malformed, lambda: append_events(orders, [*made, BatchEvent("order", "", "placed")]))
    refusal(EventNotRegistered, lambda: append_events(orders, [made[1], BatchEvent("order", "o-1", "unknown")]))
    assert value(orders.connection, "select count(*) from event_store.events") == 0


def test_a_history_from_before_the_schema_is_never_judged_again(orders: PlatformStore) -> None:
    unfit = new_event("o-1")
    append_events(orders, [unfit])
    stored = append(orders, "o-2")
    third = event(decider_id="o-3", data='{"n": 1}')
    insert(orders.connection, third)
    orders.register_event_schema("order", "placed", ORDER)

    again = append_events(orders, [unfit, BatchEvent("order", "o-1", "placed", data={"amount": 5})])
    assert [row.appended for row in again] == [False, True]
    assert append(orders, "o-2", event_id=stored.event_id, command_id=stored.command_id).offset == stored.offset
    insert(orders.connection, third)
    # other data under a used event_id are refused as another event
    refusal(EventIdReused, lambda: append(orders, "o-2", event_id=stored.event_id, data={}))
    refusal(
        EventIdReused, lambda: append_events(orders, [BatchEvent("order", "o-1", "placed", unfit.event_id, data={})])
    )
    refusal(DataRefused, lambda: append(orders, "o-2", stored.event_id))
    append(orders, "o-2", stored.event_id, data={"amount": 0})
    # other events of the decider, and the event of another decider, have no schema
    append(orders, "o-4", event="paid")
    append(orders, "o-4", decider="invoice")


def test_unfit_data_are_said_before_a_conflict(orders: PlatformStore) -> None:
    orders.register_event_schema("order", "placed", ORDER)
    append(orders, data={"amount": 1})
    refusal(DataRefused, lambda: append(orders))


def test_a_schema_holds_for_appends_that_begin_after_it(orders: PlatformStore, connect: Connect) -> None:
    early = connect(autocommit=False)
    append(PlatformStore(early))
    # neither session waits for the other
    orders.register_event_schema("order", "placed", ORDER)
    refusal(DataRefused, lambda: append(PlatformStore(early), "o-2"))
    early.rollback()
    append(PlatformStore(early), data={"amount": 1})
    orders.register_event_schema("order", "paid", ORDER)
    early.commit()
    assert len(get_events(orders, "o-1", "order")) == 1
    held = connect(autocommit=False)
    held.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    held.execute("select count(*) from event_store.deciders")
    orders.register_event_schema("order", "shipped", ORDER)
    append(PlatformStore(held), "o-3", event="shipped")
    held.commit()
    assert get_events(orders, "o-3", "order")[0].data == {"n": 1}


def test_a_predicate_of_every_size_is_stored(orders: PlatformStore) -> None:
    """A row of a few kilobytes is stored inline; one that does not fit a page is compressed or moved out of line."""
    for count in (1, 25, 60, 90):
        name = f"of {count}"
        properties = {f"property_{n}": {"type": "number", "minimum": n, "maximum": n + 1} for n in range(count)}
        orders.register_event_schema("order", name, {"type": "object", "properties": properties})
        good = {f"property_{n}": n + 0.5 for n in range(count)}
        append(orders, name, event=name, data=good)
        with pytest.raises(DataRefused):
            append(orders, "other", event=name, data=good | {"property_0": 2})
