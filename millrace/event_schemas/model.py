"""An event of a decider, declared as a Pydantic model: its name, its version, and the schema that its data must fit.

Not here: setting schemas in a store (`registering`), what a schema means (`sql/`).

    @event(decider="order")
    class OrderPlaced(BaseModel):
        \"\"\"A customer placed an order.\"\"\"

        customer_id: str
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_args

from pydantic import BaseModel
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from millrace.errors import InvalidEvent
from millrace.event_store.json_text import flat
from millrace.labels import labels_fault
from millrace.personal.declaration import EACH, MARK, PersonalField, personal_fields
from millrace.user_code import snake_case

Model = TypeVar("Model", bound=BaseModel)
_NAMED, _LISTED, _ONE = {"properties", "$defs"}, {"anyOf", "allOf", "oneOf"}, {"items", "additionalProperties", "not"}
# keywords that do not restrict data: a version keeps its schema for ever, but its texts may be improved
_ANNOTATIONS = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "discriminator"}


@dataclass(frozen=True)
class DeclaredEvent:
    """An event as a Pydantic model declares it.

    Attributes:
        decider: The decider that appends it.
        event: Its name.
        version: The event's version that the model describes.
        description: What happened: the model's docstring.
        model: The model.
        schema: The JSON Schema of its data, reduced to what the store checks: no titles, descriptions and defaults.
        upcasts: By version, the moves from the previous version's data to that version's.
        owner: The role that owns the decider: only its members append to it, and register its events.
        owners: The owners that Dagster shows of the decider's events.
        tags: The tags that Dagster shows of them.
        personal: The fields that are stored sealed.
    """

    decider: str
    event: str
    version: int
    description: str
    model: type[BaseModel]
    schema: Mapping[str, Any]
    upcasts: Mapping[int, Sequence[Any]] = field(default_factory=dict)
    owner: str | None = None
    owners: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    personal: tuple[PersonalField, ...] = ()

    def __str__(self) -> str:
        """Return the event's name as error messages have it."""
        return f"event {self.event} version {self.version} of decider {self.decider}"


def event(
    *,
    decider: str,
    version: int = 1,
    name: str | None = None,
    upcasts: Mapping[int, Sequence[Any]] | None = None,
    owner: str | None = None,
    owners: Sequence[str] = (),
    tags: Mapping[str, str] | None = None,
) -> Callable[[type[Model]], type[Model]]:
    """Declare an event: the model's docstring is its description, its fields are the event's data.

    Args:
        decider: The decider that appends it.
        version: The event's version that the model describes, from 1.
        name: The event's name; by default the class's, in snake_case.
        upcasts: How data of older versions become data of this one: for each version from 2 to this one, the moves from
            the version before; an empty list if data stay as they are.
        owner: The role that owns the decider, if this is its first event: only its members append to it, and register
            its events, schemas and upcasts. By default every writer appends, and the role that registers the event
            also registers its schemas and upcasts.
        owners: The owners that Dagster shows of the decider's events: email addresses, and `team:` with a name.
        tags: The tags that Dagster shows of them.

    Raises:
        InvalidEvent: The class is no Pydantic model, has no docstring, has a field that no JSON Schema describes, or
            has upcasts that leave a version out.
    """

    def declare(model: type[Model]) -> type[Model]:
        named = name or snake_case(model.__name__)
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            raise InvalidEvent(f"event {named}: it is no Pydantic model: derive it from pydantic.BaseModel")
        description = " ".join((model.__doc__ or "").split())
        for bad, problem in (
            (not description, "has no docstring: say what happened"),
            (not decider, "has no decider: name the one whose event it is"),
            (version < 1, f"has version {version}: the first one is 1"),
            (
                bool(upcasts) and sorted(upcasts or ()) != [*range(2, version + 1)],
                f"has upcasts to {sorted(upcasts or ())}: name each version from 2 to {version}, its own, or none",
            ),
        ):
            if bad:
                raise InvalidEvent(f"event {named}: {model.__name__!r} {problem}")
        try:
            schema = _rules(model.model_json_schema(schema_generator=_Schema))
            personal = personal_fields(schema)
        except (InvalidEvent, PydanticInvalidForJsonSchema, PydanticUserError) as error:
            reason = str(error).partition("\n")[0]
            raise InvalidEvent(f"event {named}: {model.__name__!r} has no JSON Schema: {reason}") from error
        if fault := labels_fault(owners, tags or {}):
            raise InvalidEvent(f"event {named}: {fault}")
        moves = {to_version: flat((upcasts or {})[to_version]) for to_version in sorted(upcasts or ())}
        declared = DeclaredEvent(
            decider, named, version, description, model, schema, moves, owner, tuple(owners), tags or {}, personal
        )
        if personal:
            _hide(model, {each.path for each in personal})
        model.__event__ = declared  # type: ignore[attr-defined]
        return model

    return declare


def declared_event(model: object) -> DeclaredEvent | None:
    """Return a model's declaration; None for all other objects, and for a subclass of a declared model."""
    found = vars(model).get("__event__") if isinstance(model, type) else None
    return found if isinstance(found, DeclaredEvent) else None


def _hide(model: type[BaseModel], personal: set[tuple[str, ...]]) -> None:
    """Let neither the texts of a model's objects nor its errors show personal values; nor those of models within."""
    for name, each in model.model_fields.items():
        names = {name, each.alias, each.serialization_alias}
        below = {tuple(key for key in path[1:] if key != EACH) for path in personal if path[0] in names}
        each.repr = not below
        for inner in _models_in(each.annotation) if any(below) else ():
            _hide(inner, below - {()})
    model.model_config["hide_input_in_errors"] = True
    model.model_rebuild(force=True)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:  # noqa: ANN401 - any type
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for each in get_args(annotation):
        yield from _models_in(each)


class _Schema(GenerateJsonSchema):
    """Pydantic's schemas, but a decimal is a text with its digits, as Pydantic writes it, or a number with as many."""

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        """Return the schema of a decimal."""
        written: Mapping[str, Any] = {**schema.get("serialization", {})}
        if written.get("return_schema", {}).get("type") == "float":
            raise InvalidEvent("a Decimal is written as a float, which has other digits: leave out its serializer")
        number, places = super().decimal_schema(schema)["anyOf"][0], schema.get("decimal_places")
        sign = "" if schema.get("ge", schema.get("gt", -1)) >= 0 else "-?"
        digits = "[0-9]+" + ("" if places == 0 else rf"(\.[0-9]{'+' if places is None else f'{{1,{places}}}'})?")
        if places is not None:
            number["multipleOf"] = 10**-places if places else 1
        return {"anyOf": [number, {"type": "string", "pattern": f"^{sign}{digits}$"}]}


def _rules(schema: Any) -> Any:  # noqa: ANN401 - a schema is an object, or true, or false
    """Return a schema without its annotations."""
    if not isinstance(schema, dict):
        return schema
    rules = {
        key: value
        for key, value in schema.items()
        if key not in _ANNOTATIONS and (key == MARK or not key.startswith("x-"))
    }
    for key, value in rules.items():
        if key in _NAMED:
            rules[key] = {name: _rules(each) for name, each in value.items()}
        elif key in _LISTED:
            rules[key] = [_rules(each) for each in value]
        elif key in _ONE:
            rules[key] = _rules(value)
    return rules
