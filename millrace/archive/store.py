"""The store's functions for the archive: one method per SQL function, same name, same argument order."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import LiteralString
from uuid import UUID

from millrace.event_store.sql_functions import SqlFunctions

# for a session that reads or writes a whole store: the database, or the login, may limit others
NO_TIME_LIMITS: LiteralString = (
    "select set_config(name, '0', false) from pg_settings"
    " where name in ('statement_timeout', 'transaction_timeout', 'idle_in_transaction_session_timeout')"
)


@dataclass(frozen=True)
class ArchiveState:
    """A listed file of the archive, or a log partition without one (`path` is None), beside the marks of the log."""

    archive_id: UUID
    partition: int
    earliest_position: int
    archived_position: int
    high_water_mark: int
    from_position: int | None
    to_position: int | None
    path: str | None
    bytes: int | None
    checksum: str | None


@dataclass(frozen=True)
class PurgeState:
    """How far a log partition is purged, and the sessions that may block a purge; 0 is a prepared transaction."""

    partition: int
    purged_position: int
    earliest_position: int
    holders: list[int]


class ArchiveStore(SqlFunctions):
    """The functions of the archive. Every method raises the `MillraceError` of its SQL function."""

    def mark_archived(self, partition: int, to_position: int) -> int:
        """Record that an outside copy holds a log partition below a position; return up to where one does."""
        return self._value(int, "select event_store_platform.mark_archived(%s, %s)", (partition, to_position))

    def raise_low_water_mark(self, partition: int, position: int, reason: str | None = None) -> int:
        """Give up the archived history of a log partition below a position; return where the log begins now."""
        return self._value(
            int, "select event_store_platform.raise_low_water_mark(%s, %s, %s)", (partition, position, reason)
        )

    def purge_events(self, partition: int, limit: int = 100_000) -> int:
        """Delete up to `limit` events below the low-water mark of a log partition; return how many."""
        return self._value(int, "select event_store_platform.purge_events(%s, %s)", (partition, limit))

    def purge_state(self, partition: int | None = None) -> list[PurgeState]:
        """Return how far each log partition is purged, and the sessions that may block a purge; None for all."""
        return self._all(PurgeState, "select * from event_store_platform.purge_state(%s)", (partition,))

    def archive_state(self, partition: int | None = None) -> list[ArchiveState]:
        """Return the files of the archive beside the marks of the log, in one snapshot; None for all log partitions."""
        return self._all(ArchiveState, "select * from event_store_platform.archive_state(%s)", (partition,))

    def list_archive_file(
        self, partition: int, from_position: int, to_position: int, path: str, bytes_: int, checksum: str
    ) -> int:
        """List a checked file of the archive; return the position up to which the log partition is archived."""
        return self._value(
            int,
            "select event_store_platform.list_archive_file(%s, %s, %s, %s, %s, %s)",
            (partition, from_position, to_position, path, bytes_, checksum),
        )

    def number_archive_fields(self, fields: Sequence[str]) -> dict[str, int]:
        """Return the permanent number that each field of data has as a column of the archive's files."""
        return self._value(
            dict,
            "select coalesce(json_object_agg(field, field_id), '{}') from event_store_platform.number_archive_fields(%s)",
            (list(fields),),
        )

    def lock_archive(self, partition: int, owner: str) -> bool:
        """Be the only writer of a log partition's archive until the session ends; false if there is another one."""
        return self._value(bool, "select event_store_platform.lock_archive(%s, %s)", (partition, owner))
