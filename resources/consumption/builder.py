"""Builds the events that leases deliver and commits them, without the streams that fail.

Belongs here: the way from leases to a commit. Not here: the transactions (`commit`), Spark's part (`batch`), which
part is built next when something fails (`failing_streams`), when leases are claimed (`consumer`, `rebuild`).
"""

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import psycopg

from millrace.resources.archive.history import LogHistory
from millrace.resources.consumption.batch import LeasedBatch
from millrace.resources.consumption.build_errors import Fault, build_errors, cause, fault_of
from millrace.resources.consumption.commit import (
    Commit,
    Work,
    commit,
    commit_failures,
    commit_rebuild,
    staging,
    try_rows,
)
from millrace.resources.consumption.failing_streams import End, Failure, Findings, PartFails, find_failing_streams
from millrace.resources.consumption.leases import LeaseKeeper
from millrace.resources.consumption.limits import Limits
from millrace.resources.consumption.misread import name_streams
from millrace.resources.event_store import EventStore, Lease
from millrace.resources.read_models.declared.declaration import ReadModel
from millrace.resources.read_models.stored.merge import StagedRows
from millrace.resources.spark.bounded import TookTooLong

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)


class NothingBuilds(Exception):
    """Nothing of a batch was committed, for a reason outside of its streams; the text states the reason."""


class Builder:
    """Builds and commits batches of one read model.

    Args:
        dsn: The event store.
        model: The read model, as the version that is built.
        spark: Gives the session.
        lease_s: How long a lease lasts, in seconds; leases are extended while Spark builds.
        limits: How much runs side by side.
    """

    def __init__(
        self,
        dsn: str,
        model: ReadModel,
        spark: "Callable[[], SparkSession]",
        lease_s: int,
        limits: Limits,
    ) -> None:
        self.dsn = dsn
        self.model = model
        self.spark = spark
        self.lease_s = lease_s
        self.limits = limits

    def keeper(self, leases: Sequence[Lease] = ()) -> LeaseKeeper:
        """Return a keeper, which extends leases during a `with` block."""
        return LeaseKeeper(self.dsn, self.model.view, self.lease_s, leases)

    def build(self, store: EventStore, leases: Sequence[Lease]) -> Commit:
        """Build the events that leases deliver, merge them into the model and commit that.

        Raises:
            NothingBuilds: Nothing was committed, and no stream is to blame.
            LeaseLost: Another consumer took a lease over.
            StagedRowsLost: Staged rows are missing.

        Raises the errors of `build_errors` where they are not of events.
        """
        locked = store.locked_partitions(self.model.view, leases)
        batch = LeasedBatch(self.spark, self.dsn, self.model, leases, locked, limits=self.limits)
        return self._build(store, Work(tuple(leases), rebuild=False, started=time.monotonic()), batch)

    def rebuild(self, store: EventStore, work: Work, ranges: Sequence[Lease], history: LogHistory | None) -> Commit:
        """Build log partitions from their first events, of all streams, and write what present rows differ in.

        `ranges` are the leases as far as they are read. `history` names the place of the events; None: Postgres alone.
        Raises the errors of `build`; the work says what was committed before.
        """
        return self._build(store, work, LeasedBatch(self.spark, self.dsn, self.model, ranges, [], history, self.limits))

    def _build(self, store: EventStore, work: Work, batch: LeasedBatch) -> Commit:
        try:
            with staging(store.connection, self.model) as number:
                with self.keeper(work.leases):
                    staged, failures = self._staged(store, work, batch, number)
                return self._commit(store, work, number, staged, failures)
        except _errors_of_builds() as error:
            # if a server is gone, or the declaration is wrong, the search would find no stream
            if not _may_be_of_events(store, error):
                raise
            return self._build_without_failing_streams(
                store, work, batch, error, time.monotonic() + batch.search_seconds
            )

    def _staged(
        self, store: EventStore, work: Work, batch: LeasedBatch, number: int
    ) -> tuple[Sequence[StagedRows], Sequence[Failure]]:
        """Stage a batch without the streams that fail at an event by itself; return these, too.

        Raises:
            PartFails: A search has to tell who fails.
        """
        staged = batch.stage(number)
        if not staged.misread:
            return staged.rows, ()
        named = name_streams(store, self.model, work.leases, staged.misread, retries=batch.retries)
        if named.are_followed:
            staged = batch.stage(number, named.failures)
            if staged.misread:
                raise PartFails(named.failures[0].error)
        named.require_others(built=bool(staged.rows))
        return staged.rows, named.failures

    def _build_without_failing_streams(
        self, store: EventStore, work: Work, batch: LeasedBatch, error: Exception, until: float
    ) -> Commit:
        """Find the streams that make a build or its merge fail, hand them over to their locks and commit the rest.

        The search ends at that time of the monotonic clock.
        """
        batch = batch.of({lease.partition for lease in work.left})
        try:
            with staging(store.connection, self.model) as number:
                with self.keeper(work.left):
                    # Streams that Spark refuses are found without merges, which would cost as much again.
                    attempt = (
                        partial(try_rows, store, self.model, work, number) if isinstance(error, psycopg.Error) else None
                    )
                    ranges = any(lease.from_position < lease.to_position for lease in work.left)
                    with batch.parts(number, attempt, until) as parts:
                        found = find_failing_streams(
                            parts, ranges=ranges, retries=batch.retries, to_the_end=work.rebuild
                        )
                if found.blameless:
                    raise NothingBuilds(cause(error)) from error
                if found.end is End.FOUND and found.failures:
                    staged = [rows for part in found.built for rows in part]
                    return self._commit(store, work, number, staged, found.failures)
                return self._commit_failures(store, work, number, found, error, batch.search_seconds)
        except psycopg.Error as merging:
            # Spark builds the rest now: Postgres refuses some of its rows. That search begins anew, once.
            if merging is error or isinstance(error, psycopg.Error) or not _may_be_of_events(store, merging):
                raise
            return self._build_without_failing_streams(store, work, batch, merging, until)

    def _commit_failures(
        self,
        store: EventStore,
        work: Work,
        number: int,
        found: Findings[list[StagedRows]],
        error: Exception,
        seconds: float,
    ) -> Commit:
        """Commit the failures of a search that did not find all of them, if the next batch can go on from there.

        Raises:
            NothingBuilds: All streams fail, or the work is a rebuild, which takes all that its log partitions have.
            TookTooLong: The search named no stream in these seconds.

        Raises the error itself where the search named no stream for another reason.
        """
        if found.end is End.ALL:
            raise NothingBuilds(cause(error)) from error
        late = f"The search for failing streams had not ended after {seconds:g} s"
        if not found.failures:
            if found.end is End.LATE:
                raise TookTooLong(f"{late}, and named none: {cause(error)}") from error
            if isinstance(error, PartFails):
                raise NothingBuilds(cause(error)) from error
            raise error
        if work.rebuild:
            raise NothingBuilds(
                f"{late}: {len(found.failures)} streams or more fail, and a rebuild has to name all: {cause(error)}"
            ) from error
        if found.end is End.LATE:
            logger.warning("%s. The %d that it named wait, the rest is read again.", late, len(found.failures))
        before = [rows for part in found.before for rows in part]
        return commit_failures(store, self.model, work, number, before, found.failures)

    def _commit(
        self,
        store: EventStore,
        work: Work,
        number: int,
        staged: Sequence[StagedRows],
        failures: Sequence[Failure] = (),
    ) -> Commit:
        if not work.rebuild:
            return commit(store, self.model, work, number, staged, failures)
        # the last log partition waits for all others
        with self.keeper(work.left) as keeper:
            return commit_rebuild(store, self.model, work, number, staged, failures, keeper)


def _errors_of_builds() -> tuple[type[Exception], ...]:
    return (PartFails, *build_errors())


def _may_be_of_events(store: EventStore, error: Exception) -> bool:
    if isinstance(error, PartFails):
        return True
    return not store.connection.closed and fault_of(error) is not Fault.SERVER
