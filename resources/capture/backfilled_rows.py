"""The rows of a chunk as events: what a captured table held already when its capture began.

Belongs here: their JSON, their ids. Not here: reading them (`source.chunks`), when they are appended (`backfill`),
changes (`decoding.changes`).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from millrace.resources.capture.declaration import CapturedTable
from millrace.resources.capture.decoding.fields import (
    MAX_DATA_CHARACTERS,
    derived_id,
    source_json,
    time_json,
    too_large,
)
from millrace.resources.capture.decoding.pgoutput import Insert
from millrace.resources.capture.decoding.rows import TableRows
from millrace.resources.capture.source.chunks import Chunk


@dataclass(frozen=True, slots=True)
class BackfilledRow:
    """A row as the event `backfilled`.

    Attributes:
        decider_id: Its key as a JSON array, as its changes have it; None if the key cannot be decoded.
        event_id: Derived from the backfill and the key: the same whenever that backfill reads the row.
        command_id: Derived from the backfill: all its rows share it.
        data: The row, a JSON object; None if it cannot be decoded.
        fault: Why it cannot be decoded, a sentence; None if it can.
    """

    decider_id: str | None
    event_id: str
    command_id: str
    data: str | None
    fault: str | None = None


def backfilled_rows(
    chunk: Chunk, table: CapturedTable, capture: str, generation: int, backfill_offset: int
) -> Iterator[BackfilledRow]:
    """Turn the rows of a chunk into events, in the chunk's order.

    Args:
        chunk: What was read.
        table: What is captured, with the columns of its key as `source.tables.with_key` returns them.
        capture: The capture's name.
        generation: The number of the slot's life, as for `ChangeDecoder`.
        backfill_offset: The number of the backfill in the store: no two backfills give the same event ids.
    """
    rows = TableRows(table, chunk.relation)
    read = f"{generation}/{backfill_offset}/{table.stream_decider}"
    command_id = derived_id(read)
    tail = (
        f', "snapshot": "{chunk.snapshot}", "committed_at": "{time_json(chunk.read_at)}",'
        f' "source": {source_json(capture, generation, chunk.relation)}}}'
    )
    for number, values in enumerate(chunk.rows):
        _, decider_id, body, fault = rows.inserted(Insert(chunk.relation.relation_id, values))
        data = None if body is None else body + tail
        if data is not None and len(data) > MAX_DATA_CHARACTERS:
            fault = too_large(data)
            data = None
        # a row whose key cannot be decoded has its place in the chunk for a name
        name = f"{read}/{decider_id}" if decider_id is not None else f"{read}//{chunk.snapshot}/{number}"
        yield BackfilledRow(decider_id, derived_id(name), command_id, data, fault)
