"""Names in a declaration that the store does not know: of deciders, events, and fields of data.

Only a field that schemas forbid is an error: an event may come later, and a field may be rare.
"""

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches

from millrace.errors import InvalidEvent, InvalidReadModel
from millrace.event_schemas.fields import Reach, Schema, field_types, reach
from millrace.personal.declaration import personal_fields
from millrace.read_models.declared.columns import data_path, item_path
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.declared.sealed import sealed

# decider, event, version
Kind = tuple[str, str, int]


def unknown_names(model: ReadModel, registered: Iterable[Kind]) -> list[str]:
    """Return a sentence for each decider and event in a declaration that is not registered; none in a new store."""
    kinds = {(decider, event) for decider, event, _ in registered}
    if not kinds:
        return []
    deciders = {decider for decider, _ in kinds}
    events = {event for decider, event in kinds if model.deciders is None or decider in model.deciders}
    sentences = [_unknown("decider", name, deciders) for name in model.deciders or () if name not in deciders]
    declared = {
        *(model.events or ()),
        *model.deletes,
        *(e for column in model.columns.values() for e in column.events or ()),
    }
    # if none of the deciders is registered, every event is unknown
    return sentences + [_unknown("event", name, events) for name in sorted(declared - events) if events]


def unknown_properties(model: ReadModel, schemas: Mapping[Kind, Schema | None]) -> Iterator[tuple[str, bool]]:
    """Yield a sentence for each field in a declaration that no schema of its events names.

    Also yield whether all of these schemas forbid the field, so that it never occurs.

    Args:
        model: The read model.
        schemas: All kinds of event, each with its schema; None for an event without one, which may have every field.
    """
    yield from ((sentence, False) for sentence in _unmarked(model, schemas))
    # the reader in words, its source, and the events and the decider that it takes; None for all of the model's
    readers: list[tuple[str, str, tuple[str, ...] | None, str | None]] = [
        (f"column {name}" if name in model.keys else name, source, None, decider)
        for name, key in model.read_keys.items()
        for decider, source in key.by_decider or ((None, key.source),)
    ]
    for name, column in model.columns.items():
        readers += [(f"column {name}", source, column.events, None) for source in column.sources]
    for reader, source, events, of_decider in readers:
        of_item = item_path(source)
        path = data_path(source) if of_item is None else (*(data_path(str(model.each)) or ()), "0", *of_item)
        if path is None:
            continue
        event_schemas = [
            schema
            for (decider, event, _), schema in schemas.items()
            if all(allowed is None or name in allowed for name, allowed in (
                (decider, model.deciders), (event, model.events), (event, events)
            ))
            and of_decider in {None, decider}
        ]  # fmt: skip
        judging = [schema for schema in event_schemas if schema is not None]
        reached = {reach(schema, path) for schema in judging}
        if judging and Reach.NAMED not in reached:
            property_names = {f"data.{name}" for schema in judging for name in field_types(schema)}
            forbidden = reached == {Reach.NEVER} and len(judging) == len(event_schemas)
            yield f"{reader}: " + _unknown("property", source, property_names), forbidden


def _unmarked(model: ReadModel, schemas: Mapping[Kind, Schema | None]) -> Iterator[str]:
    """Yield a sentence for readings of fields that the store's schemas, but no declared event, name as personal."""
    known = {(decider, event): schema for (decider, event, _), schema in schemas.items() if isinstance(schema, Mapping)}
    try:
        fields = [(*event, field.path) for event, schema in known.items() for field in personal_fields(schema)]
        if names := [n for n, one in sealed(model, fields).columns.items() if one != model.columns[n]]:
            yield f"{', '.join(names)}: personal, and shown as text, because its event is not declared here"
    except (InvalidEvent, InvalidReadModel) as error:
        yield str(error).removeprefix(f"read model {model.name}: ")


def _unknown(kind: str, name: str, names: Iterable[str]) -> str:
    where = "is in no schema of the events that it is read from" if kind == "property" else "is not registered"
    ordered = sorted(names)
    near = get_close_matches(name, ordered, 1)
    # of a path of two keys the first one may be right
    if near and not name.startswith(f"{near[0]}."):
        return f"{kind} {name} {where}; did you mean {near[0]}?"
    return f"{kind} {name} {where}; there are {', '.join(ordered[:20]) or 'none'}"
