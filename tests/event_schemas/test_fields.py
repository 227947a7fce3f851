"""The statements of a schema about a field by its path, and how its fields are shown."""

from typing import Any

from millrace.event_schemas.fields import Reach, field_types, reach

CLOSED: dict[str, Any] = {"type": "object", "additionalProperties": False, "properties": {"a": {}, "b": False}}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["who", "lines"],
    "properties": {
        "who": {"$ref": "#/$defs/w~1o"},
        "note": {"type": ["string", "null"]},
        "lines": {"type": "array", "items": CLOSED},
        "either": {"anyOf": [CLOSED, {"type": "string", "format": "date"}]},
        "by": {"type": "object", "additionalProperties": {"type": "integer"}},
        "strict": {"allOf": [{"type": "object"}, CLOSED]},
        "kind": {"enum": ["x", None]},
    },
    "$defs": {"w/o": {"type": "object", "properties": {"name/of": {"type": "string"}, "more": True}}},
}
REACHED: tuple[tuple[Reach, tuple[str, ...]], ...] = (
    (Reach.NAMED, ("who", "who.name/of", "lines", "lines.0.a", "either.a", "by.x", "strict.a", "note")),
    (Reach.UNNAMED, ("other", "other.deeper", "who.other", "who.more.deeper", "kind.x")),
    (Reach.NEVER, ("note.x", "who.name/of.x", "lines.0.x", "lines.0.b", "either.x", "by.x.y", "strict.x")),
)


def test_a_field_is_named_or_left_open_or_forbidden() -> None:
    for expected, paths in REACHED:
        assert {path: reach(SCHEMA, path.split(".")) for path in paths} == dict.fromkeys(paths, expected)
    assert [reach(schema, ["x"]) for schema in (True, False, {}, {"oneOf": [CLOSED]})] == [1, 0, 1, 0]


def test_fields_are_shown_with_types_and_what_is_optional() -> None:
    assert field_types(SCHEMA) == {
        "who": "object",
        "note": "string | null?",
        "lines": "array of object",
        "either": "object | date?",
        "by": "object?",
        "strict": "object?",
        "kind": "'x' | None?",
    }
    assert field_types(True) == {}
    assert field_types({"anyOf": [CLOSED, {"properties": {"c": True}}]}) == {"a": "any?", "b": "any?", "c": "any?"}
