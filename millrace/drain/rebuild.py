"""Rebuilds log partitions of a read model: from all their events, in archive and Postgres."""

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg

from millrace.archive.history import LogHistory, log_history
from millrace.drain.build_errors import build_errors, cause, is_gone, spark_is_gone
from millrace.drain.commit import Commit, Work
from millrace.drain.leases import lease_keeper
from millrace.drain.misread import NothingBuilds
from millrace.drain.report import PartitionsFailed
from millrace.drain.staged import StagedBuilds
from millrace.errors import MillraceError, NotInFlight, PartitionLeased
from millrace.event_store import Lease
from millrace.event_store.platform import PlatformStore
from millrace.patience import while_held
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.stored.tables import require_ownership, require_whole_log
from millrace.read_models.stored.versions import purged_discards
from millrace.spark.bounded import TookTooLong


@dataclass(frozen=True)
class Rebuild:
    """A way to rebuild log partitions.

    Attributes:
        store: The event store, over the consumer's connection.
        builds: Builds and commits under the leases of an owner.
        model: The version that is rebuilt.
        declared: The read model as it is declared.
        archive: The folder of the archive; None: events are read from Postgres alone.
        marks: The position up to which each log partition is read; None for all events.
    """

    store: PlatformStore
    builds: StagedBuilds
    model: ReadModel
    declared: ReadModel
    archive: Path | None
    marks: Sequence[int] | None = None

    def run(self, partitions: Sequence[int], wait_s: float, stop: threading.Event) -> Commit:
        """Build log partitions together, and write one after the other; see `ViewDrain.rebuild`."""
        require_ownership(self.store.connection, self.model)
        try:
            waiting = while_held(PartitionLeased, wait_s, stop=stop)
            builds, view, leases = self.builds, self.model.view, list[Lease]()
            # keep the leases taken so far while waiting for the next one
            with lease_keeper(builds.dsn, view, lambda: tuple(leases), builds.lease_s):
                # in order, so that two rebuilds never wait for each other
                for partition in sorted(set(partitions)):
                    leases.append(waiting(self.store.claim_partition, view, partition, builds.owner, builds.lease_s))
            # the leases keep the history whole from now on
            history = self._history(leases)
            # from the first event on, even if the log begins later
            whole = tuple(replace(lease, from_position=0) for lease in leases)
            ends = {lease.partition: self._end(lease) for lease in leases}
            return self._build(Work(self.model, whole, rebuild=True, history=history, ends=ends))
        except (Exception, KeyboardInterrupt):
            with suppress(psycopg.Error, MillraceError):
                self.store.release_owner(self.builds.owner)
            raise

    def _history(self, leases: Sequence[Lease]) -> LogHistory | None:
        """Return where the events of leased log partitions are read from; None: from Postgres alone.

        The events stay there until the leases end: the log is not shortened below the beginning of the history, and a
        replaced file stays for an hour.

        Raises the errors that `ViewDrain.rebuild` lists for missing events. If Postgres has all events, the rebuild
        warns instead, and proceeds without the archive.
        """
        history = None
        if self.archive is not None:
            partitions = [lease.partition for lease in leases]
            history = log_history(self.store.connection, self.archive, partitions)
            history = replace(
                history,
                # a file may extend beyond the lease
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

    def _build(self, work: Work) -> Commit:
        try:
            return self.builds.build(self.store, work)
        except (NothingBuilds, TookTooLong) as error:
            raise self._failed(work.remaining, str(error)) from error
        except psycopg.Error:
            raise
        except build_errors() as error:
            if is_gone(error):
                raise spark_is_gone(error) from error
            raise self._failed(work.remaining, cause(error)) from error
        except NotInFlight as error:
            why = "A stream fails at an event that only the archive has, so that no later drain could try it again"
            raise self._failed(work.remaining, f"{why}: {error.detail}") from error

    def _failed(self, leases: Sequence[Lease], why: str) -> PartitionsFailed:
        partitions = ", ".join(f"p{lease.partition:02}" for lease in leases)
        return PartitionsFailed(
            f"Read model {self.model.name}: log partition {partitions} was not built.",
            causes={lease.partition: why for lease in leases},
            detail=why,
            hint="Correct the declaration or the environment; the rows from before are kept.",
        )
