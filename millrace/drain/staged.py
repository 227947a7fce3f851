"""Builds the work claimed for one model by way of its staging table, and commits it without the streams that fail.

Not here: the path for few events (`collected`), the transactions (`commit`), Spark's tasks (`read`, `staging`), which
part is built next when something fails (`failing_streams`).
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import psycopg

from millrace.drain.build_errors import Blame, blame_of, build_errors, cause
from millrace.drain.commit import Commit, StagedBatch, Work, commit, commit_failures, commit_rebuild, staging, try_rows
from millrace.drain.failing_streams import End, Failure, Findings, PartFails, find_failing_streams
from millrace.drain.leases import lease_keeper
from millrace.drain.limits import Limits
from millrace.drain.misread import MisreadEvent, NothingBuilds, require_some, without_misread
from millrace.drain.parts import LeasedParts
from millrace.drain.read import leased_events
from millrace.drain.staging import stage_events, streams_at, without_failing
from millrace.event_store import Lease
from millrace.event_store.platform import PlatformStore
from millrace.read_models.built.plans import Events, FrameEvents
from millrace.read_models.stored.merge import StagedRows
from millrace.spark.bounded import TookTooLong, at_most

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StagedBuilds:
    """Builds and commits the work of one owner, one model at a time.

    Attributes:
        dsn: The event store.
        spark: Gives the session.
        owner: The owner of the leases; they are extended while Spark builds.
        lease_s: How long a lease lasts, in seconds.
        limits: How much runs side by side.
    """

    dsn: str
    spark: "Callable[[], SparkSession]"
    owner: str
    lease_s: int
    limits: Limits

    def build(self, store: PlatformStore, work: Work) -> Commit:
        """Build leased events and commit their rows; a rebuild writes only the rows that differ from the present ones.

        Raises:
            NothingBuilds: Nothing was committed, and no stream is to blame.
            LeaseLost: Another consumer took a lease over.
            StagedRowsLost: Staged rows are missing.

        Raises the errors of `build_errors` that events do not cause. `work.rebuilt` says what a rebuild has committed.
        """
        try:
            with self._keep_leases(work), staging(store.connection, work.model) as number:
                stage = partial(self.stage, work, number)
                rows, failures = without_misread(stage, partial(self.streams_at, work))
                require_some(store, self.owner, work.model.view, len(rows), failures)
                return _commit(store, replace(work, rows=StagedBatch(number, tuple(rows)), failures=failures))
        except NothingBuilds:
            raise
        except build_errors(PartFails) as error:
            # if a server is gone, or the declaration is wrong, the search would find no stream
            if not _may_be_of_events(store, error):
                raise
            until = time.monotonic() + self.limits.search_seconds_for(work.positions)
            return self._build_without_failing_streams(store, work, error, until)

    def stage(
        self, work: Work, batch: int, without: tuple[Failure, ...] = ()
    ) -> tuple[list[StagedRows], list[MisreadEvent]]:
        """Build all events, except failing streams from their event on, and stage the rows under a batch's number.

        Raises:
            TookTooLong: It took longer than it may.
        """
        spark, model = self.spark(), work.model
        with at_most(spark, self.limits.seconds_for(work.positions)):
            events: Events = leased_events(spark, self.dsn, work, self.limits, streams=bool(without))
            if without:
                events = FrameEvents(without_failing(events.frame, without), work.carrying)
            return stage_events(events, self.dsn, model, work.begun, batch, self.limits)

    def streams_at(self, work: Work, offsets: Sequence[int]) -> list[tuple[int, str, str, int]]:
        """Return log partition, decider, decider_id and offset of some events of claimed work."""
        spark = self.spark()
        with at_most(spark, self.limits.seconds_for(work.positions)):
            return streams_at(leased_events(spark, self.dsn, work, self.limits, streams=True).frame, offsets)

    def _keep_leases(self, work: Work) -> AbstractContextManager[None]:
        def waiting() -> list[Lease]:
            return [lease for lease in work.remaining if lease.partition != work.rebuilt.at]

        # a lease that ends with a commit would block the extension of the others
        return lease_keeper(self.dsn, work.model.view, waiting, self.lease_s)

    def _build_without_failing_streams(
        self, store: PlatformStore, work: Work, error: Exception, until: float
    ) -> Commit:
        """Find the streams that make a build or its merge fail, hand them over to their locks and commit the rest.

        The search ends at `until`, a time of the monotonic clock.
        """
        try:
            with self._keep_leases(work), staging(store.connection, work.model) as number:
                # Streams that Spark refuses are found without merges, which would cost as much again.
                attempt = partial(try_rows, store, work, number) if isinstance(error, psycopg.Error) else None
                with LeasedParts(self.spark, self.dsn, work, self.limits, number, attempt, until) as parts:
                    ranges = any(lease.from_position < lease.to_position for lease in work.remaining)
                    found = find_failing_streams(parts, ranges=ranges, retries=work.retries, to_the_end=work.rebuild)
                if found.blameless:
                    raise NothingBuilds(cause(error)) from error
                built = replace(work, failures=tuple(found.failures))
                if found.end is End.FOUND and (found.failures or parts.misread_failures):
                    failing = {one.stream for one in found.failures}
                    misread = tuple(one for stream, one in parts.misread_failures.items() if stream not in failing)
                    rows, failures = _batch(number, found.built), (*built.failures, *misread)
                    require_some(store, self.owner, work.model.view, len(rows), failures)
                    return _commit(store, replace(built, rows=rows, failures=failures))
                _require_some(work, found, error, self.limits.search_seconds_for(work.positions))
                return commit_failures(store, replace(built, rows=_batch(number, found.built_before_failure)))
        except psycopg.Error as merging:
            # Spark builds the rest now: Postgres refuses some of its rows. That search begins anew, once.
            if merging is error or isinstance(error, psycopg.Error) or not _may_be_of_events(store, merging):
                raise
            return self._build_without_failing_streams(store, work, merging, until)


def _commit(store: PlatformStore, work: Work) -> Commit:
    return commit_rebuild(store, work) if work.rebuild else commit(store, work)


def _batch(number: int, parts: list[list[StagedRows]]) -> StagedBatch:
    return StagedBatch(number, tuple(rows for part in parts for rows in part))


def _require_some(work: Work, found: Findings[list[StagedRows]], error: Exception, seconds: float) -> None:
    """Require that the next batch can continue a search that did not find all failing streams.

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


def _may_be_of_events(store: PlatformStore, error: Exception) -> bool:
    if isinstance(error, PartFails):
        return True
    return not store.connection.closed and blame_of(error) is not Blame.SERVER
