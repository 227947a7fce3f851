"""Claimed work as the search for failing streams sees it: in parts, which Spark builds."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Self
from uuid import uuid4

from millrace.drain.build_errors import Blame, blame_of, build_errors, cause
from millrace.drain.commit import Work
from millrace.drain.failing_streams import Failure, OutOfTime, Part, PartFails, Source, Stream
from millrace.drain.limits import Limits
from millrace.drain.misread import MisreadEvent, without_misread
from millrace.drain.read import leased_events
from millrace.drain.staging import (
    count_streams,
    events_of_part,
    list_offsets,
    list_streams,
    stage_events,
    streams_at,
    without_failing,
)
from millrace.read_models.built.plans import FrameEvents
from millrace.read_models.stored.merge import StagedRows
from millrace.spark.bounded import TookTooLong, at_most

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# applies staged rows and undoes it; raises PartFails if Postgres does not take them
Attempt = Callable[[Sequence[StagedRows]], None]


class LeasedParts:
    """The parts of work, as the search for failing streams asks for them, in a `with` block.

    Spark keeps the events until the end of the block, so that they are read once for any number of parts. Each
    method raises OutOfTime when the time of the search is over, and TookTooLong if a part exceeds a batch's time.

    Args:
        spark: Gives the session.
        dsn: The event store.
        work: The claimed work.
        limits: How much runs side by side.
        batch: The number under which rows are staged.
        attempt: Tries staged rows; None where that is not needed.
        until: The end of the search, by the monotonic clock.

    Attributes:
        misread_failures: The streams of events that were misread.
    """

    def __init__(
        self,
        spark: "Callable[[], SparkSession]",
        dsn: str,
        work: Work,
        limits: Limits,
        batch: int,
        attempt: Attempt | None,
        until: float,
    ) -> None:
        self._spark = spark
        self._dsn = dsn
        self._work = work
        self._limits = limits
        self._batch = batch
        self._attempt = attempt
        self._until = until
        self._cached: dict[Source, str] = {}
        self.misread_failures: dict[Stream, Failure] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._cached.values():
            # a session that is gone took the events with it
            with suppress(*build_errors()):
                self._spark().catalog.uncacheTable(name)
                self._spark().catalog.dropTempView(name)

    def build(self, part: Part) -> list[StagedRows]:
        """Build a part without misread events, note these in `misread_failures`, and stage its rows.

        Raises:
            PartFails: The part cannot be built, or its rows cannot be applied, maybe because of its events.
        """

        def stage(without: tuple[Failure, ...]) -> tuple[list[StagedRows], list[MisreadEvent]]:
            work, events = self._work, without_failing(self._events(part), without)
            with _part_fails(), self._in_time():
                return stage_events(
                    FrameEvents(events, work.carrying), self._dsn, work.model, work.begun, self._batch, self._limits
                )

        def at(offsets: Sequence[int]) -> list[tuple[int, str, str, int]]:
            with _part_fails(), self._in_time():
                return streams_at(self._events(part), offsets)

        staged, failures = without_misread(stage, at)
        if self._attempt is not None:
            self._attempt(staged)
        self.misread_failures |= {one.stream: one for one in failures}
        return staged

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

    @contextmanager
    def _in_time(self) -> Iterator[None]:
        """Let Spark take as long in a `with` block as for the batch, but not beyond the end of the search."""
        seconds_left = self._until - time.monotonic()
        if seconds_left <= 0:
            raise OutOfTime
        try:
            with at_most(self._spark(), min(seconds_left, self._limits.seconds_for(self._work.positions))):
                yield
        except TookTooLong as error:
            # a server that does not answer is another error
            if error.is_deaf or time.monotonic() < self._until:
                raise
            raise OutOfTime from error

    def _events(self, part: Part) -> "DataFrame":
        spark = self._spark()
        if part.of not in self._cached:
            # a view's plan is made once: planning asks Python and Postgres. The name is unique, also in a shared
            # session
            name = f"millrace_{uuid4().hex}"
            events = leased_events(
                spark,
                self._dsn,
                self._work,
                self._limits,
                new=part.of != "retries",
                retries=part.of != "range",
                streams=True,
            )
            events.frame.createTempView(name)
            self._cached[part.of] = name
            spark.catalog.cacheTable(name)
        return events_of_part(part, spark.table(self._cached[part.of]))


@contextmanager
def _part_fails() -> Iterator[None]:
    """Raise errors that events may have caused as PartFails."""
    try:
        yield
    except build_errors() as error:
        fault = blame_of(error)
        if fault is Blame.SERVER:
            raise
        raise PartFails(cause(error), certain=fault is Blame.EVENTS) from error
