"""The reader of a batch: an exact set of events, split over tasks."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from .log import EventLog
from .options import EventLogOptions
from .ranges import LogRange, held_ranges, require_end, split, stated_ranges, wanted_ranges
from .reading import EventLogInput, arrow_target, read_ranges

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class EventLogReader(DataSourceReader):
    """Splits the wanted ranges over tasks and reads them."""

    def __init__(self, options: EventLogOptions, schema: "StructType") -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks. If the options state both ends, Postgres is not asked here, and the tasks check the ends."""
        options = self._options
        ranges = stated_ranges(options)
        if ranges is None:
            times = [bound for bound in (options.start, options.end) if isinstance(bound, datetime)]
            with EventLog(options.dsn) as log:
                state = log.read_state(times, options.partitions)
            ranges = self._readable(wanted_ranges(options, state), state.held)
        return [EventLogInput(task) for task in split(ranges, options.max_records, options.min_partitions)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Read one task's ranges as Arrow batches."""
        # without partitions Spark passes one of its own
        if not isinstance(partition, EventLogInput):
            return
        yield from read_ranges(self._options, arrow_target(self._schema), partition.ranges, self._readable)

    def _readable(self, ranges: Sequence[LogRange], held: Mapping[int, LogRange]) -> list[LogRange]:
        require_end(ranges, held)
        return held_ranges(ranges, held, fail_on_data_loss=self._options.fail_on_data_loss)
