"""The fields of data by their JSON Schema: the named ones, and whether others are possible."""

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any

from millrace.personal.declaration import MARK

Schema = Mapping[str, Any] | bool


class Reach(IntEnum):
    """Whether data that fit a schema have a field: never, perhaps without being named, or as a named field."""

    NEVER = 0
    UNNAMED = 1
    NAMED = 2


def reach(schema: Schema, path: Sequence[str], root: Schema | None = None) -> Reach:
    """Return the reach of a field, by its path from the data; `$ref` refers to the root."""
    root = schema if root is None else root
    if schema is False:
        return Reach.NEVER
    if not path:
        return Reach.NAMED
    if schema is True:
        return Reach.UNNAMED
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    name, rest, others = path[0], path[1:], schema.get("additionalProperties", True)
    if types and not {"object", "array"} & {*types}:
        direct = Reach.NEVER
    elif name in schema.get("properties", {}):
        direct = reach(schema["properties"][name], rest, root)
    elif name.isdecimal() and "array" in types:
        direct = reach(schema.get("items", True), rest, root)
    else:
        direct = Reach.UNNAMED if others is True else reach(others, rest, root)
    both = [direct, *(reach(each, path, root) for each in _all_of(schema, root))]
    for key in ("anyOf", "oneOf"):
        if key in schema:
            both.append(max(reach(each, path, root) for each in schema[key]))
    return Reach.NEVER if Reach.NEVER in both else max(both)


def field_types(schema: Schema) -> dict[str, str]:
    """Return the fields that a schema names, each with a readable type, and ? if the field is optional."""
    return dict(_named(schema, schema))


def _all_of(schema: Mapping[str, Any], root: Schema) -> Iterator[Schema]:
    yield from schema.get("allOf", [])
    if "$ref" in schema:
        found: Any = root
        for part in schema["$ref"].removeprefix("#").split("/")[1:]:
            found = found[part.replace("~1", "/").replace("~0", "~")]
        yield found


def _named(schema: Schema, root: Schema) -> Iterator[tuple[str, str]]:
    if isinstance(schema, bool):
        return
    for name, each in schema.get("properties", {}).items():
        yield name, _type(each, root) + ("" if name in schema.get("required", ()) else "?")
    for each in (*_all_of(schema, root), *schema.get("anyOf", []), *schema.get("oneOf", [])):
        yield from _named(each, root)


def _type(schema: Schema, root: Schema) -> str:
    if isinstance(schema, bool):
        return "any"
    if MARK in schema:
        return f"personal {_type({key: each for key, each in schema.items() if key != MARK}, root)}"
    if "enum" in schema or "const" in schema:
        return " | ".join(map(repr, schema.get("enum", [schema.get("const")])))
    types = schema.get("type", [])
    kinds = [*([types] if isinstance(types, str) else types), *_all_of(schema, root)]
    kinds += [*schema.get("anyOf", []), *schema.get("oneOf", [])]
    names = [each if isinstance(each, str) else _type(each, root) for each in kinds]
    if names == ["array"]:
        return f"array of {_type(schema.get('items', True), root)}"
    if names == ["string"]:
        return str(schema.get("format", "string"))
    return " | ".join(dict.fromkeys(names)) or "any"
