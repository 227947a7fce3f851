"""What a change or a backfilled row says beside the row: its identity, its time, its table, how large it may be.

Belongs here: single fields. Not here: changes (`changes`), the values of a row (`values`).
"""

from datetime import UTC, datetime
from hashlib import sha1
from uuid import UUID

from millrace.resources.capture.decoding.pgoutput import Relation
from millrace.resources.capture.decoding.values import quoted

# a jsonb takes up to six times the bytes of its text, and holds 256 MB at most
MAX_DATA_CHARACTERS = 32 * 1024 * 1024
_NAMESPACE = UUID("5b2f6c1e-3f0a-4d57-9c58-1d5f0c6f7a42").bytes
# a digit with its upper bits as RFC 9562 wants them
_VARIANT = {f"{digit:x}": f"{digit & 3 | 8:x}" for digit in range(16)}


def derived_id(name: str) -> str:
    """Return the UUID, version 5 (RFC 9562), of a name in the namespace of captured changes.

    Text: a `UUID` would take four times as long to make and to write.
    """
    digits = sha1(_NAMESPACE + name.encode(), usedforsecurity=False).hexdigest()
    variant = _VARIANT[digits[16]]
    return f"{digits[:8]}-{digits[8:12]}-5{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:32]}"


def time_json(time: datetime) -> str:
    """Write a time as data has it: ISO 8601 in UTC, with microseconds."""
    return f"{time.astimezone(UTC).isoformat(timespec='microseconds').removesuffix('+00:00')}Z"


def source_json(capture: str, generation: int, relation: Relation) -> str:
    """Write where a row is from, as data has it."""
    return (
        f'{{"capture": {quoted(capture)}, "generation": {generation}, "schema": {quoted(relation.schema)},'
        f' "table": {quoted(relation.table)}, "oid": {relation.relation_id}}}'
    )


def too_large(data: str) -> str:
    """Return the fault of data with more than `MAX_DATA_CHARACTERS`."""
    return f"its data has {len(data)} characters; at most {MAX_DATA_CHARACTERS} are allowed"
