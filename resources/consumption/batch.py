"""The events that leases deliver, as Spark builds them: all at once, or in parts, by which failing streams are found.

Belongs here: staging one batch, and looking at parts of it. Not here: which part is next (`failing_streams`), reading
and staging themselves (`staging`), plans (`read_models.built.plans`), the commit (`commit`).
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Self
from uuid import uuid4

from millrace.resources.archive.history import LogHistory
from millrace.resources.consumption.build_errors import Fault, build_errors, cause, fault_of, in_one_line
from millrace.resources.consumption.failing_streams import Failure, OutOfTime, Part, PartFails, Source, Stream
from millrace.resources.consumption.limits import DEFAULTS, Limits
from millrace.resources.consumption.read import leased_events
from millrace.resources.consumption.staging import (
    Staged,
    begun_partitions,
    count_streams,
    events_of,
    list_offsets,
    list_streams,
    stage_batch,
    stage_events,
)
from millrace.resources.event_store import Lease, LockedPartition
from millrace.resources.read_models.built.plans import FrameEvents
from millrace.resources.read_models.declared.declaration import ReadModel
from millrace.resources.read_models.failing.events import failing_events
from millrace.resources.read_models.stored.merge import StagedRows
from millrace.resources.spark.bounded import TookTooLong, at_most

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# applies staged rows and undoes it; raises PartFails if Postgres does not take them
Attempt = Callable[[Sequence[StagedRows]], None]


class LeasedBatch:
    """The events that some leases deliver to a read model.

    Args:
        spark: Gives the session.
        dsn: The event store.
        model: The read model.
        leases: The leases.
        locked: The log partitions whose streams have locks; none for a rebuild, which reads all streams.
        history: Where a rebuild reads the events from; None: from Postgres alone.
        limits: How much runs side by side.
    """

    def __init__(
        self,
        spark: "Callable[[], SparkSession]",
        dsn: str,
        model: ReadModel,
        leases: Sequence[Lease],
        locked: Sequence[LockedPartition],
        history: LogHistory | None = None,
        limits: Limits = DEFAULTS,
    ) -> None:
        self.spark = spark
        self.dsn = dsn
        self.model = model
        self.leases = leases
        self.locked = locked
        self.begun = begun_partitions(leases, locked)
        self.history = history
        self.limits = limits

    def stage(self, batch: int, without: tuple[Failure, ...] = ()) -> Staged:
        """Build all events, but of failing streams from their event on, and stage their rows under a batch's number.

        Raises:
            PartFails: More events are misread than one list has.
            TookTooLong: It took longer than it may.
        """
        spark, limits = self.spark(), self.limits
        with at_most(spark, self.seconds):
            return stage_batch(
                spark, self.dsn, self.model, self.leases, batch, self.locked, self.history, limits, without
            )

    def of(self, partitions: Collection[int]) -> Self:
        """Return the same events of some log partitions."""
        if len(partitions) == len(self.leases):
            return self
        leases = [lease for lease in self.leases if lease.partition in partitions]
        return type(self)(self.spark, self.dsn, self.model, leases, self.locked, self.history, self.limits)

    @property
    def retries(self) -> bool:
        """Whether streams that failed before are tried again."""
        return any(locked.retries for locked in self.locked)

    @property
    def seconds(self) -> float:
        """How long Spark may take for the batch, or for a part of it."""
        return self.limits.seconds_for(self._positions)

    @property
    def search_seconds(self) -> float:
        """How long a search for the streams that fail may take, in all."""
        return self.limits.search_seconds_for(self._positions)

    @property
    def _positions(self) -> int:
        return sum(lease.to_position - lease.from_position for lease in self.leases)

    @contextmanager
    def parts(self, batch: int, attempt: Attempt | None, until: float) -> "Iterator[LeasedParts]":
        """Yield the batch's parts; rows are staged under the number of the batch, and tried by `attempt`, if any.

        Spark keeps the events until the end of the block, so that they are read once, however many parts are built. The
        parts can be looked at until that time of the monotonic clock.
        """
        parts = LeasedParts(self, batch, attempt, until)
        try:
            yield parts
        finally:
            parts.forget()


class LeasedParts:
    """The parts of a leased batch, as the search for failing streams asks for them: a `failing_streams.Batch`.

    Each method raises OutOfTime when the time of the search is over, and TookTooLong if a part takes longer than the
    whole batch may.
    """

    def __init__(self, leased: LeasedBatch, batch: int, attempt: Attempt | None, until: float) -> None:
        self._leased = leased
        self._batch = batch
        self._attempt = attempt
        self._until = until
        self._kept: dict[Source, str] = {}

    def build(self, part: Part) -> list[StagedRows]:
        """Build a part and stage its rows.

        Raises:
            PartFails: The part cannot be built, or its rows cannot be applied, maybe because of its events.
        """
        with _part_fails():
            staged = self._stage(self._events(part))
        if self._attempt is not None:
            self._attempt(staged)
        return staged

    def tell(self, part: Part) -> list[Failure]:
        """Return the streams of a part that fail at single events, each with the first one.

        Raises:
            PartFails: An event does not even let it look.
        """
        leased, events = self._leased, self._events(part)
        with _part_fails(), self._in_time():
            failing = failing_events(events, leased.model, leased.dsn, leased.begun)
        return [
            Failure(Stream(one.partition, one.decider, one.decider_id), one.offset, in_one_line(one.error))
            for one in failing
        ]

    def _stage(self, events: "DataFrame") -> list[StagedRows]:
        leased = self._leased
        with self._in_time():
            staged = stage_events(
                FrameEvents(events), leased.dsn, leased.model, leased.begun, self._batch, leased.limits
            )
        if staged.misread:
            raise PartFails(in_one_line(min(staged.misread, key=lambda event: event.offset).error))
        return staged.rows

    def is_empty(self, part: Part) -> bool:
        """Return whether a part has no events."""
        with self._in_time():
            return not self._events(part).limit(1).collect()

    def count(self, part: Part) -> int:
        """Return about how many streams a part has."""
        with self._in_time():
            return count_streams(self._events(part))

    def streams(self, part: Part, limit: int) -> list[Stream]:
        """Return the streams of a part, `limit` at most."""
        with self._in_time():
            return list_streams(self._events(part), limit)

    def offsets(self, part: Part) -> Sequence[int]:
        """Return all offsets of a part's events, rising, and maybe numbers between them."""
        with self._in_time():
            return list_offsets(self._events(part))

    def forget(self) -> None:
        """Let Spark drop the events."""
        for name in self._kept.values():
            # a session that is gone took the events with it
            with suppress(*build_errors()):
                self._leased.spark().catalog.uncacheTable(name)
                self._leased.spark().catalog.dropTempView(name)

    @contextmanager
    def _in_time(self) -> Iterator[None]:
        """Let Spark take as long in a `with` block as for the batch, but not beyond the end of the search."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise OutOfTime
        try:
            with at_most(self._leased.spark(), min(left, self._leased.seconds)):
                yield
        except TookTooLong as error:
            # a server that does not answer is another matter
            if error.is_deaf or time.monotonic() < self._until:
                raise
            raise OutOfTime from error

    def _events(self, part: Part) -> "DataFrame":
        leased, spark = self._leased, self._leased.spark()
        if part.of not in self._kept:
            # a view, whose plan is made once: planning asks Python and Postgres. Its name is no other's in a shared
            # session
            name = f"millrace_{uuid4().hex}"
            events = leased_events(
                spark,
                leased.dsn,
                leased.model,
                leased.leases,
                leased.locked,
                leased.history,
                leased.limits,
                new=part.of != "retries",
                retries=part.of != "range",
                streams=True,
            )
            events.frame.createTempView(name)
            self._kept[part.of] = name
            spark.catalog.cacheTable(name)
        return events_of(part, spark.table(self._kept[part.of]))


@contextmanager
def _part_fails() -> Iterator[None]:
    """Raise errors whose reason may be events as PartFails."""
    try:
        yield
    except build_errors() as error:
        fault = fault_of(error)
        if fault is Fault.SERVER:
            raise
        raise PartFails(cause(error), certain=fault is Fault.EVENTS) from error
