"""The transactions of a batch, in which effect and position commit together.

Not here: building it (`staged`, `round`), the statements on rows (`read_models.stored.merge`).

One transaction changes the rows of a read model, moves its checkpoints, and hands failing streams over to their locks.
A lost reply to a commit needs no care: the next claim starts at the checkpoint. `commit_batch` comes before the effect:
it locks the checkpoints and refuses a lease that was taken over, so a late consumer cannot change a row.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

import psycopg
import pyarrow as pa
from tenacity import AttemptManager

from millrace.archive.history import LogHistory
from millrace.drain.build_errors import Blame, blame_of, cause
from millrace.drain.failing_streams import Failure, PartFails
from millrace.event_store import Lease, LockedPartition, StreamFailure
from millrace.event_store.platform import PlatformStore
from millrace.patience import anew
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.declared.upcasts import require_known
from millrace.read_models.stored.feed import tell_replaced
from millrace.read_models.stored.indexes import give_up_for
from millrace.read_models.stored.merge import (
    StagedRows,
    analyze_staged,
    forget_batch,
    merge_batch,
    merge_rows,
    next_batch,
    replace_partition,
    require_staged,
    try_replacing,
)
from millrace.read_models.stored.rollup_tables import mend_rollups
from millrace.read_models.stored.tables import wait_for_locks_at_most
from millrace.read_models.stored.versions import mark_built


@dataclass
class Rebuilt:
    """The log partitions that a rebuild has committed, one by one: the rows of each, how many changed, failures.

    `at` is the log partition that is being committed.
    """

    rows_of: dict[int, int] = field(default_factory=dict)
    changed: int = 0
    failures: list[Failure] = field(default_factory=list)
    at: int | None = None


@dataclass(frozen=True)
class Work:
    """A claimed part of the log for a model, on its way to its commit.

    Attributes:
        model: The read model.
        leases: The leases; the commit moves their checkpoints to their ends.
        locked: The log partitions with locked streams; none in a rebuild, which reads all streams.
        rebuild: Whether its rows replace those of whole log partitions; otherwise they are merged.
        history: Where a rebuild reads the events from; None: from Postgres alone.
        ends: Where reading ends in log partitions that are not read to the end of their lease.
        rows: The rows that were built of it.
        failures: The streams that fail.
        started: When it was claimed, by the monotonic clock.
        rebuilt: What a rebuild has committed so far.
    """

    model: ReadModel
    leases: tuple[Lease, ...]
    locked: tuple[LockedPartition, ...] = ()
    rebuild: bool = False
    history: LogHistory | None = None
    ends: Mapping[int, int] = field(default_factory=dict)
    rows: "Rows | None" = None
    failures: tuple[Failure, ...] = ()
    started: float = field(default_factory=time.monotonic)
    rebuilt: Rebuilt = field(default_factory=Rebuilt)

    @property
    def remaining(self) -> tuple[Lease, ...]:
        """The leases that are not committed yet, in the order of their log partitions."""
        unwritten = (lease for lease in self.leases if lease.partition not in self.rebuilt.rows_of)
        return tuple(sorted(unwritten, key=lambda lease: lease.partition))

    @property
    def ranges(self) -> list[Lease]:
        """The ranges to read: the leases that are not committed, each as far as it is read."""
        return [
            replace(lease, to_position=min(lease.to_position, self.ends.get(lease.partition, lease.to_position)))
            for lease in self.remaining
        ]

    @property
    def positions(self) -> int:
        """How many positions are read."""
        return sum(lease.to_position - lease.from_position for lease in self.ranges)

    @property
    def retries(self) -> bool:
        """Whether streams that failed before are tried again."""
        return any(locked.retries for locked in self.locked)

    @property
    def given_up(self) -> frozenset[int]:
        """Offsets of events that a rebuild leaves out."""
        return frozenset() if self.history is None else self.history.given_up

    @property
    def carrying(self) -> frozenset[int]:
        """Those of `given_up` that are read all the same: later events of their streams take over their keys."""
        return frozenset() if self.model.carried is None else self.given_up

    @property
    def begun(self) -> frozenset[int]:
        """The log partitions in which streams may have rows of events before those that are read.

        A rebuild has none: it must not look at the rows that it replaces.
        """
        # a search that gave up has committed rows of the streams that it named, but no position
        retried = {one.partition for one in self.locked if one.retries}
        return frozenset(r.partition for r in self.leases if r.from_position > 0 or r.partition in retried)


@dataclass(frozen=True)
class StagedBatch:
    """Rows in the staging table: their batch's number, and how many each task attempt that Spark took has written."""

    number: int
    rows: tuple[StagedRows, ...]

    def __len__(self) -> int:
        """Return how many rows there are."""
        return sum(one.rows for one in self.rows)


# the rows that were built of events: a table in the driver, of log partition, key and state; or staged rows
Rows: TypeAlias = pa.Table | StagedBatch


@dataclass(frozen=True)
class Commit:
    """A batch that was committed.

    Attributes:
        leases: Its leases; their checkpoints moved to their ends.
        rows: How many rows of the state changed.
        seconds: How long building and committing took.
        failures: The streams that failed and were handed over to their locks.
        rows_of: Of a rebuild, the rows of each log partition.
        whole: False if `leases` is empty and only `failures` were committed: more streams fail than one search names,
            and the rest of the batch is claimed again.
    """

    leases: tuple[Lease, ...]
    rows: int
    seconds: float
    failures: tuple[Failure, ...] = ()
    rows_of: Mapping[int, int] = field(default_factory=dict)
    whole: bool = True

    @property
    def events(self) -> int:
        """How many positions it covered."""
        return sum(lease.to_position - lease.from_position for lease in self.leases)


@contextmanager
def transaction(store: PlatformStore, model: ReadModel, *, undone: bool = False) -> Iterator[None]:
    """Open a transaction that changes rows of a model; `undone` rolls it back at its end."""
    with store.connection.transaction(force_rollback=undone):
        if model.crosses_streams:
            # a commit that waits for the rows sees the rows of the commit before
            store.connection.execute("set transaction isolation level read committed")
        yield


def attempts(store: PlatformStore, model: ReadModel) -> Iterator[AttemptManager]:
    """Retry a transaction on rows of a model without an index that a row is too long for."""
    yield from anew(partial(give_up_for, store.connection, model))


def commit(store: PlatformStore, work: Work, lock_s: float | None = None) -> Commit:
    """Commit rows with the positions up to which they were built, and the streams that fail.

    Waits for a lock on rows at most `lock_s` seconds; None: as long as the session waits.

    Raises:
        Overtaken: The events were read without an upcast that the store has now.
        LeaseLost: Another consumer took a lease over; the transaction is rolled back.
        StagedRowsLost: Staged rows are missing; the transaction is rolled back.
    """
    model, connection = work.model, store.connection
    for attempt in attempts(store, model):
        with attempt, transaction(store, model):
            require_known(connection, model.upcasts)
            hand_over(store, model, work.leases, work.failures)
            store.commit_batch(model.view, work.leases)
            if lock_s is not None:
                wait_for_locks_at_most(connection, lock_s)
            rows = _merge(connection, model, work.rows)
    return Commit(work.leases, rows, time.monotonic() - work.started, work.failures)


def _merge(connection: psycopg.Connection, model: ReadModel, rows: Rows | None) -> int:
    if isinstance(rows, StagedBatch):
        return merge_batch(connection, model, rows.number, rows.rows)
    return 0 if rows is None else merge_rows(connection, model, rows)


def commit_rebuild(store: PlatformStore, work: Work) -> Commit:
    """Write the differences of staged rows from present ones: one log partition after the other, each in a transaction.

    If it dies, some log partitions are rebuilt, and the others are as before.

    Raises the errors of `commit`.
    """
    model, connection, rebuilt, batch = work.model, store.connection, work.rebuilt, work.rows
    assert isinstance(batch, StagedBatch)
    require_staged(connection, model, batch.number, batch.rows)
    # otherwise Postgres would guess how many rows there are
    analyze_staged(connection, model)
    for lease in work.remaining:
        rebuilt.at = lease.partition
        for attempt in attempts(store, model):
            with attempt, transaction(store, model):
                require_known(connection, model.upcasts)
                hand_over(store, model, [lease], work.failures)
                store.commit_batch(model.view, [lease])
                replaced = replace_partition(connection, model, lease.partition, batch.number, batch.rows)
                mend_rollups(connection, model, lease.partition)
                mark_built(connection, model, [lease.partition])
                if replaced.written:
                    tell_replaced(connection, model)
        rebuilt.rows_of[lease.partition] = replaced.rows
        rebuilt.changed += replaced.written
        rebuilt.failures += [one for one in work.failures if one.stream.partition == lease.partition]
    forget_batch(connection, model, batch.number)
    seconds = time.monotonic() - work.started
    return Commit(work.leases, rebuilt.changed, seconds, tuple(rebuilt.failures), rebuilt.rows_of)


def commit_failures(store: PlatformStore, work: Work) -> Commit:
    """Hand failing streams over to their locks, and merge the rows of their events before the failing ones.

    Gives the leases back: all other events of the batch are claimed again.
    """
    model, batch = work.model, work.rows
    assert isinstance(batch, StagedBatch)
    for attempt in attempts(store, model):
        with attempt, transaction(store, model):
            require_known(store.connection, model.upcasts)
            # The locks record the last event of their streams that is in the rows, at any checkpoint. They fence the
            # merge, too: all of its rows are of log partitions with a failure.
            hand_over(store, model, work.leases, work.failures)
            rows = _merge(store.connection, model, batch)
            forget_batch(store.connection, model, batch.number)
            store.release_batch(model.view, work.leases)
    return Commit((), rows, time.monotonic() - work.started, work.failures, whole=False)


def try_rows(store: PlatformStore, work: Work, batch: int, staged: Sequence[StagedRows]) -> None:
    """Apply staged rows and roll back, to learn whether Postgres takes them.

    Raises:
        PartFails: Postgres refuses the rows because of their data.
    """
    model = work.model
    try:
        for attempt in attempts(store, model):
            with attempt, transaction(store, model, undone=True):
                store.commit_batch(model.view, work.remaining)
                (try_replacing if work.rebuild else merge_batch)(store.connection, model, batch, staged)
    except psycopg.Error as error:
        if blame_of(error) is not Blame.EVENTS:
            raise
        raise PartFails(cause(error)) from error


@contextmanager
def staging(connection: psycopg.Connection, model: ReadModel) -> Iterator[int]:
    """Yield a number for staged rows; if the block fails, the rows are removed at once."""
    batch = next_batch(connection)
    try:
        yield batch
    except BaseException:
        # if this fails, too, the rows are removed when they are a day old
        with suppress(psycopg.Error):
            forget_batch(connection, model, batch)
        raise


def hand_over(store: PlatformStore, model: ReadModel, leases: Sequence[Lease], failures: Sequence[Failure]) -> None:
    """Hand streams that fail over to their locks, before `commit_batch` in its transaction."""
    # in the order of log partitions, in which other transactions lock them, too
    for lease in sorted(leases, key=lambda lease: lease.partition):
        streams = [
            StreamFailure(f.stream.decider, f.stream.decider_id, f.error, f.offset)
            for f in failures
            if f.stream.partition == lease.partition
        ]
        if streams:
            store.fail_streams(model.view, lease, streams)
