"""The origins of a read model's columns by its declaration: in words, and as sources."""

from collections.abc import Sequence
from dataclasses import dataclass

from millrace.read_models.declared.column_types import SEALED
from millrace.read_models.declared.columns import Column, KeyColumn, item_path
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.declared.function_model import FunctionModel
from millrace.read_models.declared.rollups import Rollup


@dataclass(frozen=True)
class ColumnOrigin:
    """The origin of a column.

    Attributes:
        column: Its name.
        in_words: The origin in words.
        sources: The columns of the event, and the fields of its data, that it is computed from.
    """

    column: str
    in_words: str
    sources: tuple[str, ...]


def origins(model: ReadModel) -> list[ColumnOrigin]:
    """Return the origin of each public column of a read model, in the order of its columns."""
    if isinstance(model, Rollup):
        behind = {origin.column: origin.sources for origin in origins(model.of)}
        members: dict[str, Column | KeyColumn] = {**model.keys, **model.columns}
        of_rows = []
        for name, one in members.items():
            if isinstance(one, KeyColumn):
                in_words = f"key: {one.in_words}"
            else:
                in_words = f"{one.kind} of {one.source}" if one.source else "number of rows"
            sources = dict.fromkeys(source for column in model.sources_of(name) for source in behind[column])
            of_rows.append(ColumnOrigin(name, f"{in_words} of read model {model.of.name}", tuple(sources)))
        return of_rows
    keys = [ColumnOrigin(name, f"key: {key.in_words}", _behind(model, key.sources)) for name, key in model.keys.items()]
    if isinstance(model, FunctionModel):
        in_words = f"what the function {model.function.__name__} makes of {_of(model.events)}"
        return [
            *keys,
            *(ColumnOrigin(n, f"{_sealed(type_)}{in_words}", ("event", "data")) for n, type_ in model.types.items()),
        ]
    found = {one.column: one for one in (*keys, *(_origin(model, n, column) for n, column in model.columns.items()))}

    def of(name: str) -> ColumnOrigin:
        if name not in found:
            column = model.computed[name]
            sources = dict.fromkeys(source for other in column.names for source in of(other).sources)
            found[name] = ColumnOrigin(name, f"computed: {column.text}", tuple(sources))
        return found[name]

    looked_up = [
        ColumnOrigin(name, f"{_sealed(one.type)}{one.column} of read model {one.model} by {one.on}", of(one.on).sources)
        for name, one in model.lookups.items()
    ]
    return [*map(of, [*found, *model.computed]), *looked_up]


def _origin(model: ReadModel, name: str, column: Column) -> ColumnOrigin:
    event_words = _of(column.events or model.events)
    if model.each is not None:
        event_words = f"{model.each} of {event_words}"
    if column.where is not None:
        event_words += f" where {column.where.in_words}"
    if column.source is None:
        of = ("event", *([model.each] if model.each else []))
        return ColumnOrigin(name, f"{column.kind} of {event_words}", _behind(model, (*of, *column.sources)))
    by = [str(one.source) for one in column.reads[1:]]
    kind = " ".join((_sealed(column.public_type(name)) + column.kind.removesuffix("_by"), *column.options))
    in_words = f"{kind} of {column.source}{''.join(f' by {source}' for source in by)} in {event_words}"
    return ColumnOrigin(name, in_words, _behind(model, column.sources))


def _sealed(type_: str) -> str:
    """Return a word for a type of sealed values, as Postgres or a declaration has it."""
    return "sealed: " if type_ in {"jsonb", "jsonb[]", SEALED} else ""


def _behind(model: ReadModel, sources: Sequence[str]) -> tuple[str, ...]:
    """Return the sources as the event has them: for an element, its array."""
    found = (source if item_path(source) is None else str(model.each) for source in sources)
    return tuple(dict.fromkeys(found))


def _of(events: Sequence[str] | None) -> str:
    return "all events" if events is None else ", ".join(events)
