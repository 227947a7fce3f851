"""The events that leases deliver, as Spark builds them: all at once, or in parts, by which failing streams are found.

Belongs here: staging one batch, and looking at parts of it. Not here: which part is next (`failing_streams`), reading
and staging themselves (`staging`), plans (`read_models.plans`), the commit (`commit`).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from uuid import uuid4

from millrace.resources.archive.history import LogHistory
from millrace.resources.consumption.build_errors import Fault, build_errors, cause, fault_of, in_one_line
from millrace.resources.consumption.failing_streams import Failure, Part, PartFails, Source, Stream
from millrace.resources.consumption.limits import Limits
from millrace.resources.consumption.staging import (
    DEFAULTS,
    count_streams,
    events_of,
    list_offsets,
    list_streams,
    read_events,
    stage_batch,
    stage_events,
)
from millrace.resources.event_store import Lease, LockedPartition
from millrace.resources.read_models.declaration import ReadModel
from millrace.resources.read_models.failing_events import failing_events
from millrace.resources.read_models.merge import StagedRows

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
        self.history = history
        self.limits = limits

    def stage(self, batch: int) -> list[StagedRows]:
        """Build all events and stage their rows under the number of a batch; return the staged rows of each task."""
        spark, limits = self.spark(), self.limits
        return stage_batch(spark, self.dsn, self.model, self.leases, batch, self.locked, self.history, limits)

    @contextmanager
    def parts(self, batch: int, attempt: Attempt | None) -> "Iterator[LeasedParts]":
        """Yield the batch's parts; rows are staged under the number of the batch. `attempt`, if given, tries them, too.

        Spark keeps the events until the end of the block, so that they are read once, however many parts are built.
        """
        parts = LeasedParts(self, batch, attempt)
        try:
            yield parts
        finally:
            parts.forget()


class LeasedParts:
    """The parts of a leased batch, as the search for failing streams asks for them: a `failing_streams.Batch`."""

    def __init__(self, leased: LeasedBatch, batch: int, attempt: Attempt | None) -> None:
        self._leased = leased
        self._batch = batch
        self._attempt = attempt
        self._kept: dict[Source, str] = {}

    def build(self, part: Part) -> list[StagedRows]:
        """Build a part and stage its rows.

        Raises:
            PartFails: The part cannot be built, or its rows cannot be applied, maybe because of its events.
        """
        leased = self._leased
        with _part_fails():
            events = self._events(part)
            staged = stage_events(events, leased.dsn, leased.model, leased.leases, self._batch, leased.limits)
        if self._attempt is not None:
            self._attempt(staged)
        return staged

    def tell(self, part: Part) -> list[Failure]:
        """Return the streams of a part that fail at single events, each with the first of these; build nothing.

        Raises:
            PartFails: An event does not even let it look.
        """
        leased = self._leased
        with _part_fails():
            failing = failing_events(self._events(part), leased.model, leased.dsn, leased.leases)
        return [
            Failure(Stream(one.partition, one.decider, one.decider_id), one.offset, in_one_line(one.error))
            for one in failing
        ]

    def is_empty(self, part: Part) -> bool:
        """Return whether a part has no events."""
        return not self._events(part).limit(1).collect()

    def count(self, part: Part) -> int:
        """Return about how many streams a part has."""
        return count_streams(self._events(part))

    def streams(self, part: Part, limit: int) -> list[Stream]:
        """Return the streams of a part, `limit` at most."""
        return list_streams(self._events(part), limit)

    def offsets(self, part: Part) -> Sequence[int]:
        """Return all offsets of a part's events, rising, and maybe numbers between them."""
        return list_offsets(self._events(part))

    def forget(self) -> None:
        """Let Spark drop the events."""
        for name in self._kept.values():
            # a session that is gone took the events with it
            with suppress(*build_errors()):
                self._leased.spark().catalog.uncacheTable(name)
                self._leased.spark().catalog.dropTempView(name)

    def _events(self, part: Part) -> "DataFrame":
        leased, spark = self._leased, self._leased.spark()
        if part.of not in self._kept:
            # a view, whose plan is made once: planning asks Python and Postgres. Its name is no other's in a shared
            # session
            name = f"millrace_{uuid4().hex}"
            events = read_events(
                spark,
                leased.dsn,
                leased.model,
                leased.leases,
                leased.locked,
                part.of,
                streams=True,
                history=leased.history,
                limits=leased.limits,
            )
            events.createTempView(name)
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
