"""One consumer of one view: a drain of that view by itself, and rebuilds."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.drain.commit import Commit
from millrace.drain.limits import DEFAULTS, LEASE_S, Limits
from millrace.drain.loop import Drain
from millrace.drain.report import DrainReport, no_progress
from millrace.read_models.declared.declaration import ReadModel

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OnCommit = Callable[[Commit], None]


class ViewDrain(Drain):
    """One consumer of the version of a read model that its declaration stands for; it makes that version.

    The end of a `with` block closes it. Arguments are those of `Drain`.
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
        limits: Limits = DEFAULTS,
    ) -> None:
        super().__init__(dsn, [model], spark, owner, lease_s=lease_s, archive=archive, limits=limits, alone=True)

    @property
    def model(self) -> ReadModel:
        """The read model as the version that this consumes."""
        (member,) = self.members
        assert member.model is not None
        return member.model

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

        A batch has `batch_events` at most; None: as many as suit the session. A stream that fails waits by itself and
        is retried later. A drain that can build nothing reports so at once. It ends when the store gets a new upcast:
        the next drain reads events with it.

        A model that is made after the log was shortened is first rebuilt from the archive, log partition by log
        partition. A version that does not serve yet begins to serve as soon as it has caught up with the serving one.

        Raises:
            PartitionsFailed: In the end, if some log partitions made no progress.
            DependentObjects: In the end, if something in the database keeps this version from serving.
            Unreachable: Spark went away.
        """
        (member,) = self.members
        report = member.report = DrainReport()
        self._on_commit = lambda _, commit: on_commit(commit)
        self._most, self._is_whole = batch_events, False
        self._indexing.begin(self._store.connection, self.model)
        self.run(budget_s=budget_s, idle_s=idle_s, stop=stop)
        if report.failed:
            raise no_progress(self.model.name, report.failed)
        if report.in_the_way:
            raise report.in_the_way
        return report

    def rebuild(self, *partitions: int, wait_s: float = 60, stop: threading.Event | None = None) -> Commit:
        """Build log partitions anew from all their events, all or none of them, and write only the differences.

        Each is written in a transaction of its own: if a rebuild dies, some are rebuilt, and the others are as before.

        The archive gives the events that it has, Postgres those that are not archived.

        Streams that fail are handed over to their locks as in a drain; streams that failed before and do not now are
        freed. Discarded events are tried again, too, but not those that were purged since. Waits up to `wait_s`
        seconds for a drain that has one of the log partitions leased at this moment.

        Raises:
            HistoryMissing: A log partition no longer holds its first events, and none of them is archived.
            LogIncomplete: Only some of the missing events are archived.
            ForeignArchive: The folder with the missing events is not this store's archive.
            ArchiveDamaged: A file with missing events is not there.
            PartitionsFailed: A log partition cannot be built.
            NotOwned: The model's tables belong to a role that the login is not a member of.
            PartitionLeased: Another consumer held the lease all that time.
            LeaseLost: Another consumer took the lease over during the rebuild.
        """
        return self._rebuild(self.members[0], partitions, wait_s, stop or threading.Event())
