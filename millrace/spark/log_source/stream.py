"""The reader of a stream: batches of the log, named by their begin and end in each log partition.

Here an offset is Spark's: `{"<log partition>": <position>, …}`, with the log partitions in order, because Spark keeps
it in its checkpoint and compares it as text. A failed batch is read again by its two offsets, with the same rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from .log import EventLog
from .options import EventLogOptions, InvalidOption
from .ranges import (
    DataLoss,
    LogRange,
    LogState,
    advance,
    chosen_partitions,
    held_ranges,
    held_text,
    positions,
    split,
    warn,
)
from .reading import EventLogInput, arrow_target, read_ranges

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class EventLogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the log. One instance plans for as long as the query lives; each task reads with its own instance."""

    def __init__(self, options: EventLogOptions, schema: "StructType") -> None:
        self._options = options
        self._schema = schema
        self._log = EventLog(options.dsn)
        # the end of a query with the trigger AvailableNow
        self._target: dict[int, int] | None = None
        # the end of the log at the last call
        self._latest: dict[int, int] | None = None
        # log partitions that end before the query's position, already warned about
        self._waiting: set[int] = set()

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return where a new query begins. Spark asks again when a query restarts before its first batch finished."""
        start = self._options.start
        times = [start] if isinstance(start, datetime) else []
        state = self._log.read_state(times, self._options.partitions)
        return _offset(positions("startingOffsets", start, self._options.partitions, state))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return `maxOffsetsPerTrigger`, or no limit."""
        limit = self._options.max_positions
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Remember the end of the log: the query reads up to there and ends."""
        self._target = self._ends(self._log.read_state())

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return the end of the batch that begins at `start`; `start` itself if nothing is pending.

        Raises:
            DataLoss: The log does not hold `start` any more, or not yet.
        """
        state = self._log.read_state()
        first = self._positions(start, state)
        self._latest = self._ends(state)
        target = self._latest if self._target is None else self._target
        for partition, position in first.items():
            held = state.held[partition]
            if held.from_position <= position <= held.to_position:
                self._waiting.discard(partition)
                continue
            wanted = f"the query stands at position {position} of log partition {partition}"
            if self._options.fail_on_data_loss:
                raise DataLoss(wanted, f"it holds {held_text(held)}")
            # For removed history `partitions` warns when it plans the batch. Beyond the log's end no batch is planned:
            # warn here, once.
            if position > held.to_position and partition not in self._waiting:
                self._waiting.add(partition)
                warn(wanted, f"it holds {held_text(held)}")
        begin = {p: max(position, state.held[p].from_position) for p, position in first.items()}
        return _offset(advance(begin, target, limit.max_rows if isinstance(limit, ReadMaxRows) else None))

    def reportLatestOffset(self) -> dict[str, int] | None:  # noqa: N802 - Spark's name
        """Return the end of the log at the last planning of a batch, for the query's progress."""
        return None if self._latest is None else _offset(self._latest)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Plan the tasks of a batch.

        Raises:
            DataLoss: The log does not hold the batch any more.
        """
        options = self._options
        state = self._log.read_state()
        ending = self._positions(end, state)
        ranges = [LogRange(p, first, ending[p]) for p, first in self._positions(start, state).items()]
        readable = self._readable(ranges, state.held)
        return [EventLogInput(task) for task in split(readable, options.max_records, options.min_partitions)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Read one task's ranges as Arrow batches."""
        if isinstance(partition, EventLogInput):
            yield from read_ranges(self._options, arrow_target(self._schema), partition.ranges, self._readable)

    def stop(self) -> None:
        """Close the connection that looks at the log."""
        self._log.close()

    def _ends(self, state: LogState) -> dict[int, int]:
        return {p: state.held[p].to_position for p in chosen_partitions(self._options.partitions, state.held)}

    def _positions(self, offset: Mapping[str, Any], state: LogState) -> dict[int, int]:
        """Read one of Spark's offsets.

        Raises:
            InvalidOption: It does not name exactly the log partitions that are chosen now.
        """
        found = {int(partition): position for partition, position in offset.items()}
        chosen = chosen_partitions(self._options.partitions, state.held)
        if sorted(found) != chosen:
            raise InvalidOption(
                "partitions", chosen, f"those of the query's checkpoint, {sorted(found)}, or a new checkpoint"
            )
        return found

    def _readable(self, ranges: Sequence[LogRange], held: Mapping[int, LogRange]) -> list[LogRange]:
        return held_ranges(ranges, held, fail_on_data_loss=self._options.fail_on_data_loss)


def _offset(positions_: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): position for partition, position in sorted(positions_.items())}
