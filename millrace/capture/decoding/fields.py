"""The parts of an event beside the row, for a change or a backfilled row: its identity, time, table and size limit."""

from datetime import UTC, datetime
from hashlib import sha1
from uuid import UUID

from millrace.capture.decoding.pgoutput import Relation
from millrace.capture.decoding.values import quoted

# a jsonb takes up to six times the bytes of its text, and holds 256 MB at most
MAX_DATA_CHARACTERS = 32 * 1024 * 1024
_NAMESPACE = UUID("5b2f6c1e-3f0a-4d57-9c58-1d5f0c6f7a42").bytes
# a digit with its upper bits as RFC 9562 requires them
_VARIANT = {f"{digit:x}": f"{digit & 3 | 8:x}" for digit in range(16)}


def derived_id(name: str) -> str:
    """Return the UUID, version 5 (RFC 9562), of a name in the namespace of captured changes.

    Text: a `UUID` would take four times as long to make and to write.
    """
    digits = sha1(_NAMESPACE + name.encode(), usedforsecurity=False).hexdigest()
    variant = _VARIANT[digits[16]]
    return f"{digits[:8]}-{digits[8:12]}-5{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:32]}"


def packed_ids(place: int, *, generation: int, backfills: bool = False) -> str:
    """Return the beginning of the event ids of a place: UUIDs of version 8 (RFC 9562) without their last nine digits.

    The last digits are a number at the place. So ids rise as their events do, and all ids of a capture lie together in
    the index of events: with 10,000,000 events, an id at a random place costs twice the time and sixteen times the log.

    Args:
        place: The position of a transaction's commit, or the number of a backfill; 64 bits.
        generation: The generation of the slot, never used again in the store; 21 bits.
        backfills: Whether the place is a backfill's.
    """
    high = backfills << 47 | generation << 26 | place >> 38
    middle, low = place >> 26 & 0xFFF, 0b10 << 26 | place & 0x3FFFFFF
    return f"{high >> 16:08x}-{high & 0xFFFF:04x}-8{middle:03x}-{low >> 12:04x}-{low & 0xFFF:03x}"


def packed_id(begins: str, number: int) -> str:
    """Return the event id that starts with `begins` of `packed_ids`; `number` has 36 bits."""
    return f"{begins}{number:09x}"


def time_json(time: datetime) -> str:
    """Write a time for an event's data: ISO 8601 in UTC, with microseconds."""
    return f"{time.astimezone(UTC).isoformat(timespec='microseconds').removesuffix('+00:00')}Z"


def source_json(capture: str, generation: int, relation: Relation) -> str:
    """Write the origin of a row for an event's data, in jsonb's order of keys: that saves sorting."""
    return (
        f'{{"oid": {relation.relation_id}, "table": {quoted(relation.table)}, "schema": {quoted(relation.schema)},'
        f' "capture": {quoted(capture)}, "generation": {generation}}}'
    )


def too_large(data: str) -> str:
    """Return the fault of data with more than `MAX_DATA_CHARACTERS`."""
    return f"its data has {len(data)} characters; at most {MAX_DATA_CHARACTERS} are allowed"
