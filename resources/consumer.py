"""Consumes the log into read models: claim → build in Spark → one transaction of merge and checkpoint.

Belongs here: the loop of a drain, the rebuild of a log partition, leases kept alive, what a crash or a lost lease means.
Not here: Spark's plan (`read_model_build`), the SQL of the tables (`read_model_tables`), Dagster.

Effect and position commit together: whatever dies, whenever, the rows and the checkpoint are both there or both not, and the
events of a batch that did not commit are read again. A commit whose reply was lost needs no care: the next claim starts at
the checkpoint.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
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

from resources.errors import LeaseLost, MillraceError, PartitionLeased, Unreachable
from resources.event_store import EventStore, Lease
from resources.read_model import ReadModel
from resources.read_model_build import stage_batch
from resources.read_model_tables import (
    HistoryMissing,
    StagedRows,
    StagedRowsLost,
    ensure_tables,
    forget_batch,
    forget_dead_batches,
    merge_batch,
    next_batch,
    replace_partition,
    require_ownership,
    require_whole_log,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH_EVENTS = 500_000
LEASE_S = 60
RECONNECT_S = 60
SWAP_ATTEMPTS = 5
# what happens to a transaction among others: the batch is claimed again at once
_CONFLICTS = (
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
    psycopg.errors.LockNotAvailable,
)


class PartitionsFailed(MillraceError):
    """Log partitions that made no progress because their events cannot be built."""


@dataclass(frozen=True)
class Commit:
    """A batch that was committed: its ranges, the rows of the state it changed, and how long it took."""

    leases: tuple[Lease, ...]
    rows: int
    seconds: float

    @property
    def events(self) -> int:
        """How many log positions it covered."""
        return sum(lease.to_offset - lease.from_offset for lease in self.leases)


@dataclass
class DrainReport:
    """What a drain did."""

    batches: int = 0
    events: int = 0
    rows: int = 0
    busy_s: float = 0.0
    failed: dict[int, str] = field(default_factory=dict)

    def add(self, commit: Commit) -> None:
        """Count a commit."""
        self.batches += 1
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
    """

    def __init__(
        self, dsn: str, model: ReadModel, spark: "Callable[[], SparkSession]", owner: str, *, lease_s: int = LEASE_S
    ) -> None:
        self.dsn = dsn
        self.model = model
        self.owner = owner
        self._spark = spark
        self._lease_s = lease_s
        self._connection = _connect(dsn)

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
            ensure_tables(self._connection, self.model)
            self._store.attach_consumer(self.model.view)
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

        A log partition whose events cannot be built does not hold up the others: it is put aside until its lease ends,
        then tried again.

        Raises:
            PartitionsFailed: In the end, if some log partitions made no progress.
            Unreachable: Spark went away.
        """
        stop = stop or threading.Event()
        report = DrainReport()
        started = busy_at = time.monotonic()
        while not stop.is_set() and time.monotonic() - started < budget_s:
            try:
                leases = self._store.claim_batch(self.model.view, self.owner, batch_events, self._lease_s)
                if not leases:
                    if time.monotonic() - busy_at >= idle_s:
                        break
                    stop.wait(self.model.pooling_delay_s)
                    continue
                for commit in self._consume(leases, report.failed):
                    report.add(commit)
                    for lease in commit.leases:
                        report.failed.pop(lease.partition, None)
                    on_commit(commit)
            except psycopg.OperationalError:
                if not self._connection.closed:
                    raise  # connecting anew would not help
                self._reconnect()
                self._store.release_owner(self.owner)
            busy_at = time.monotonic()
        if report.failed:
            raise PartitionsFailed(
                f"Read model {self.model.name}: {len(report.failed)} log partition(s) made no progress.",
                detail="\n".join(f"p{partition:02}: {error}" for partition, error in sorted(report.failed.items())),
                hint="Correct the declaration or the environment; the events are kept and are read again.",
            )
        return report

    def rebuild(self, partition: int, *, wait_s: float = 60, stop: threading.Event | None = None) -> Commit:
        """Build one log partition anew from all its events and swap it in.

        Waits up to `wait_s` seconds for a drain that has the partition leased at this moment.

        Raises:
            HistoryMissing: The log partition does not hold its first events any more.
            NotOwned: The model's tables belong to somebody else.
            PartitionLeased: Somebody held the lease all that time.
            LeaseLost: Somebody took the lease over while this was building.
        """
        require_ownership(self._connection, self.model)
        waiting = Retrying(
            retry=retry_if_exception_type(PartitionLeased),
            wait=wait_exponential(multiplier=0.05, max=1),
            stop=stop_after_delay(wait_s),
            sleep=sleep_using_event(stop or threading.Event()),
            reraise=True,
        )
        started = time.monotonic()
        lease = waiting(self._store.claim_partition, self.model.view, partition, self.owner, self._lease_s)
        try:
            require_whole_log(self._connection, partition)  # now that the lease keeps it whole
        except HistoryMissing:
            self._store.release_batch(self.model.view, [lease])
            raise
        swapping = Retrying(
            retry=retry_if_exception_type(psycopg.errors.LockNotAvailable),
            stop=stop_after_attempt(SWAP_ATTEMPTS),
            reraise=True,
        )
        with self._staged([lease]) as (batch, staged):
            for attempt in swapping:
                with attempt, self._connection.transaction():
                    self._store.commit_batch(self.model.view, [lease])
                    rows = replace_partition(self._connection, self.model, partition, batch, staged)
        return Commit((lease,), rows, time.monotonic() - started)

    def _consume(self, leases: Sequence[Lease], failed: dict[int, str]) -> Iterator[Commit]:
        """Build and commit leased ranges together; where that fails, each log partition alone."""
        try:
            yield self._build_and_commit(leases)
        except (LeaseLost, StagedRowsLost, *_CONFLICTS):
            self._store.release_batch(self.model.view, leases)  # read again by whoever claims next
        except _build_errors() as error:
            if isinstance(error, psycopg.Error) and self._connection.closed:
                raise  # nothing is wrong with the batch
            if _is_gone(error):
                raise Unreachable(
                    "The Spark Connect server went away in the middle of a drain.",
                    detail=_cause(error),
                    hint="Nothing is lost: the next drain reads the batch again when the server is back.",
                ) from error
            if len(leases) == 1:
                # keeps its lease: nobody tries again before it ends
                failed[leases[0].partition] = _cause(error)
                return
            for lease in leases:
                yield from self._consume([lease], failed)

    def _build_and_commit(self, leases: Sequence[Lease]) -> Commit:
        started = time.monotonic()
        with self._staged(leases) as (batch, staged), self._connection.transaction():
            self._store.commit_batch(self.model.view, leases)
            rows = merge_batch(self._connection, self.model, batch, staged)
        return Commit(tuple(leases), rows, time.monotonic() - started)

    @contextmanager
    def _staged(self, leases: Sequence[Lease]) -> Iterator[tuple[int, list[StagedRows]]]:
        """Build leased ranges in Spark; what was staged for a commit that fails is removed at once, not by age."""
        batch = next_batch(self._connection)
        try:
            with self._kept_alive(leases):
                staged = stage_batch(self._spark(), self.dsn, self.model, leases, batch)
            yield batch, staged
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


def _build_errors() -> tuple[type[Exception], ...]:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return (PySparkException, Py4JError, psycopg.Error)


def _is_gone(error: Exception) -> bool:
    """Whether Spark's server, or our session in it, does not exist any more, so that no other batch can be built either."""
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    if not isinstance(error, SparkConnectGrpcException):
        return False
    code = error.getGrpcStatusCode()
    return (code is not None and code.name == "UNAVAILABLE") or (error.getCondition() or "").startswith(
        "INVALID_HANDLE.SESSION"
    )


def _cause(error: Exception) -> str:
    """The one line of Spark's many that says what is wrong: no stack of Java, and of a Python stack the last line."""
    text = str(error).split("JVM stacktrace:")[0]
    said = [line for line in text.splitlines() if line.strip() and not line.startswith((" ", "Traceback"))]
    return said[-1 if "Traceback" in text else 0] if said else type(error).__name__
