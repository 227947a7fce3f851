"""Conditions on an event's own values: with `where=` a column takes only events that meet them."""

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, localcontext
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millrace import times
from millrace.read_models.declared.column_types import NUMBER, InvalidColumn

ALLOWED = (
    "a text, a number, True, False, a datetime with its zone, None for missing or null; a list of these, any of which it"
    " may be; or a mapping of ==, !=, <, <=, >, >= to what it is compared with, all of which hold"
)
_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_TRUTHS = dict.fromkeys(("true", "t", "yes", "y", "1"), True) | dict.fromkeys(("false", "f", "no", "n", "0"), False)
_READS: dict[type, Callable[[str], object]] = {
    str: lambda text: text,
    bool: lambda text: _TRUTHS.get(text.strip().lower()),
    Decimal: lambda text: Decimal(text) if re.match(NUMBER, text) else None,
    datetime: times.moment,
}


@dataclass(frozen=True)
class Conditions:
    """Conditions that hold together: the source of each, its operator, and the values to compare with."""

    tests: tuple[tuple[str, str, tuple[object, ...]], ...]

    @property
    def in_words(self) -> str:
        """The conditions in words."""
        return " and ".join(
            f"{source} {comparison} {' or '.join(map(str, them))}" for source, comparison, them in self.tests
        )

    def mask(self, events: pa.Table) -> pa.ChunkedArray:
        """Return for each event whether it meets them."""
        mask = None
        for source, comparison, operands in self.tests:
            chunks = []
            for values in events.column(source).chunks:
                # most events share a few values
                distinct = values.dictionary_encode()
                holds = pa.array(
                    [_holds(one, comparison, operands) for one in distinct.dictionary.to_pylist()], pa.bool_()
                )
                chunks.append(pc.fill_null(holds.take(distinct.indices), comparison == "==" and None in operands))
            found = pa.chunked_array(chunks, pa.bool_())
            mask = found if mask is None else pc.and_(mask, found)
        return mask


def _holds(value: object, comparison: str, operands: tuple[object, ...]) -> bool:
    if comparison in _ORDERS:
        read = _as(value, operands[0])
        return read is not None and _ORDERS[comparison](read, operands[0])
    return (comparison == "==") == any(one is not None and _as(value, one) == one for one in operands)


def _as(value: object, operand: object) -> object:
    """Return a value in the type of the one that it is compared with; None if it is no such value."""
    return _READS[type(operand)](value) if isinstance(value, str) else value


def conditions(where: Mapping[str, object] | None, type_of: Callable[[str], str | None]) -> Conditions | None:
    """Return the conditions that a declaration writes; None for none.

    Args:
        where: The declared ones: by source, the values that it may have.
        type_of: Returns the type of a source, None for a field of data. It refuses a name that is no source.

    Raises:
        InvalidColumn: The text names the allowed ones.
    """
    if where is None:
        return None
    if not isinstance(where, Mapping) or not where:
        raise InvalidColumn(f"where= is {where!r:.100}: name sources and what they are to be, or leave it out")
    tests = []
    for source in sorted(where, key=repr):
        type_, condition = type_of(source), where[source]
        for comparison, value in condition.items() if isinstance(condition, Mapping) else [("==", condition)]:
            them = [*value] if isinstance(value, list | tuple | set | frozenset) else [value]
            try:
                compared = tuple(sorted({_compared(source, type_, one) for one in them}, key=repr))
            except OverflowError as error:
                problem = "a time outside the years 1 to 9999 in UTC, or a number that no double holds"
                raise InvalidColumn(f"where= of {source!r} has {problem}; allowed: {ALLOWED}") from error
            fits = comparison in {"==", "!="} or (
                comparison in _ORDERS and len(compared) == 1 and type(compared[0]) in _ORDERED
            )
            if not fits or not compared:
                raise InvalidColumn(f"where= of {source!r} is {condition!r:.100}; allowed: {ALLOWED}")
            tests.append((source, comparison, compared))
    if not tests:
        raise InvalidColumn(f"where= is {where!r:.100}; allowed: {ALLOWED}")
    return Conditions(tuple(tests))


_ORDERED = (str, Decimal, datetime)
# types of columns of the event; they are compared with values of these types only
_TYPES = {"string": str, "boolean": bool, "timestamp": datetime}


def _compared(source: str, type_: str | None, value: object) -> object:
    """Return a value to compare a source with, as `Conditions` holds it: equal values become one."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC)
    elif isinstance(value, int | float | Decimal) and not isinstance(value, bool) and math.isfinite(value):
        value = Decimal(str(value))
        with localcontext(prec=len(value.as_tuple().digits)):
            value = value.normalize()
    elif not (value is None or isinstance(value, str | bool)):
        raise InvalidColumn(f"where= of {source!r} has {value!r:.100}; allowed: {ALLOWED}")
    if type_ is not None and value is not None and type(value) is not _TYPES.get(type_, Decimal):
        raise InvalidColumn(f"where= of {source!r} has {value!r:.100}, and {source!r} is of type {type_}")
    return value
