"""Consumes the log into read models: claim → build in Spark → one transaction of merge and checkpoint.

Belongs here: the loop of a drain, the rebuild of a log partition, leases kept alive, what a crash or a lost lease means.
Not here: Spark's plan (`read_model_build`), the SQL of the tables (`read_model_tables`), which streams make a batch fail
(`leased_batch`, `failing_streams`), Dagster.

Effect and position commit together: whatever dies, whenever, the rows and the checkpoint are both there or both not, and the
events of a batch that did not commit are read again. A commit whose reply was lost needs no care: the next claim starts at
the checkpoint.

A stream that fails goes to its lock in that same transaction, and all others of the batch are committed. It is tried again with
a later batch, and becomes a dead letter in the end.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from tenacity import (
    Retrying,
    retry_if_exception_type,
    sleep_using_event,
    stop_after_attempt,
    stop_after_delay,
    wait_exponential,
)

from millrace.resources.archive.history import LogHistory, log_history
from millrace.resources.consumption.batch import LeasedBatch
from millrace.resources.consumption.build_errors import build_errors, cause, is_gone, is_of_events
from millrace.resources.consumption.failing_streams import End, Failure, Findings, PartFails, find_failing_streams
from millrace.resources.errors import LeaseLost, MillraceError, NotInFlight, PartitionLeased, Unreachable
from millrace.resources.event_store import EventStore, Lease, StreamFailure
from millrace.resources.read_models.declaration import ReadModel
from millrace.resources.read_models.merge import (
    StagedRows,
    StagedRowsLost,
    forget_batch,
    forget_dead_batches,
    merge_batch,
    next_batch,
    replace_partitions,
)
from millrace.resources.read_models.tables import DependentObjects, require_ownership, require_whole_log
from millrace.resources.read_models.versions import (
    attach_version,
    mark_built,
    purged_discards,
    serve_if_caught_up,
    unbuilt_partitions,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH_EVENTS = 500_000
LEASE_S = 60
RECONNECT_S = 60
SWAP_ATTEMPTS = 5
SERVE_AGAIN_S = 60
# what happens to a transaction among others: the batch is claimed again at once
_CONFLICTS = (
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
    psycopg.errors.LockNotAvailable,
)


# from a batch's number and its staged rows to how many rows of the state it changed
Apply = Callable[[int, Sequence[StagedRows]], int]


class PartitionsFailed(MillraceError):
    """Log partitions that made no progress because their events cannot be built."""


class _NothingBuildsError(Exception):
    """It is not some streams that fail; the text says what does."""


@dataclass(frozen=True)
class Commit:
    """A batch that was committed: its ranges, the rows of the state it changed, how long it took, and what failed of it.

    `rows_of` are the rows of each log partition that was rebuilt. Without ranges nothing but the failures was: they were too many, and the rest is claimed again.
    """

    leases: tuple[Lease, ...]
    rows: int
    seconds: float
    failures: tuple[Failure, ...] = ()
    rows_of: Mapping[int, int] = field(default_factory=dict)

    @property
    def events(self) -> int:
        """How many positions it covered."""
        return sum(lease.to_position - lease.from_position for lease in self.leases)


@dataclass(frozen=True)
class _Work:
    """A batch on its way: its leases, how a rebuild puts it in place (None: it is merged), and when it began."""

    leases: tuple[Lease, ...]
    rebuild: Apply | None
    started: float


@dataclass
class DrainReport:
    """What a drain did; `failed` are log partitions that made no progress, `in_the_way` what keeps the model's version from serving."""

    batches: int = 0
    events: int = 0
    rows: int = 0
    busy_s: float = 0.0
    failed_streams: int = 0
    failed: dict[int, str] = field(default_factory=dict)
    in_the_way: MillraceError | None = None

    def add(self, commit: Commit) -> None:
        """Count a commit."""
        self.batches += bool(commit.leases)
        self.failed_streams += len(commit.failures)
        self.events += commit.events
        self.rows += commit.rows
        self.busy_s += commit.seconds


class Consumer:
    """One consumer of one read model's view: a database connection, a Spark session, an owner's name.

    Args:
        dsn: The event store.
        model: The read model.
        spark: Gives the session; asked only when there is something to build.
        owner: The name under which leases are taken: a run's id.
        lease_s: How long a lease outlives its owner, in seconds.
        archive: The folder of the archive, from which rebuilds read what it holds; None: they read Postgres alone.
    """

    def __init__(
        self,
        dsn: str,
        model: ReadModel,
        spark: "Callable[[], SparkSession]",
        owner: str,
        *,
        lease_s: int = LEASE_S,
        archive: Path | None = None,
    ) -> None:
        self.dsn = dsn
        self.model = model
        self._declared_view = model.view
        self.owner = owner
        self._spark = spark
        self._lease_s = lease_s
        self._archive = archive
        self._connection = _connect(dsn)
        self._serves = False
        self._serve_at = float("-inf")

    @property
    def _store(self) -> EventStore:
        return EventStore(self._connection)

    def close(self) -> None:
        """Give back every lease and close the connection."""
        try:
            if self._connection.broken:
                self._reconnect()
            self._store.release_owner(self.owner)
        finally:
            self._connection.close()

    def __enter__(self) -> "Consumer":
        try:
            self.model = attach_version(self._connection, self.model, self._archive)
            forget_dead_batches(self._connection, self.model)
        except BaseException:
            self._connection.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def drain(
        self,
        *,
        budget_s: float,
        idle_s: float,
        on_commit: Callable[[Commit], None] = lambda _: None,
        stop: threading.Event | None = None,
        batch_events: int = BATCH_EVENTS,
    ) -> DrainReport:
        """Consume until nothing came for `idle_s`, the budget of seconds is used up, or `stop` is set.

        A stream that fails waits by itself and is tried again later. Where it is not some streams that fail, a log partition
        does not hold up the others: it is put aside until its lease ends, then tried again.

        A model that is made when the log is shortened already is rebuilt from the archive first, log partition by log partition.
        Where this is a version of the model that does not serve yet, it does as soon as it has caught up with the one that does.

        Raises:
            PartitionsFailed: In the end, if some log partitions made no progress.
            DependentObjects: In the end, if something in the database keeps this version from serving.
            Unreachable: Spark went away.
        """
        stop = stop or threading.Event()
        report = DrainReport()
        started = busy_at = time.monotonic()
        built = False
        while not stop.is_set() and time.monotonic() - started < budget_s:
            try:
                built = built or self._rebuild_next(report, on_commit, stop)
                if not built:
                    busy_at = time.monotonic()
                    continue
                leases = self._store.claim_batch(self.model.view, self.owner, batch_events, self._lease_s)
                if not leases:
                    self._serve(report)
                    if time.monotonic() - busy_at >= idle_s:
                        break
                    stop.wait(self.model.pooling_delay_s)
                    continue
                for commit in self._consume(leases, report.failed):
                    report.add(commit)
                    for lease in commit.leases:
                        report.failed.pop(lease.partition, None)
                    on_commit(commit)
                    self._serve(report)
            except psycopg.OperationalError:
                if not self._connection.closed:
                    raise  # connecting anew would not help
                self._reconnect()
                self._store.release_owner(self.owner)
            busy_at = time.monotonic()
        if report.failed:
            raise self._no_progress(report)
        if report.in_the_way:
            raise report.in_the_way
        return report

    def _no_progress(self, report: DrainReport) -> PartitionsFailed:
        return PartitionsFailed(
            f"Read model {self.model.name}: {len(report.failed)} log partition(s) made no progress.",
            detail="\n".join(f"p{partition:02}: {error}" for partition, error in sorted(report.failed.items())),
            hint="Correct the declaration or the environment; the events are kept and are read again.",
        )

    def rebuild(self, *partitions: int, wait_s: float = 60, stop: threading.Event | None = None) -> Commit:
        """Build log partitions anew from all their events and swap them in: from the archive, and from Postgres what is not archived.

        Several are built in one job and swapped in together, or none of them is.

        Streams that fail are handed over to their locks as in a drain, those that had failed and do not now are freed.
        Discarded events are tried again, too, but not those that Postgres has no more. Waits up to `wait_s` seconds for a drain
        that has one of the log partitions leased at this moment.

        Raises:
            HistoryMissing: A log partition does not hold its first events any more, and none of them is archived.
            LogIncomplete: Some of them are.
            ForeignArchive: They are to be read from a folder that is not this store's archive.
            ArchiveDamaged: They are to be read from a file that is not there.
            PartitionsFailed: It cannot be built.
            NotOwned: The model's tables belong to somebody else.
            PartitionLeased: Somebody held the lease all that time.
            LeaseLost: Somebody took the lease over while this was building.
        """
        require_ownership(self._connection, self.model)
        try:
            return self._rebuild(partitions, wait_s, stop or threading.Event())
        except Exception:
            with suppress(psycopg.Error, MillraceError):
                self._store.release_owner(self.owner)
            raise

    def _rebuild(self, partitions: Sequence[int], wait_s: float, stop: threading.Event) -> Commit:
        waiting = Retrying(
            retry=retry_if_exception_type(PartitionLeased),
            wait=wait_exponential(multiplier=0.05, max=1),
            stop=stop_after_delay(wait_s),
            sleep=sleep_using_event(stop),
            reraise=True,
        )
        leases: list[Lease] = []
        with self._kept_alive(leases):
            # in order, so that two of these never wait for each other
            for partition in sorted(set(partitions)):
                leases.append(
                    waiting(self._store.claim_partition, self.model.view, partition, self.owner, self._lease_s)
                )
        history = self._history(leases)  # now that the leases keep it whole
        rows: dict[int, int] = {}

        def swap(batch: int, staged: Sequence[StagedRows]) -> int:
            built = [lease.partition for lease in leases]
            rows.update(replace_partitions(self._connection, self.model, built, batch, staged))
            mark_built(self._connection, self.model, built)
            return sum(rows.values())

        try:
            # from the first event on, wherever the log begins
            commit = self._build_and_commit([replace(lease, from_position=0) for lease in leases], swap, history)
        except (_NothingBuildsError, NotInFlight) as error:
            named = ", ".join(f"p{lease.partition:02}" for lease in leases)
            raise PartitionsFailed(
                f"Read model {self.model.name}: log partition {named} was not built.",
                detail=f"A stream fails at an event that only the archive has, so that nobody could try it again: {error.detail}"
                if isinstance(error, NotInFlight)
                else str(error),
                hint="Correct the declaration or the environment; the rows from before are kept.",
            ) from error
        return replace(commit, rows_of=rows)

    def _rebuild_next(self, report: DrainReport, on_commit: Callable[[Commit], None], stop: threading.Event) -> bool:
        """Rebuild the next log partition whose first events only the archive has; return whether there was none left.

        Raises:
            PartitionsFailed: All that are left cannot be rebuilt, and without them there is nothing to go on from.
        """
        unbuilt = unbuilt_partitions(self._connection, self.model)
        for partition in unbuilt:
            if partition in report.failed:
                continue
            try:
                commit = self.rebuild(partition, wait_s=0)
            except PartitionLeased:
                continue  # another drain is at it
            except MillraceError as error:
                report.failed[partition] = str(error)
            else:
                report.add(commit)
                on_commit(commit)
            return False
        if unbuilt and set(unbuilt) <= set(report.failed):
            raise self._no_progress(report)
        if unbuilt:
            stop.wait(self.model.pooling_delay_s)
        return not unbuilt

    def _history(self, leases: Sequence[Lease]) -> LogHistory | None:
        """From where a rebuild reads leased log partitions; None: from Postgres alone.

        What it names is there until the leases end: the log is not shortened below its beginning, and a replaced file stays for an hour.

        Raises what `rebuild` says of missing events, but where Postgres has them all it warns and goes on without the archive.
        """
        history = None
        if self._archive is not None:
            history = log_history(self._connection, self._archive, [lease.partition for lease in leases])
            # a file may go beyond what is leased
            history = replace(
                history,
                cuts={lease.partition: (0, lease.to_position) for lease in leases},
                given_up=purged_discards(self._connection, self._declared_view),
            )
        if history is None or not history.files:
            for lease in leases:
                require_whole_log(self._connection, lease.partition)
            return None
        return history.readable()

    def _serve(self, report: DrainReport) -> None:
        """Let people read this version of the model, unless they do or it has not caught up."""
        if self._serves or time.monotonic() < self._serve_at:
            return
        try:
            self._serves = serve_if_caught_up(self._connection, self.model)
            report.in_the_way = None
        except DependentObjects as error:
            report.in_the_way = error
        except psycopg.errors.LockNotAvailable:
            # each try keeps other readers waiting for a moment
            self._serve_at = time.monotonic() + SERVE_AGAIN_S

    def _consume(self, leases: Sequence[Lease], failed: dict[int, str]) -> Iterator[Commit]:
        """Build and commit leased ranges together; where that fails, each log partition alone."""
        try:
            yield self._build_and_commit(leases)
        except _NothingBuildsError as error:
            # not each by itself: of few streams it cannot be told that they are not the reason
            failed.update({lease.partition: str(error) for lease in leases})
        except (LeaseLost, StagedRowsLost, *_CONFLICTS):
            self._store.release_batch(self.model.view, leases)  # read again by whoever claims next
        except build_errors() as error:
            if isinstance(error, psycopg.Error) and self._connection.closed:
                raise  # nothing is wrong with the batch
            if is_gone(error):
                raise Unreachable(
                    "The Spark Connect server went away in the middle of a drain.",
                    detail=cause(error),
                    hint="Nothing is lost: the next drain reads the batch again when the server is back.",
                ) from error
            if len(leases) == 1:
                # keeps its lease: nobody tries again before it ends
                failed[leases[0].partition] = cause(error)
                return
            for done, lease in enumerate(leases, start=1):
                # those that wait for their turn, which may come late
                with self._kept_alive(leases[done:]):
                    yield from self._consume([lease], failed)

    def _build_and_commit(
        self, leases: Sequence[Lease], rebuild: Apply | None = None, history: LogHistory | None = None
    ) -> Commit:
        """Build what leases deliver and commit it, without the streams that fail.

        `rebuild` puts a rebuilt partition in place; `history` is from where it reads, None for Postgres alone.
        """
        # a rebuild reads all streams
        locked = [] if rebuild else self._store.locked_partitions(self.model.view, leases)
        work = _Work(tuple(leases), rebuild, time.monotonic())
        leased = LeasedBatch(self._spark, self.dsn, self.model, leases, locked, history)
        try:
            with self._staging() as batch:
                with self._kept_alive(leases):
                    staged = leased.stage(batch)
                return self._commit(work, batch, staged)
        except build_errors() as error:
            return self._commit_what_builds(work, leased, error)

    def _commit_what_builds(self, work: "_Work", leased: LeasedBatch, error: Exception) -> Commit:
        """Find the streams that make a build or its merge fail, hand them over to their locks and commit the rest.

        Raises the error where it is not of streams.
        """
        if self._connection.closed or not is_of_events(error):
            raise error
        try:
            with self._staging() as batch:
                with self._kept_alive(work.leases):
                    # what Spark refuses is found without merges, which cost as much again
                    attempt = partial(self._try, work, batch) if isinstance(error, psycopg.Error) else None
                    ranges = any(lease.from_position < lease.to_position for lease in work.leases)
                    retries = any(locked.retries for locked in leased.locked)
                    with leased.parts(batch, attempt) as parts:
                        found = find_failing_streams(parts, ranges=ranges, retries=retries)
                if found.end is not End.FOUND or not found.failures:
                    return self._commit_failures(work, batch, found, error)
                staged = [rows for part in found.built for rows in part]
                return self._commit(work, batch, staged, found.failures)
        except psycopg.Error as merging:
            if merging is error or isinstance(error, psycopg.Error):
                raise
            return self._commit_what_builds(work, leased, merging)

    def _try(self, work: "_Work", batch: int, staged: Sequence[StagedRows]) -> None:
        """Merge some staged rows and undo it.

        Raises:
            PartFails: They cannot be merged.
        """
        # a swap waits for readers, as in `_commit`
        attempts = Retrying(
            retry=retry_if_exception_type(psycopg.errors.LockNotAvailable),
            stop=stop_after_attempt(SWAP_ATTEMPTS if work.rebuild else 1),
            reraise=True,
        )
        try:
            for attempt in attempts:
                with attempt, self._connection.transaction(force_rollback=True):
                    self._store.commit_batch(self.model.view, work.leases)
                    self._apply(work, batch, staged)
        except psycopg.Error as error:
            if not is_of_events(error):
                raise
            raise PartFails(cause(error)) from error

    def _commit_failures(
        self, work: "_Work", batch: int, found: Findings[list[StagedRows]], error: Exception
    ) -> Commit:
        """Hand over the streams that were found of too many, commit what comes before their failing events, and give the leases back.

        Raises the error where it is not of streams, or in a rebuild, which is all or nothing.
        """
        if found.end is End.ALL:
            raise _NothingBuildsError(cause(error)) from error
        if not found.failures:
            raise error
        if work.rebuild:
            raise _NothingBuildsError(
                f"{len(found.failures)} streams or more fail, and a rebuild is all or nothing: {cause(error)}"
            ) from error
        with self._connection.transaction():
            # Their locks say what is acknowledged of them, wherever the checkpoint stands. And they fence the merge: what comes before
            # a failing event is of a log partition with a failure.
            self._fail(work, found.failures)
            rows = self._apply(work, batch, [staged for part in found.before for staged in part])
            forget_batch(self._connection, self.model, batch)
            self._store.release_batch(self.model.view, work.leases)
        return Commit((), rows, time.monotonic() - work.started, tuple(found.failures))

    def _commit(
        self, work: "_Work", batch: int, staged: Sequence[StagedRows], failures: Sequence[Failure] = ()
    ) -> Commit:
        # a swap waits for readers, and they for it: not for long at a time
        attempts = Retrying(
            retry=retry_if_exception_type(psycopg.errors.LockNotAvailable),
            stop=stop_after_attempt(SWAP_ATTEMPTS if work.rebuild else 1),
            reraise=True,
        )
        # between two attempts at a swap nothing else holds the lease
        with self._kept_alive(work.leases) if work.rebuild else nullcontext():
            for attempt in attempts:
                with attempt, self._connection.transaction():
                    self._fail(work, failures)
                    self._store.commit_batch(self.model.view, work.leases)
                    rows = self._apply(work, batch, staged)
        return Commit(work.leases, rows, time.monotonic() - work.started, tuple(failures))

    def _apply(self, work: "_Work", batch: int, staged: Sequence[StagedRows]) -> int:
        if work.rebuild:
            return work.rebuild(batch, staged)
        return merge_batch(self._connection, self.model, batch, staged)

    def _fail(self, work: "_Work", failures: Sequence[Failure]) -> None:
        # in the order in which others lock them
        for lease in sorted(work.leases, key=lambda lease: lease.partition):
            streams = [
                StreamFailure(f.stream.decider, f.stream.decider_id, f.error, f.offset)
                for f in failures
                if f.stream.partition == lease.partition
            ]
            if streams:
                self._store.fail_streams(self.model.view, lease, streams)

    @contextmanager
    def _staging(self) -> Iterator[int]:
        """Give a number for staged rows; what was staged for a commit that fails is removed at once, not by age."""
        batch = next_batch(self._connection)
        try:
            yield batch
        except BaseException:
            with suppress(psycopg.Error):
                forget_batch(self._connection, self.model, batch)
            raise

    @contextmanager
    def _kept_alive(self, leases: Sequence[Lease]) -> Iterator[None]:
        """Extend leases while Spark builds, from a thread with a connection of its own."""
        done = threading.Event()

        def extend() -> None:
            while not done.wait(self._lease_s / 3):
                if not leases:
                    continue  # none yet
                try:
                    with psycopg.connect(self.dsn, autocommit=True) as connection:
                        EventStore(connection).extend_lease(self.model.view, leases, self._lease_s)
                except LeaseLost:
                    return  # the commit will be refused
                except psycopg.OperationalError:
                    continue  # the next turn tries again

        keeper = threading.Thread(target=extend, name="lease keeper", daemon=True)
        keeper.start()
        try:
            yield
        finally:
            done.set()
            keeper.join()

    def _reconnect(self) -> None:
        self._connection.close()
        self._connection = _connect(self.dsn)
        self._store.attach_consumer(self.model.view)


def _connect(dsn: str) -> psycopg.Connection:
    """Connect, and outlast a restart of the server."""
    patiently = Retrying(
        retry=retry_if_exception_type(psycopg.OperationalError),
        wait=wait_exponential(multiplier=0.1, max=5),
        stop=stop_after_delay(RECONNECT_S),
        reraise=True,
    )
    return patiently(psycopg.connect, dsn, autocommit=True)
