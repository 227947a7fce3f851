"""The store's functions for readings: one method per SQL function, same name, same argument order.

Belongs here: calls and the shapes they return. Not here: behaviour, that is in `sql/functions/capture/rereads`; reading
the source (`reading`).
"""

from dataclasses import dataclass

from millrace.resources.capture.backfilled_rows import BackfilledRows
from millrace.resources.capture.decoding.pgoutput import Lsn
from millrace.resources.capture.store import read_rows
from millrace.resources.event_store.sql_functions import SqlFunctions


@dataclass(frozen=True)
class ComparedRows:
    """What a chunk is beside its streams.

    `status` is 'stored', 'behind' (emit changes first, then compare again) or 'unpublished' (read the chunk again). Of
    the rows that differ, `missing` have no live stream; `examples` are up to twenty of their keys. `held` rows wait in
    the quarantine, or cannot be events; `left_out` have newer changes.
    """

    status: str
    differing: int | None
    missing: int | None
    unchanged: int | None
    held: int | None
    left_out: int | None
    examples: list[str] | None


@dataclass(frozen=True)
class EndedReading:
    """How many streams belong to rows that are gone, and up to twenty of their keys; call again unless it is done.

    In the end `quarantined` changes of the table wait in the quarantine.
    """

    done: bool
    gone: int
    quarantined: int | None
    examples: list[str] | None


class ReadingStore(SqlFunctions):
    """The functions for readings. Every method raises the `MillraceError` of its SQL function."""

    def begin_reading(
        self, capture: str, schema: str, table: str, published_xid: int, reason: str | None, *, repairs: bool
    ) -> int:
        """Begin to compare a table with its streams; return the reading's number."""
        return self._value(
            int,
            "select event_store_platform.begin_reading(%s, %s, %s, %s::xid8, %s, %s)",
            (capture, schema, table, str(published_xid), repairs, reason),
        )

    def compare_rows(self, reading: int, snapshot: str, high_lsn: Lsn, rows: BackfilledRows) -> ComparedRows:
        """Compare rows with their streams; a repair appends those that differ."""
        return self._one(
            ComparedRows,
            "select * from event_store_platform.compare_rows(%s, %s::pg_snapshot, %s::pg_lsn,"
            " %b::text[], %b::text[]::uuid[], %s::uuid, %b::text[], %b::text[])",
            (reading, snapshot, str(high_lsn), *read_rows(rows)),
        )

    def end_reading(self, reading: int, *, whole: bool, limit: int = 5_000) -> EndedReading:
        """End a reading, `limit` streams a call; a repair ends the streams whose rows are gone."""
        return self._one(
            EndedReading, "select * from event_store_platform.end_reading(%s, %s, %s)", (reading, whole, limit)
        )
