"""Random schemas and data near their borders: the store accepts the same data as a validator of JSON Schema."""

from typing import Any

import jsonschema_rs
import psycopg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.event_store.json_text import jsonb
from millrace.event_store.platform import PlatformStore
from tests.support.factories import rows

Schema = dict[str, Any] | bool

KEYS = ["a", "b", "key", 'qu"o', "~t/l", "", "ü b", "type", "value"]
keys = st.sampled_from(KEYS)
# numbers that a double holds exactly: a validator with doubles only would round others
numbers = st.sampled_from([-2, -1, 0, 1, 2, 3, 4, 5, 6, -0.5, 0.5, 1.0, 1.5, 2.25, 1000, 2**53])
bounds = st.sampled_from([-1, 0, 1, 2, 2.5, 1000])
counts = st.integers(0, 3)
lengths = st.sampled_from([0, 1, 2, 3, 5, 253, 254, 255, 256, 300, 1000])
texts = st.sampled_from(
    [
        *("", "a", "ab", "abc", "A1", "a b", "a\nb", "ü", "🌊🌊", "e\u0301", "c-12", "c-٣", "x" * 5, "12", "a-b", "]"),
        *("\\", "1.5"),
        *("2024-02-29", "2023-02-29", "1900-02-29", "2000-02-29", "2024-13-01", "2024-04-31", "2024-4-1"),
        "2024-01-01\n",
        *("2024-01-01T00:00:00Z", "2024-01-01t23:59:59.5+01:00", "2024-01-01T24:00:00Z", "2024-01-01T00:00:00"),
        *("2024-01-01 00:00:00Z", "2024-01-01T00:00:00-24:00", "2023-02-29T00:00:00Z", "2024-01-01T00:00:00.Z"),
        *(
            "f156a3c4-9bd8-11ed-a8fc-0242ac120002",
            "F156A3C4-9BD8-11ED-A8FC-0242AC120002",
            "f156a3c49bd811eda8fc0242ac120002",
        ),
    ]
) | st.builds(
    str.__mul__, st.sampled_from(["x", "ü", "🌊"]), st.sampled_from([253, 254, 255, 256, 299, 300, 301, 1000, 1001])
)
scalars = st.none() | st.booleans() | numbers | texts
patterns = st.sampled_from(
    [
        *("", "^a", "b$", "^a.b$", "^.$", "^[a-c]+$", "[^a]", r"^\w+$", r"\d", r"^\D*$", r"^c-\d+$", r"\s", r"^\S+$"),
        r"^[\w-]+$",
        *(r"^[\w.-]*$", r"^[^\d]$", "^(?:a|ab)$", "(a|b){2}", "^x{5}$", "^x{2,}$", r"^\\$", r"^\]$", r"^[\]]$"),
        *("^[a-]$", r"\."),
        *("a|^$", "^ü$", r"^1\.5$", r"^[\d]+\.[\d]$", r"^.{0,3}$", "x??$", r"^[[]|]$", "^[^\\s]$", "é|🌊"),
    ]
)

values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4), max_leaves=6
)


def members(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Draw some keywords of a schema with parts from `inner`."""
    types = st.sampled_from(["null", "boolean", "number", "integer", "string", "array", "object"])
    known: dict[str, st.SearchStrategy[Any]] = {
        "type": types | st.lists(types, min_size=1, max_size=3, unique=True),
        "enum": st.lists(scalars, min_size=1, max_size=4),
        "const": scalars,
        "minimum": bounds,
        "maximum": bounds,
        "exclusiveMinimum": bounds,
        "exclusiveMaximum": bounds,
        "multipleOf": st.sampled_from([1, 2, 3, 0.5, 0.25, 1.5]),
        "minLength": lengths,
        "maxLength": lengths,
        "pattern": patterns,
        "format": st.sampled_from(["date", "date-time", "uuid"]),
        "minItems": counts,
        "maxItems": counts,
        "items": inner,
        "required": st.lists(keys, max_size=2, unique=True),
        "properties": st.dictionaries(keys, inner, min_size=1, max_size=3),
        "additionalProperties": st.just(False) | inner,
        "anyOf": st.lists(inner, min_size=1, max_size=3),
        "allOf": st.lists(inner, min_size=1, max_size=2),
        "oneOf": st.lists(inner, min_size=1, max_size=3),
        "not": inner,
        "$ref": st.sampled_from(["#/$defs/one", "#/$defs/t~1w~0o"]),
        "description": st.just("kept"),
        "x-mark": st.just({"type": 5}),
    }
    return st.lists(st.sampled_from(sorted(known)), min_size=1, max_size=4, unique=True).flatmap(
        lambda chosen: st.fixed_dictionaries({name: known[name] for name in chosen})
    )


def records(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Draw a typical schema: an object; its properties have a type and a rule, and some are required."""
    numeric = st.fixed_dictionaries({"type": st.sampled_from(["number", "integer"])}, optional={"minimum": bounds})
    textual = st.fixed_dictionaries({"type": st.just("string")}, optional={"maxLength": lengths, "pattern": patterns})
    return st.fixed_dictionaries(
        {
            "type": st.just("object"),
            "properties": st.dictionaries(keys, numeric | textual | inner, min_size=1, max_size=3),
            "required": st.lists(keys, max_size=4, unique=True),
        }
    )


def without_refs(schema: Any) -> Any:  # noqa: ANN401 - any JSON
    """Remove references: a referenced schema has none, so there are no cycles."""
    if isinstance(schema, dict):
        return {key: without_refs(value) for key, value in schema.items() if key != "$ref" or isinstance(value, dict)}
    return [without_refs(each) for each in schema] if isinstance(schema, list) else schema


parts: st.SearchStrategy[Any] = st.recursive(
    st.booleans() | members(st.booleans()) | records(st.booleans()), lambda p: members(p) | records(p), max_leaves=5
)
schemas = st.builds(
    lambda schema, one, two: schema | {"$defs": {"one": without_refs(one), "t/w~o": without_refs(two)}},
    members(parts) | records(parts),
    parts,
    parts,
)


@st.composite
def fitting(draw: st.DrawFn, schema: Any, root: Any) -> Any:  # noqa: ANN401, PLR0911 - any JSON, one return a kind
    """Draw a value that is likely to fit, or to break a rule slightly."""
    if isinstance(schema, bool) or draw(st.integers(0, 7)) == 0:
        return draw(values)
    for keyword in ("allOf", "anyOf", "oneOf"):
        if keyword in schema and draw(st.booleans()):
            return draw(fitting(draw(st.sampled_from(schema[keyword])), root))
    if "$ref" in schema and draw(st.booleans()):
        return draw(fitting(root["$defs"]["one" if schema["$ref"].endswith("one") else "t/w~o"], root))
    if "const" in schema and draw(st.booleans()):
        return schema["const"]
    if "enum" in schema and draw(st.booleans()):
        return draw(st.sampled_from(schema["enum"]))
    kinds = schema.get("type", ["object", "array", "string", "number"])
    kind = draw(st.sampled_from([kinds] if isinstance(kinds, str) else kinds))
    if kind == "object":
        properties = schema.get("properties", {})
        names = draw(st.sets(st.sampled_from([*properties, *schema.get("required", []), "z"])))
        return {name: draw(fitting(properties.get(name, True), root)) for name in sorted(names)}
    if kind == "array":
        return draw(st.lists(fitting(schema.get("items", True), root), max_size=4))
    if kind in {"number", "integer"}:
        border = draw(
            st.sampled_from(
                [schema[k] for k in schema if k in {"minimum", "maximum", "exclusiveMinimum", "multipleOf"}] or [1]
            )
        )
        return border + draw(st.sampled_from([0, 0, 1, -1, 0.5, -0.25]))
    if kind == "string":
        size = draw(st.sampled_from([schema[k] for k in schema if k in {"minLength", "maxLength"}] or [3]))
        return draw(texts | st.just("x" * (size + draw(st.sampled_from([-1, 0, 1])))))
    return draw(st.booleans() if kind == "boolean" else st.none())


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, list[Any]]:
    schema = draw(schemas)
    return schema, [*draw(st.lists(fitting(schema, schema), min_size=2, max_size=6)), draw(values)]


def judged(connection: psycopg.Connection, schema: Any, data: list[Any]) -> list[tuple[bool, bool]]:  # noqa: ANN401 - any JSON
    """Return for each value whether the predicate accepts it, and whether no single rule refuses it."""
    return rows(
        connection,
        """
        select
          c.predicate is null or (d.value @@ format('strict exists($ ? (%%s))', c.predicate)::jsonpath) is true,
          (event_store_private.data_violation(c.checks, d.value)).fault is null
        from event_store_private.compile_schema(%s) c
        cross join jsonb_array_elements(%s) with ordinality d(value, ordinal)
        order by d.ordinal
        """,
        jsonb(schema),
        jsonb(data),
    )


def assert_as_a_validator(store: PlatformStore, schema: Schema, data: list[Any]) -> None:
    """Assert that the store accepts the same data as a validator, and names a rule for all others."""
    validator = jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
    expected = [validator.is_valid(each) for each in data]
    assert judged(store.connection, schema, data) == [(each, each) for each in expected], (schema, data)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases())
def test_the_store_accepts_what_a_validator_accepts(store: PlatformStore, case: tuple[Any, list[Any]]) -> None:
    assert_as_a_validator(store, *case)


# Cases that random tests rarely meet. In jsonpath a lax comparison unwraps an array, and the result of comparing
# different types, or of a path into a scalar, is unknown, and so is its negation. A predicate omits a rule that the
# rest of it implies; the rule itself still names the fault.
A, OBJECT, NUMBER = {"properties": {"a": {"type": "number"}}}, {"type": "object"}, {"type": "number"}
NEEDED = {"required": ["a"]}
ITEMS = {"type": "object", "properties": {"a": {"minimum": 0, "pattern": "^x$"}, "b": {"items": NUMBER}}}
DEEP = OBJECT | NEEDED | {"properties": {"a": OBJECT | {"required": ["b"], "properties": {"b": NUMBER}}}}
SOME = [{}, [], True, [1], {"a": 1}, [["x"]], [{"a": 2}, 3], [{"a": 2}, {}], {"a": 5}, {"a": [5]}, 0.5, "x", 5]
NATURAL, WORD = {"type": "integer", "minimum": 0}, {"type": "string", "minLength": 1}
BORDERS: list[tuple[dict[str, Any], list[Any]]] = [
    (ITEMS, [{"a": -5}, {"a": "y"}, {"b": [[5]]}, {"b": [{"c": 1}]}, {"a": [-5]}, {"a": ["y"]}, {"b": [5]}, {"b": {}}]),
    *((schema, [{"a": {}}, {"a": {"b": None}}, {"a": [{"b": 5}]}, *SOME]) for schema in (DEEP, {"not": DEEP})),
    *((schema, SOME) for schema in ({"const": 1}, {"enum": ["1", None]}, {"not": {"not": {"const": "x"}}}, WORD)),
    *((schema, SOME) for schema in (NEEDED, {"minimum": 9}, {"items": NEEDED}, {"not": {"type": "array"}})),
    *(
        (schema, SOME)
        for schema in ({"properties": {"a": {"const": 1}}}, {"additionalProperties": False}, A, OBJECT | A)
    ),
    *((NEEDED | more, SOME) for more in (A, OBJECT, OBJECT | A, OBJECT | {"properties": {"b": NUMBER}})),
    (NEEDED | OBJECT | {"properties": {"a": {"minimum": 1}}}, SOME),
    (NEEDED | OBJECT | {"properties": {"a": {"properties": {"b": NUMBER}}}}, SOME),
    ({"required": ["b"]} | OBJECT | A, SOME),
    *((schema, SOME) for schema in (NUMBER | {"maxLength": 3}, NATURAL, NATURAL | {"type": ["integer", "null"]})),
    *(({"items": items}, SOME) for items in (NEEDED | OBJECT | A, NATURAL)),
    *((schema, SOME) for schema in ({"additionalProperties": WORD}, {"not": {"type": "string"}, "minLength": 1})),
    ({"not": {"const": "x"}}, SOME),
    ({"anyOf": [NATURAL, {"type": "null"}, NEEDED | OBJECT | A]}, SOME),
    *((schema, SOME) for schema in ({"oneOf": [WORD, NUMBER]}, {"not": NEEDED | OBJECT | A}, {"not": WORD})),
    # ECMA-262 patterns
    *(({"pattern": pattern}, ["aZ_9", "ü", "_", ""]) for pattern in (r"^\w+$", r"^\W$")),
    *(({"pattern": pattern}, ["12", "٣", "3"]) for pattern in (r"^\d+$", r"^\D$")),
    *(({"pattern": pattern}, ["\u2003", "_", "\u00a0"]) for pattern in (r"^\s$", r"^[^\s]$")),
    ({"pattern": r"^[-\d]+$"}, ["1-2", "1.2"]),
    *(({"pattern": pattern}, ["]-a", "b", "[", "]"]) for pattern in (r"^[\]\-a]+$", r"^[[]$")),
    *(({"pattern": pattern}, ["🌊", "\n", "xa", "xb", "abab", "ab", "a", "a\n"]) for pattern in ("^.$", "a|^b", "^a$")),
    ({"pattern": "^(?:ab){2,3}$"}, ["abab", "ab"]),
]


def test_at_the_borders_it_accepts_what_a_validator_accepts(store: PlatformStore) -> None:
    for schema, data in BORDERS:
        assert_as_a_validator(store, schema, data)
