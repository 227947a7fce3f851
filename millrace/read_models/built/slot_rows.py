"""Turns a model's events, in a Spark task, into rows of the wide table, in which each value has its slot (`slots`)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millrace.read_models.built.slots import Value
from millrace.read_models.declared.carried import Carried, RunQuery
from millrace.read_models.declared.columns import ORDER
from millrace.read_models.declared.items import ITEM_ORDER, Items

# the column of the wide table that has the model's number
MODEL = "model"


@dataclass(frozen=True)
class SlotRows:
    """A model of columns: which value it puts into which slot, and which slots are its key.

    Attributes:
        number: Its number in the plan.
        schema: The wide table.
        event_columns: The columns that it takes over from the event.
        values: By slot, the value that it puts there.
        keys: The slots of its key with values of events.
        items: Its reads of the elements of an array, if these are its rows.
        item_keys: The slots of its key with values of elements.
        carried: The fields that its keys are carried from, if there are any.
    """

    number: int
    schema: pa.Schema
    event_columns: tuple[str, ...]
    values: Mapping[str, Value]
    keys: tuple[str, ...]
    items: Items | None
    item_keys: tuple[str, ...]
    carried: Carried | None

    def of_streams(
        self, batches: Iterator[pa.Table], run_query: RunQuery, given_up: frozenset[int] = frozenset()
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of events that are sorted by stream and offset; `run_query` looks up values of carried keys.

        Events at the offsets in `given_up` have no rows, but others take over keys from them.
        """
        filled = self.carried.filled(batches, run_query) if self.carried is not None else batches
        left_out = pa.array(given_up, pa.int64())
        return self.of(
            events.filter(pc.invert(pc.is_in(events.column(ORDER), left_out))) if given_up else events
            for events in filled
        )

    def of(self, batches: Iterator[pa.Table]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of events that have all keys; no field of other events is read, not even a key.

        If each element of an array counts, a row is one of these elements, or a value that is no array.
        """
        for batch in batches:
            events = batch
            for key in self.keys:
                events = events.filter(pc.is_valid(_read(self.values[key], events)))
            if self.items is None:
                yield from self._rows(events, ORDER)
                continue
            for elements in self.items.apart(events):
                items = elements
                for key in self.item_keys:
                    is_none = pc.is_valid(items.column(self.items.array))
                    items = items.filter(pc.or_(is_none, pc.is_valid(_read(self.values[key], items))))
                yield from self._rows(items, ITEM_ORDER)

    def _rows(self, events: pa.Table, order: str) -> Iterator[pa.RecordBatch]:
        if not len(events):
            return
        found: dict[str, object] = {name: events.column(name) for name in self.event_columns}
        found[ITEM_ORDER] = events.column(order)
        found[MODEL] = pa.repeat(pa.scalar(self.number, pa.int32()), len(events))
        masks: dict[object, object] = {}
        for slot, value in self.values.items():
            array = _read(value, events)
            if value.events is not None:
                if value.events not in masks:
                    masks[value.events] = pc.is_in(events.column("event"), pa.array(value.events))
                # the cast comes after this: an event that the column does not take must not fail the cast
                array = pc.if_else(masks[value.events], array, pa.scalar(None, array.type))
            if value.where is not None:
                if value.where not in masks:
                    masks[value.where] = value.where.mask(events)
                array = pc.if_else(masks[value.where], array, pa.scalar(None, array.type))
            found[slot] = array
        yield wide_rows(self.schema, found, len(events))


def wide_rows(schema: pa.Schema, found: Mapping[str, Any], rows: int) -> pa.RecordBatch:
    """Return rows of the wide table, null where no value was found."""
    arrays = []
    for field in schema:
        values = found.get(field.name)
        if values is None:
            arrays.append(pa.nulls(rows, field.type))
        elif isinstance(values, list):
            arrays.append(pa.array(values, field.type))
        else:
            whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
            arrays.append(whole.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _read(value: Value, events: pa.Table) -> pa.ChunkedArray:
    if not value.by_decider:
        return events.column(value.source or ORDER)
    decider = events.column("decider")
    return pc.coalesce(
        *(
            pc.if_else(pc.equal(decider, name), array := events.column(source), pa.scalar(None, array.type))
            for name, source in value.by_decider
        )
    )
