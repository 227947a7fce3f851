"""The expected rows of a read model, computed independently from its declaration in plain Python."""

import json
import operator
from collections.abc import Callable, Iterable
from datetime import date, datetime
from decimal import Decimal, localcontext
from typing import Any

from msgspec.structs import replace

from millrace.event_store import Event
from millrace.read_models.declared.columns import Column, KeyColumn
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.declared.fold import Fold
from millrace.rows import FoldEvent, State

Rows = list[tuple[Any, ...]]
Rank = Callable[[Any], Any]
READ: dict[str, Callable[[Any], Any]] = {
    "string": lambda value: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False),
    "bigint": int,
    "int": int,
    "decimal": lambda value: Decimal(str(value)),
    "double": float,
    "boolean": bool,
    "date": date.fromisoformat,
    "timestamp": datetime.fromisoformat,
}
# the type of a condition's value, and the type as which the field of data is read
COMPARED: dict[type, str] = {str: "string", bool: "boolean", Decimal: "decimal", datetime: "timestamp"}
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
# by kind of column: its value from the values in the order of events, and their ranking
VALUES: dict[str, Callable[[list[Any], Rank], Any]] = {
    "count": lambda values, _: len(values),
    "sum": lambda values, _: sum(values),
    "avg": lambda values, _: sum(values, Decimal(0)) / len(values) if values else None,
    "min": lambda values, rank: min(values, key=rank, default=None),
    "max": lambda values, rank: max(values, key=rank, default=None),
    "first": lambda values, _: values[0] if values else None,
    "last": lambda values, _: values[-1] if values else None,
    "first_by": lambda values, rank: min(values, key=lambda pair: rank(pair[0]))[1] if values else None,
    "last_by": lambda values, rank: max(values[::-1], key=lambda pair: rank(pair[0]))[1] if values else None,
    "any": lambda values, _: any(values),
    "all": lambda values, _: all(values),
    "set_union": lambda values, rank: sorted(set(values), key=rank),
}


def expected_rows(model: ReadModel, events: Iterable[Event]) -> Rows:
    """Compute the rows of a model of columns or of a fold; keys first, as in its view."""
    taken = [
        event
        for event in sorted(events, key=lambda event: event.offset)
        if (model.deciders is None or event.decider in model.deciders)
        and (model.events is None or event.event in model.events)
    ]
    # sums with as many digits as Postgres keeps
    with localcontext(prec=80):
        return _fold(model, taken) if isinstance(model, Fold) else _columns(model, taken)


def _columns(model: ReadModel, events: Iterable[Event]) -> Rows:
    groups: dict[tuple[Any, ...], list[Event]] = {}
    if model.each is not None:
        events = [
            replace(event, data_json=json.dumps({**event.data, "each=": item}))
            for event in events
            for item in event.data.get(model.each.removeprefix("data.")) or []
        ]
    for event in events:
        key = tuple(_read(event, column.source, column.type) for column in model.keys.values())
        if None not in key:
            groups.setdefault(key, []).append(event)
    return [
        (*key, *(_value(column, own) for column in model.columns.values()))
        for key, own in groups.items()
        if own[-1].event not in model.deletes
    ]


def _fold(model: Fold, events: Iterable[Event]) -> Rows:
    states: dict[str, State | None] = {}
    for e in events:
        seen = FoldEvent(e.decider, e.decider_id, e.event, e.event_version, e.data, e.created_at, e.offset)
        states[e.decider_id] = model.function(states.get(e.decider_id), seen)
    return [
        (key, *(None if state.get(name) is None else _typed(state[name], type_) for name, type_ in model.types.items()))
        for key, state in states.items()
        if state is not None
    ]


def _read(event: Event, source: str, type_: str) -> Any:  # noqa: ANN401 - whatever the type holds
    first, *path = source.split(".")
    if first not in {"data", "item"}:
        return getattr(event, source)
    value = event.data if first == "data" else event.data["each="]
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return None if value is None else _typed(value, type_)


def _meets(event: Event, source: str, how: str, wanted: tuple[object, ...]) -> bool:
    value = _read(event, source, "string")
    if value is None:
        return how == "==" and None in wanted
    held = [COMPARISONS[how](_read(event, source, COMPARED[type(one)]), one) for one in wanted if one is not None]
    return any(held) if how == "==" else all(held)


def _typed(value: Any, type_: str) -> Any:  # noqa: ANN401 - whatever the type holds
    return READ[type_.partition("(")[0]](value)


def _value(column: Column | KeyColumn, own: list[Event]) -> Any:  # noqa: ANN401 - whatever the column holds
    assert isinstance(column, Column)
    counted = [event for event in own if column.events is None or event.event in column.events]
    if column.where is not None:
        counted = [event for event in counted if all(_meets(event, *test) for test in column.where.tests)]
    if column.source is None:
        return len(counted)
    read = ([_read(event, str(one.source), one.type) for one in column.reads[::-1]] for event in counted)
    # pairs for a ranked column, the rank first
    values = [one if len(one) > 1 else one[0] for one in read if None not in one]
    # texts are ordered by their bytes
    rank: Rank = str.encode if column.reads[-1].type == "string" else lambda value: value
    return VALUES[column.kind](values, rank)
