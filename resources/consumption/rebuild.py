"""Rebuilds log partitions of a read model: from all their events, in archive and Postgres.

Belongs here: leasing whole log partitions, the place of their events, the error of a failure. Not here: building them
and writing what differs (`builder`, `commit`), the loop of a drain (`consumer`).
"""

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg
from tenacity import Retrying, retry_if_exception_type, sleep_using_event, stop_after_delay, wait_exponential

from millrace.resources.archive.history import LogHistory, log_history
from millrace.resources.consumption.build_errors import build_errors, cause, is_gone, spark_is_gone
from millrace.resources.consumption.builder import Builder, NothingBuilds
from millrace.resources.consumption.commit import Commit, Work
from millrace.resources.consumption.report import PartitionsFailed
from millrace.resources.errors import MillraceError, NotInFlight, PartitionLeased
from millrace.resources.event_store import EventStore, Lease
from millrace.resources.read_models.declared.declaration import ReadModel
from millrace.resources.read_models.stored.tables import require_ownership, require_whole_log
from millrace.resources.read_models.stored.versions import purged_discards
from millrace.resources.spark.bounded import TookTooLong


@dataclass(frozen=True)
class Rebuild:
    """A way to rebuild log partitions.

    Attributes:
        store: The event store, over the consumer's connection.
        builder: Builds and commits, for the version that is rebuilt.
        declared: The read model as it is declared.
        owner: The name under which leases are taken.
        archive: The folder of the archive; None: events are read from Postgres alone.
        marks: Up to which position each log partition is read; None for all that there is.
    """

    store: EventStore
    builder: Builder
    declared: ReadModel
    owner: str
    archive: Path | None
    marks: Sequence[int] | None = None

    def run(self, partitions: Sequence[int], wait_s: float, stop: threading.Event) -> Commit:
        """Build log partitions together, and write one after the other; see `Consumer.rebuild`."""
        require_ownership(self.store.connection, self.builder.model)
        try:
            leases = self._lease(partitions, wait_s, stop)
            # the leases keep the history whole from now on
            history = self._history(leases)
            # from the first event on, wherever the log begins
            whole = [replace(lease, from_position=0) for lease in leases]
            return self._build(whole, [replace(lease, to_position=self._end(lease)) for lease in whole], history)
        except (Exception, KeyboardInterrupt):
            with suppress(psycopg.Error, MillraceError):
                self.store.release_owner(self.owner)
            raise

    def _lease(self, partitions: Sequence[int], wait_s: float, stop: threading.Event) -> tuple[Lease, ...]:
        waiting = Retrying(
            retry=retry_if_exception_type(PartitionLeased),
            wait=wait_exponential(multiplier=0.05, max=1),
            stop=stop_after_delay(wait_s),
            sleep=sleep_using_event(stop),
            reraise=True,
        )
        view, lease_s = self.builder.model.view, self.builder.lease_s
        # the leases that there are already are kept while the next one is waited for
        with self.builder.keeper() as keeper:
            # in order, so that two rebuilds never wait for each other
            for partition in sorted(set(partitions)):
                keeper.add(waiting(self.store.claim_partition, view, partition, self.owner, lease_s))
        return keeper.leases

    def _history(self, leases: Sequence[Lease]) -> LogHistory | None:
        """Return where the events of leased log partitions are read from; None: from Postgres alone.

        The events stay there until the leases end: the log is not shortened below the beginning of the history, and a
        replaced file stays for an hour.

        Raises the errors that `Consumer.rebuild` lists for missing events. If Postgres has all events, the rebuild
        warns instead, and goes on without the archive.
        """
        history = None
        if self.archive is not None:
            partitions = [lease.partition for lease in leases]
            history = log_history(self.store.connection, self.archive, partitions)
            history = replace(
                history,
                # a file may go beyond the lease
                cuts={lease.partition: (0, self._end(lease)) for lease in leases},
                given_up=purged_discards(self.store.connection, self.declared.view),
            )
        if history is None or not history.files:
            for lease in leases:
                require_whole_log(self.store.connection, lease.partition)
            return None
        return history.readable()

    def _end(self, lease: Lease) -> int:
        return lease.to_position if self.marks is None else min(lease.to_position, self.marks[lease.partition])

    def _build(self, leases: Sequence[Lease], ranges: Sequence[Lease], history: LogHistory | None) -> Commit:
        work = Work(tuple(leases), rebuild=True, started=time.monotonic())
        try:
            return self.builder.rebuild(self.store, work, ranges, history)
        except (NothingBuilds, TookTooLong) as error:
            raise self._failed(work.left, str(error)) from error
        except psycopg.Error:
            raise
        except build_errors() as error:
            if is_gone(error):
                raise spark_is_gone(error) from error
            raise self._failed(work.left, cause(error)) from error
        except NotInFlight as error:
            why = "A stream fails at an event that only the archive has, so that no later drain could try it again"
            raise self._failed(work.left, f"{why}: {error.detail}") from error

    def _failed(self, leases: Sequence[Lease], why: str) -> PartitionsFailed:
        named = ", ".join(f"p{lease.partition:02}" for lease in leases)
        return PartitionsFailed(
            f"Read model {self.builder.model.name}: log partition {named} was not built.",
            causes={lease.partition: why for lease in leases},
            detail=why,
            hint="Correct the declaration or the environment; the rows from before are kept.",
        )
