"""Personal values in read models: kept as the store has them, sealed, so that Spark needs no key; or refused.

So a rebuild after a person was forgotten gives the same rows as before.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from millrace.errors import InvalidReadModel
from millrace.personal.declaration import EACH
from millrace.read_models.declared.column_types import ARRAY
from millrace.read_models.declared.columns import data_path, item_path
from millrace.read_models.declared.declaration import Model, ReadModel, with_indexes
from millrace.read_models.declared.lookups import Lookup

# decider, event, and the keys that lead to a personal field
Field = tuple[str, str, tuple[str, ...]]
# a column in words, its source, the events and the decider that it takes, and which places of the source are allowed
Reading = tuple[str, str | None, tuple[str, ...] | None, str | None, Collection[int]]
# places of a source: a value with personal values in it, a personal value, and within one
_AROUND, _ITSELF, _WITHIN = -1, 0, 1
_KEPT = {"first", "last", "first_by", "last_by", "top"}
_REMEDY = (
    "a sealed value has no order, no sum and no equal, and nothing within it can be read. Keep it whole, by first, last,"
    " latest or top without type=, or count it; name fields that are not personal one by one"
)


def sealed(model: Model, fields: Collection[Field]) -> Model:
    """Return a model with its columns of personal values marked as sealed; lookups stay as they are.

    Raises:
        InvalidReadModel: It reads a personal value in another way.
    """
    for what, source, events, decider, allowed in _readings(model):
        for place, field in _met(model, source, fields, events, decider):
            if place not in allowed:
                raise InvalidReadModel(f"read model {model.name}: {what}, but {field} is personal: {_REMEDY}")
    columns = {
        name: replace(one, sealed=True) if one.kind in _KEPT and [*_met(model, one.source, fields, one.events)] else one
        for name, one in model.columns.items()
    }
    return with_indexes(replace(model, columns=columns), model.indexes)


def with_sealed_lookups(models: Mapping[str, ReadModel]) -> dict[str, ReadModel]:
    """Return models with lookups that have the types of the looked-up columns, which may be sealed."""

    def type_of(one: Lookup) -> str:
        other = models.get(one.model)
        if other is None:
            return one.type
        return type_of(other.lookups[one.column]) if one.column in other.lookups else other.public_columns()[one.column]

    return {
        name: replace(model, lookups={n: replace(one, type=type_of(one)) for n, one in model.lookups.items()})
        for name, model in models.items()
    }


def _readings(model: ReadModel) -> Iterator[Reading]:
    for name, key in model.read_keys.items():
        for decider, source in key.by_decider or ((None, key.source),):
            yield f"{name!r} reads {source}", source, None, decider, [_AROUND] if key.type == ARRAY else []
    for name, one in model.columns.items():
        allowed = (
            [_AROUND, _ITSELF] if one.kind == "count" else [_ITSELF] * (one.kind in _KEPT and one.type == "string")
        )
        yield f"{name!r} is {one.kind} of {one.source}", one.source, one.events, None, allowed
        tests = () if one.where is None else one.where.tests
        for judged in (*(by.source for by in one.reads[1:]), *(source for source, *_ in tests)):
            yield f"{name!r} has by= or where= of {judged}", judged, one.events, None, []
    above = {name: one.names for name, one in model.computed.items()}
    for name, names in (above | {name: (one.on,) for name, one in model.lookups.items()}).items():
        for of in [of for of in names if of in model.columns and model.columns[of].kind in _KEPT]:
            yield f"{name!r} is made of {of}", model.columns[of].source, model.columns[of].events, None, []


def _met(
    model: ReadModel,
    source: str | None,
    fields: Collection[Field],
    events: Collection[str] | None,
    of: str | None = None,
) -> Iterator[tuple[int, str]]:
    """Yield the personal fields that a source meets, in words, each with the source's place."""
    of_item = item_path(source or "")
    path = data_path(source or "") if of_item is None else (*(data_path(str(model.each)) or ()), EACH, *of_item)
    path = () if source == "data" else path
    for decider, event, field in fields if path is not None else ():
        taken = ((decider, model.deciders), (decider, of and (of,)), (event, model.events), (event, events))
        if all(names is None or name in names for name, names in taken) and all(
            one == other or EACH in {one, other} for one, other in zip(path or (), field, strict=False)
        ):
            further = len(path or ()) - len(field)
            yield (further > 0) - (further < 0), f"data.{'.'.join(field)} of event {event}"
