"""Deletes events from Postgres, in pieces: those that are archived, checked and needed by no view.

A kill does no harm: no reader reads below the low-water mark, and the next call deletes the rest. Not here: the rule
for events that are still needed (`raise_low_water_mark.sql`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psycopg

from millrace.archive.listing import archived, require_files
from millrace.archive.store import ArchiveStore
from millrace.errors import HistoryNeeded, MillraceError
from millrace.event_store.platform import PlatformStore

PIECE = 10_000


class EventsLeft(MillraceError):
    """Events that were given up are still there: open transactions, or another purge, blocked the purge."""


@dataclass(frozen=True)
class PurgedPartition:
    """The result for one log partition.

    Attributes:
        partition: The log partition.
        from_position: Its first position before.
        to_position: Its first position now; in a dry run the one that it would have.
        events: How many events were deleted; in a dry run how many would be.
        files: How many files of the archive were checked for them.
        refused: Why no event was given up, or None.
        left: How many events below its first position are still there because a session blocked the purge.
        holders: The sessions that may have blocked it; 0 is a prepared transaction. Empty if they are gone.
    """

    partition: int
    from_position: int
    to_position: int
    events: int
    files: int
    refused: str | None = None
    left: int = 0
    holders: tuple[int, ...] = ()


def purge_before(
    connection: psycopg.Connection,
    root: Path,
    before: datetime,
    *,
    reason: str | None = None,
    dry_run: bool = False,
    progress: Callable[[int, int], None] = lambda _partition, _events: None,
) -> list[PurgedPartition]:
    """Delete events that were appended before a time and are archived; a refusal stops only its own log partition.

    It does not wait: it skips a log partition that open transactions block, and `require_done` reports it.

    Args:
        connection: An autocommit connection of an `event_store_owner`.
        root: The folder of the archive.
        before: The time; in each log partition the first event at or after it stays, and so do all later ones.
        reason: For the audit log.
        dry_run: Check everything, change nothing.
        progress: Called with the log partition and the number of its events deleted so far.

    Raises:
        ArchiveDamaged: A file with events to delete is not whole. The log partitions before that one are done.
        ForeignArchive: The folder is not this store's archive.
    """
    platform, store = PlatformStore(connection), ArchiveStore(connection)
    results = []
    for info in platform.partition_info():
        partition = info.partition
        target = platform.offset_for_timestamp(partition, before)
        held = archived(connection, partition)
        # only events in listed files: a mark that an operator set (mark_archived) cannot be checked
        target = max(min(target, held.end), held.earliest_position)
        files = require_files(root, held, target) if target > held.earliest_position else 0
        refused = None
        with connection.transaction(force_rollback=dry_run):
            try:
                if target > held.earliest_position:
                    with connection.transaction():
                        store.raise_low_water_mark(partition, target, reason)
            except HistoryNeeded as error:
                refused, target = f"{error.detail}. {error.hint}", held.earliest_position
        events = target - held.earliest_position
        if not dry_run:
            # also the events that an interrupted call left below the mark
            events = 0
            while purged := store.purge_events(partition, PIECE):
                events += purged
                progress(partition, events)
        (state,) = store.purge_state(partition)
        unpurged = 0 if dry_run else state.earliest_position - state.purged_position
        holders = tuple(state.holders) if unpurged else ()
        results.append(
            PurgedPartition(partition, held.earliest_position, target, events, files, refused, unpurged, holders)
        )
    return results


def require_done(results: Sequence[PurgedPartition]) -> None:
    """Raise if a purge left something undone, with the remedy.

    Raises:
        EventsLeft: Events of some log partitions are given up and still there.
        HistoryNeeded: Some log partitions keep their events, as something needs them.
    """
    refused = [result for result in results if result.refused]
    blocked = [result for result in results if result.left]
    passed_by = (
        f"{len(blocked)} of {len(results)} log partitions were passed by, with {sum(result.left for result in blocked):,}"
        " events that are given up and still there"
    )
    holders = sorted({pid for result in blocked for pid in result.holders})
    which = ", ".join("a prepared transaction (pg_prepared_xacts)" if pid == 0 else str(pid) for pid in holders)
    remedy = (
        "Open transactions above READ COMMITTED, with a bare INSERT or a COPY, hold a purge off, and so does another"
        f" purge. {f'End these sessions, or wait for them: {which}.' if which else 'They have ended meanwhile.'}"
        " Then run it again."
    )
    if refused:
        raise HistoryNeeded(
            f"{len(refused)} of {len(results)} log partitions keep their events, for the reasons above.",
            detail=f"{passed_by}. {remedy}" if blocked else None,
            hint="The others are done. Settle the reasons and run it again.",
        )
    if blocked:
        raise EventsLeft(
            f"{passed_by}.",
            detail=f"Log partitions {', '.join(str(result.partition) for result in blocked)}.",
            hint=f"The others are done. {remedy}",
        )
