"""Which fields of an event are personal, and whose their values are."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from millrace.errors import InvalidEvent, Malformed
from millrace.personal.values import SEALED, Plain, Sealed, is_envelope

MARK = "x-personal"
# in a path: each item of a list
EACH = "*"
# nor what has no digest, or ends a marked text
_NO_ID = re.compile(r"[@\s\0\ud800-\udfff]")


@dataclass(frozen=True)
class Personal:
    """Marks a field of an event as personal: `email: Annotated[str, Personal(of="customer_id", kind="customer")]`.

    The store keeps the field sealed. Reading it back gives the value; a program without the keys gets a `Sealed`, and
    everyone gets a `Forgotten` once the person is forgotten.

    Attributes:
        of: The field with the person's id, from the top of the data; dots lead into objects.
        kind: What the id is of: customer 7 and employee 7 are two people.
    """

    of: str
    kind: str

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Take a sealed value in place of the value itself."""

        def take(value: object, inner: core_schema.ValidatorFunctionWrapHandler) -> object:
            if is_envelope(value):
                return value if isinstance(value, Sealed) else Sealed(value)  # type: ignore[call-overload]
            return inner(value)

        def give(value: object, inner: core_schema.SerializerFunctionWrapHandler) -> object:
            return value if isinstance(value, Sealed) else inner(value)

        return core_schema.no_info_wrap_validator_function(
            take, handler(source), serialization=core_schema.wrap_serializer_function_ser_schema(give)
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Say in the schema that the field is personal."""
        rules = handler(schema)
        return {**({"allOf": [rules]} if "$ref" in rules else rules), MARK: {"of": self.of, "kind": self.kind}}


@dataclass(frozen=True)
class PersonalField:
    """A personal field: the keys that lead to it, `*` for each item of a list, and the mark."""

    path: tuple[str, ...]
    mark: Personal


def personal_fields(schema: Mapping[str, Any]) -> tuple[PersonalField, ...]:
    """Return the personal fields that the JSON Schema of an event's data names.

    Raises:
        InvalidEvent: A mark stands where no path leads to, or beside one of another person, or its `of` is no field of
            the data, or a personal one.
    """
    # each once: models of a union may have the same field
    found = tuple(dict.fromkeys(_fields(schema, schema, ())))
    if len({each.path for each in found}) < len(found):
        raise InvalidEvent("a personal field is marked for two people: models of a union give it different marks")
    for each in found:
        here: Any = schema
        for key in each.mark.of.split("."):
            here = _resolved(here, schema).get("properties", {}).get(key)
            if here is None:
                raise InvalidEvent(f"personal field {'.'.join(each.path)}: the data have no field {each.mark.of}")
        if MARK in _resolved(here, schema):
            raise InvalidEvent(f"personal field {'.'.join(each.path)}: the field {each.mark.of} is personal itself")
    return found


def marked(data: Any, fields: Sequence[PersonalField]) -> Any:  # noqa: ANN401 - what JSON holds
    """Return data in which each personal value says whose it is; null and sealed values stay as they are."""
    for each in fields:
        data = _replaced(data, each.path, lambda value, whole=data, mark=each.mark: Plain(_subject(whole, mark), value))  # type: ignore[misc]
    return data


def _subject(data: Any, mark: Personal) -> str:  # noqa: ANN401 - what JSON holds
    for key in mark.of.split("."):
        data = data.get(key) if isinstance(data, Mapping) else None
    return subject_of(mark.kind, data)


def subject_of(kind: str, identity: object) -> str:
    """Return the name of a person, `<kind>:<id>`.

    Raises:
        Malformed: There is no id, or it may be a name or an address.
    """
    text = f"{kind}:{identity}"
    if not isinstance(identity, str | int) or isinstance(identity, bool) or identity == "" or not kind:
        raise Malformed(
            "The person of a personal value has no id.", hint="The field that `of` names holds a text or a number."
        )
    if _NO_ID.search(text):
        raise Malformed(
            "The id of a person has @ or a blank.",
            hint="Use an id that says nothing about the person: no address, no name.",
        )
    return text


def named(subject: str) -> str:
    """Return the name of a person, if it is one; raises as `subject_of`."""
    kind, _, identity = str(subject).partition(":")
    return subject_of(kind, identity)


def _fields(schema: Any, root: Any, path: tuple[str, ...]) -> Iterator[PersonalField]:  # noqa: ANN401 - JSON
    schema = _resolved(schema, root)
    if MARK in schema:
        if not path:
            raise InvalidEvent("the whole data are marked as personal: mark their fields")
        yield PersonalField(path, Personal(**schema[MARK]))
        return
    for key, each in schema.get("properties", {}).items():
        yield from _fields(each, root, (*path, key))
    if "items" in schema:
        yield from _fields(schema["items"], root, (*path, EACH))
    for key in ("anyOf", "allOf", "oneOf"):
        for each in schema.get(key, ()):
            yield from _fields(each, root, path)
    if isinstance(others := schema.get("additionalProperties"), Mapping) and any(_fields(others, root, (*path, "?"))):
        raise InvalidEvent(f"{'.'.join(path) or 'the data'}: keys of any name are marked as personal: name the fields")


def _resolved(schema: Any, root: Any) -> Mapping[str, Any]:  # noqa: ANN401 - JSON
    while isinstance(schema, Mapping) and "$ref" in schema:
        found = root
        for key in schema["$ref"].removeprefix("#/").split("/"):
            found = found[key.replace("~1", "/").replace("~0", "~")]
        schema = {**found, **{key: value for key, value in schema.items() if key != "$ref"}}
    return schema if isinstance(schema, Mapping) else {}


def _replaced(data: Any, path: tuple[str, ...], change: Callable[[Any], Any]) -> Any:  # noqa: ANN401 - JSON
    if not path:
        return data if data is None or is_envelope(data) else change(data)
    key, rest = path[0], path[1:]
    if key == EACH and isinstance(data, list):
        return [_replaced(each, rest, change) for each in data]
    if isinstance(data, Mapping) and key in data and SEALED not in data:
        return {**data, key: _replaced(data[key], rest, change)}
    return data
