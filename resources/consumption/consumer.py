"""Consumes the log into read models: claim → build in Spark → one transaction of rows and checkpoint.

Belongs here: one consumer of one view, from attaching to it to its end: the loop of a drain, its connection, when its
version of the model begins to serve. Not here: building a few events (`rounds.round`) or a batch (`builder`), a batch's
transaction (`commit`), rebuilds (`rebuild`), Dagster.

A stream that fails is handed over to its lock in the transaction that commits all others of its batch. A later batch
tries it again. In the end it becomes a dead letter.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import psycopg

from millrace.resources.consumption.build_errors import build_errors, cause, is_gone, spark_is_gone
from millrace.resources.consumption.builder import Builder, NothingBuilds
from millrace.resources.consumption.commit import Commit
from millrace.resources.consumption.connection import CONFLICTS, connect_patiently, end_interrupted
from millrace.resources.consumption.indexing import Indexing
from millrace.resources.consumption.limits import DEFAULTS, Limits
from millrace.resources.consumption.rebuild import Rebuild
from millrace.resources.consumption.report import DrainReport, no_progress
from millrace.resources.consumption.rounds.plan import fits
from millrace.resources.consumption.rounds.round import ROUND_EVENTS, Rounds
from millrace.resources.consumption.serving import Serving
from millrace.resources.errors import LeaseLost, MillraceError, PartitionLeased, Unreachable
from millrace.resources.event_store import EventStore, Lease
from millrace.resources.read_models.declared.declaration import ReadModel
from millrace.resources.read_models.declared.upcasts import Overtaken
from millrace.resources.read_models.stored.merge import StagedRowsLost, forget_dead_batches
from millrace.resources.read_models.stored.versions import attach_version, unbuilt_partitions
from millrace.resources.spark.bounded import TookTooLong
from millrace.resources.spark.parallelism import BATCH_EVENTS, batch_size

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEASE_S = 60
# a consumer that did not say for 15 minutes that it lives counts as dead
ATTACH_EVERY_S = 60
# of log partitions that take too long, each by itself, a drain tries no more
MOST_LATE = 2
OnCommit = Callable[[Commit], None]


class Consumer:
    """One consumer of one version of a read model. `Consumer.open` makes one; the end of a `with` block closes it.

    Attributes:
        model: The read model as the version that this consumes.
        owner: The name under which it takes leases.
    """

    def __init__(
        self,
        connection: psycopg.Connection,
        dsn: str,
        declared: ReadModel,
        model: ReadModel,
        spark: "Callable[[], SparkSession]",
        owner: str,
        lease_s: int,
        archive: Path | None,
        limits: Limits,
    ) -> None:
        self.model = model
        self.owner = owner
        self._dsn = dsn
        self._declared = declared
        self._lease_s = lease_s
        self._archive = archive
        self._spark = spark
        self._limits = limits
        self._batch_events = BATCH_EVENTS
        self._builder = Builder(dsn, model, spark, lease_s, limits)
        self._rounds = Rounds(dsn, spark, owner, lease_s, min(limits.round_s, limits.build_s))
        # whether the next batch is built as a round is: what is pending may be few events, and none of them failed
        self._in_rounds = fits(model)
        self._serving = Serving(model)
        self._indexing = Indexing(dsn)
        # over a connection that is replaced where it breaks
        self._store = EventStore(connection)

    @classmethod
    def open(
        cls,
        dsn: str,
        model: ReadModel,
        spark: "Callable[[], SparkSession]",
        owner: str,
        *,
        lease_s: int = LEASE_S,
        archive: Path | None = None,
        limits: Limits = DEFAULTS,
    ) -> Self:
        """Attach to the version of a read model that its declaration stands for; make that version if there is none.

        Args:
            dsn: The event store.
            model: The read model as it is declared.
            spark: Gives the session; asked only when there is something to build.
            owner: The name under which leases are taken: a run's id.
            lease_s: How long a lease outlives its owner, in seconds.
            archive: The folder of the archive, from which rebuilds read; None: they read Postgres alone.
            limits: How much runs side by side.

        Raises the errors of `versions.ensure_version`.
        """
        connection = connect_patiently(dsn)
        try:
            version = attach_version(connection, model, archive, owner)
            forget_dead_batches(connection, version)
        except BaseException:
            connection.close()
            raise
        return cls(connection, dsn, model, version, spark, owner, lease_s, archive, limits)

    def close(self) -> None:
        """Give back every lease, count no more as a consumer, and close the connection."""
        try:
            end_interrupted(self._store.connection)
            if self._store.connection.closed:
                self._reconnect()
            self._store.release_owner(self.owner)
            # the session may end a moment later, and who removes the model meanwhile would be refused
            self._store.detach_consumer(self.model.view, self.owner)
        finally:
            self._store.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        finally:
            failed = self._indexing.end()
        if failed and error is None:
            raise failed[self.model.view]

    def drain(
        self,
        *,
        budget_s: float,
        idle_s: float,
        on_commit: OnCommit = lambda _: None,
        stop: threading.Event | None = None,
        batch_events: int | None = None,
    ) -> DrainReport:
        """Consume until nothing came for `idle_s`, the budget of seconds is used up, or `stop` is set.

        While declared indexes are made it goes on all the same. A batch has `batch_events` at most; None for what the
        session is worth.

        A stream that fails waits by itself and is tried again later. A failure that is not of some streams puts its log
        partition aside until its lease ends, when it is tried again. It does not hold up other log partitions. Nor does
        one whose build does not end: Spark is told to stop in time. A drain that nothing could be built in says so at
        once.

        It ends when the store was told of an upcast: the next drain reads events with it.

        A model that is made when the log is shortened already is rebuilt from the archive first, log partition by log
        partition. A version of the model that does not serve yet begins to as soon as it has caught up with the
        serving one.

        Raises:
            PartitionsFailed: In the end, if some log partitions made no progress.
            DependentObjects: In the end, if something in the database keeps this version from serving.
            Unreachable: Spark went away.
        """
        stop = stop or threading.Event()
        report = DrainReport()
        started = busy_at = attached_at = time.monotonic()
        built = False
        self._indexing.begin(self._store.connection, self.model)
        while not stop.is_set() and (time.monotonic() - started < budget_s or self._indexing.is_at_work):
            try:
                if time.monotonic() - attached_at >= ATTACH_EVERY_S:
                    self._store.attach_consumer(self.model.view, self.owner)
                    attached_at = time.monotonic()
                if not built:
                    built = self._rebuild_next(report, on_commit, stop)
                elif not self._consume_next(report, on_commit, batch_events):
                    self._serving.begin(self._store, report)
                    # where nothing could be built, more events change nothing: the next drain tries again
                    idle = time.monotonic() - busy_at >= idle_s or (report.failed and not report.moved)
                    if idle and not self._indexing.is_at_work:
                        break
                    stop.wait(self.model.pooling_delay_s)
                    continue
            except psycopg.Error:
                if not self._store.connection.closed:
                    raise  # connecting anew would not help
                self._reconnect()
                self._store.release_owner(self.owner)
            except Overtaken:
                break  # the next drain is of the version that reads with it
            busy_at = time.monotonic()
        if report.failed:
            raise no_progress(self.model.name, report.failed)
        if report.in_the_way:
            raise report.in_the_way
        return report

    def rebuild(self, *partitions: int, wait_s: float = 60, stop: threading.Event | None = None) -> Commit:
        """Build log partitions anew from all their events, together or none of them, and write what differs in place.

        Each is written in a transaction of its own: where a rebuild dies, some are rebuilt, and the others as before.

        The archive gives the events that it has, Postgres those that are not archived.

        Streams that fail are handed over to their locks as in a drain; streams that failed before and do not now are
        freed. Discarded events are tried again, too, but not those that were purged since. Waits up to `wait_s`
        seconds for a drain that has one of the log partitions leased at this moment.

        Raises:
            HistoryMissing: A log partition does not hold its first events any more, and none of them is archived.
            LogIncomplete: Only some of the missing events are archived.
            ForeignArchive: The folder with the missing events is not this store's archive.
            ArchiveDamaged: A file with missing events is not there.
            PartitionsFailed: A log partition cannot be built.
            NotOwned: The model's tables belong to a role that the login is no member of.
            PartitionLeased: Another consumer held the lease all that time.
            LeaseLost: Another consumer took the lease over during the rebuild.
        """
        rebuild = Rebuild(self._store, self._builder, self._declared, self.owner, self._archive)
        return rebuild.run(partitions, wait_s, stop or threading.Event())

    def _rebuild_next(self, report: DrainReport, on_commit: OnCommit, stop: threading.Event) -> bool:
        """Rebuild the next log partition whose first events only the archive has; return true if none is left.

        Raises:
            PartitionsFailed: None of the rest can be rebuilt, and the drain cannot go on without them.
        """
        unbuilt = unbuilt_partitions(self._store.connection, self.model)
        for partition in unbuilt:
            if partition in report.failed:
                continue
            try:
                commit = self.rebuild(partition, wait_s=0)
            except PartitionLeased:
                continue  # another drain rebuilds it
            except (Overtaken, Unreachable):
                raise
            except MillraceError as error:
                report.failed[partition] = str(error)
            else:
                report.add(commit)
                on_commit(commit)
            return False
        if unbuilt and set(unbuilt) <= set(report.failed):
            raise no_progress(self.model.name, report.failed)
        if unbuilt:
            stop.wait(self.model.pooling_delay_s)
        return not unbuilt

    def _consume_next(self, report: DrainReport, on_commit: OnCommit, batch_events: int | None) -> bool:
        """Claim, build and commit a batch; return whether there was something to claim."""
        # a round would read again what a log partition that failed keeps leased
        if self._in_rounds and not report.failed and self._round(report, on_commit, batch_events):
            return True
        limit = batch_events or self._batch_events
        leases = self._store.claim_batch(self.model.view, self.owner, limit, self._lease_s)
        if not leases:
            return False
        failed = report.failed_streams
        for commit in self._consume(leases, report.failed):
            self._note(commit, report, on_commit)
        full = sum(lease.to_position - lease.from_position for lease in leases) >= limit
        self._in_rounds = fits(self.model) and not full and report.failed_streams == failed
        if batch_events is None and full:
            # there is more. If the session does not answer, the next batch says why
            with suppress(*build_errors()):
                self._batch_events = batch_size(self._spark(), self._limits.cores)
        return True

    def _round(self, report: DrainReport, on_commit: OnCommit, most: int | None) -> bool:
        """Consume what one round takes, without staging it; return whether it committed anything.

        If it did not, a batch is to be claimed: streams to try again, and what failed here, are for that.
        """
        try:
            outcome = self._rounds.run(self._store, [self.model], [self.model], most or ROUND_EVENTS)
        except build_errors() as error:
            if isinstance(error, psycopg.Error) and self._store.connection.closed:
                raise
            self._store.release_owner(self.owner)
            self._in_rounds = False
            return False
        view = self.model.view
        self._in_rounds = view not in {*outcome.full, *outcome.left, *outcome.slow}
        for commit in outcome.commits.values():
            self._note(commit, report, on_commit)
        return bool(outcome.commits)

    def _note(self, commit: Commit, report: DrainReport, on_commit: OnCommit) -> None:
        report.add(commit)
        on_commit(commit)
        self._serving.begin(self._store, report)

    def _consume(self, leases: Sequence[Lease], failed: dict[int, str]) -> Iterator[Commit]:
        """Build and commit leased ranges together; where that fails, each log partition alone."""
        try:
            yield self._builder.build(self._store, leases)
        except NothingBuilds as error:
            # not each by itself: of few streams, a search would blame all of them for a shared reason
            failed.update({lease.partition: str(error) for lease in leases})
        except (LeaseLost, StagedRowsLost, *CONFLICTS):
            # the consumer that claims next reads the events again
            self._store.release_batch(self.model.view, leases)
        except _errors_of_builds() as error:
            if isinstance(error, psycopg.Error) and self._store.connection.closed:
                raise  # nothing is wrong with the batch
            if is_gone(error):
                raise spark_is_gone(error) from error
            if len(leases) == 1:
                # it keeps its lease, so that no drain tries again before that ends
                failed[leases[0].partition] = cause(error)
                return
            yield from self._consume_each(leases, failed, is_late=isinstance(error, TookTooLong))

    def _consume_each(self, leases: Sequence[Lease], failed: dict[int, str], *, is_late: bool) -> Iterator[Commit]:
        """Build and commit leased ranges one by one; `is_late` says that all together took too long.

        Then those that are left when some took too long by themselves, too, wait for the next drain: each might.
        """
        late = 0
        # another order in each drain, so that none is always behind one that does not end
        turns = random.sample(leases, len(leases)) if is_late else leases
        for done, lease in enumerate(turns, start=1):
            left = turns[done:]
            # the turn of the others may come late
            with self._builder.keeper(left):
                yield from self._consume([lease], failed)
            late += is_late and lease.partition in failed
            if late >= MOST_LATE:
                failed.update({one.partition: f"not tried: {failed[lease.partition]}" for one in left})
                return

    def _reconnect(self) -> None:
        self._store.connection.close()
        self._store = EventStore(connect_patiently(self._dsn))
        self._store.attach_consumer(self.model.view, self.owner)


def _errors_of_builds() -> tuple[type[Exception], ...]:
    return (TookTooLong, *build_errors())
