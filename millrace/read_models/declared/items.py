"""The elements of an array in events: a row for each if `each=` of a read model names the array.

An array is a field of data, and so a text; a text that contains a JSON array counts as one. Fields of an element come
as Postgres' `->>` gives them: a number keeps its digits.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millrace.archive.json_fields import at
from millrace.event_store.json_text import NUL
from millrace.read_models.declared.column_types import QUOTED
from millrace.read_models.declared.columns import ORDER

# the column that orders elements as ORDER orders events: an offset, and the place in the array
ITEM_ORDER = "item_order"
# more elements than fit in the 1 MiB that data may have
PLACES = 2**20
# bytes of rows that are held at once, and of a row by itself: each row has all values that are read of its event
_BYTES, _ROW_BYTES = 4 * 2**20, 64


class _Number(str):
    """A number as it is written."""

    __slots__ = ()


@dataclass(frozen=True)
class Items:
    """The reads of an array's elements.

    Attributes:
        array: The column of the events that has the array, as text.
        paths: The values to read of an element, by source: a path in it.
    """

    array: str
    paths: Mapping[str, tuple[str, ...]]

    def apart(self, events: pa.Table) -> Iterator[pa.Table]:
        """Yield a row for each element of each event's array, with the values that are read of it, and ITEM_ORDER.

        The array's own column is null in these rows. An event with another value there has one row, with the beginning
        of that value in this column. An event without the array has no row.
        """
        # about how many bytes each row of an event has, without the values of its element
        bytes_of = pa.repeat(_ROW_BYTES, len(events))
        for name in events.column_names:
            column = events.column(name)
            if name != self.array and pa.types.is_string(column.type):
                bytes_of = pc.add(bytes_of, pc.fill_null(pc.binary_length(column), 0))
        sizes = bytes_of.to_pylist()
        rows: list[tuple[Any, ...]] = []
        size = 0
        for row, text in enumerate(events.column(self.array).to_pylist()):
            if text is None:
                continue
            misread_text, found = None, []
            try:
                found = [
                    [
                        value if value is None or isinstance(value, str) else _written(value)
                        for value in (at(one, path) for path in self.paths.values())
                    ]
                    for one in elements(text)
                ]
            # no array, or one that is nested more deeply than Python supports
            except (ValueError, RecursionError):
                misread_text, found = text[:QUOTED], [[None for _ in self.paths]]
            for place, values in enumerate(found):
                rows.append((row, place, misread_text, *values))
                size += sizes[row]
                if size >= _BYTES:
                    yield self._table(events, rows)
                    rows, size = [], 0
        if rows:
            yield self._table(events, rows)

    def _table(self, events: pa.Table, rows: list[tuple[Any, ...]]) -> pa.Table:
        row_numbers, places, misread_texts, *values = zip(*rows, strict=True)
        array = events.column_names.index(self.array)
        items = events.set_column(array, self.array, pa.nulls(len(events), pa.string())).take(pa.array(row_numbers))
        items = items.set_column(array, self.array, pa.array(misread_texts, pa.string()))
        for source, texts in zip(self.paths, values, strict=True):
            items = items.append_column(source, pa.array(texts, pa.string()))
        order = pc.add(pc.multiply_checked(items.column(ORDER), PLACES), pa.array(places, pa.int64()))
        return items.append_column(ITEM_ORDER, order)


def elements(text: str) -> list[Any]:
    """Return the elements of an array; numbers keep the form in which they are written.

    Raises:
        ValueError: The text is no array, or the array contains characters that no text in Postgres can have.
        RecursionError: It is nested too deeply.
    """
    found = json.loads(text, parse_float=_Number, parse_int=_Number, parse_constant=_refuse)
    if not isinstance(found, list):
        raise ValueError("no array")
    # an array in a text in a text may have half of a surrogate pair, or this character
    if "\\u" in text and (NUL.search(text) or not json.dumps(found, ensure_ascii=False).encode()):
        raise ValueError("no text")
    return found


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _written(value: Any) -> str:  # noqa: ANN401 - JSON has any shape
    """Return a value as Postgres prints it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_written(key)}: {_written(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_written, value)) + "]"
    return value if isinstance(value, _Number) else json.dumps(value, ensure_ascii=False)
