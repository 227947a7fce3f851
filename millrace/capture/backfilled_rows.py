"""The rows of a chunk as events: what a captured table held already when its capture began."""

from collections.abc import Sequence
from dataclasses import dataclass

from millrace.capture.declaration import CapturedTable
from millrace.capture.decoding.changed_rows import TableRows
from millrace.capture.decoding.fields import (
    MAX_DATA_CHARACTERS,
    derived_id,
    packed_id,
    packed_ids,
    source_json,
    time_json,
    too_large,
)
from millrace.capture.source.chunks import Chunk


@dataclass(frozen=True, slots=True)
class BackfilledRows:
    """Rows as events `backfilled`: one list per field, all in the same order.

    decider: The decider of the events.
    command_id: Derived from the backfill; all its rows share it.
    decider_ids: Their keys as JSON arrays, as their changes have them; None if a key cannot be decoded.
    event_ids: Derived from the backfill and the row's number in it.
        data: The rows, JSON objects with personal values marked; None if one cannot be decoded.
        faults: Why a row cannot be decoded, a sentence; None if it can. Empty if all can.
    """

    decider: str
    command_id: str
    decider_ids: Sequence[str | None]
    event_ids: Sequence[str]
    data: Sequence[str | None]
    faults: Sequence[str | None] = ()


def backfilled_rows(
    chunk: Chunk, table: CapturedTable, capture: str, generation: int, backfill_offset: int, rows_before: int
) -> BackfilledRows:
    """Turn the rows of a chunk into events, in the chunk's order.

    Args:
        chunk: The rows that were read.
        table: The declaration, with the columns of its key as `source.tables.with_key` returns them.
        capture: The capture's name.
        generation: The generation of the slot, as for `ChangeDecoder`.
        backfill_offset: The number of the backfill in the store: no two backfills give the same event ids.
        rows_before: How many rows of the backfill are in the chunks before this one.
    """
    decider_ids, bodies, faults = TableRows(table, chunk.relation).images(chunk.rows)
    tail = (
        f', "snapshot": "{chunk.snapshot}", "committed_at": "{time_json(chunk.read_at)}",'
        f' "source": {source_json(capture, generation, chunk.relation)}}}'
    )
    data = [None if body is None else body + tail for body in bodies]
    if any(each is not None and len(each) > MAX_DATA_CHARACTERS for each in data):
        faults = [
            too_large(each) if each is not None and len(each) > MAX_DATA_CHARACTERS else fault
            for each, fault in zip(data, faults, strict=True)
        ]
        data = [None if fault is not None else each for each, fault in zip(data, faults, strict=True)]
    begins = packed_ids(backfill_offset, generation=generation, backfills=True)
    event_ids = [packed_id(begins, rows_before + number) for number in range(len(data))]
    command_id = derived_id(f"{generation}/{backfill_offset}/{table.stream_decider}")
    return BackfilledRows(table.stream_decider, command_id, decider_ids, event_ids, data, faults if any(faults) else ())
