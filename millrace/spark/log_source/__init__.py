"""The Spark data source `event_log`: the log as rows, in batches and as a stream, through ADBC as Arrow, without a JAR.

This folder is complete: it needs pyspark, pyarrow, adbc-driver-postgresql and psycopg, and nothing else of Millrace.
If Spark's workers cannot import it, call `pyspark.cloudpickle.register_pickle_by_value(event_log_source)` before
`register`: then Spark sends its code along.

    spark.dataSource.register(EventLogSource)
    spark.read.format("event_log").option("dsn", "postgresql://…").load()
    spark.readStream.format("event_log").option("dsn", "postgresql://…").load()

| option                   | default    | meaning                                                                |
|--------------------------|------------|------------------------------------------------------------------------|
| `dsn`                    | required   | the event store's Postgres                                             |
| `startingOffsets`        | `earliest` | `earliest`, `latest` (stream only), or JSON {"0": <first position>, …} |
| `startingTimestamp`      | none       | instead: from the first event appended at or after a time              |
| `endingOffsets`          | `latest`   | batch: `latest`, or JSON {"0": <position after the last>, …}           |
| `endingTimestamp`        | none       | batch, instead: up to the first event appended at or after a time      |
| `maxOffsetsPerTrigger`   | no limit   | stream: how many positions a batch reads at most                       |
| `failOnDataLoss`         | `true`     | `false`: warn and go on with what the log holds                        |
| `minPartitions`          | 1          | how many Spark tasks read at least, unless positions are fewer         |
| `maxRecordsPerPartition` | 500000     | how many positions one Spark task reads at most                        |
| `partitions`             | all        | JSON list of log partitions                                            |
| `deciders`               | all        | JSON list of deciders                                                  |
| `events`                 | all        | JSON list of events                                                    |
| `columns`                | all        | JSON list of columns, of `COLUMNS`                                     |
| `extract`                | none       | JSON {"<column>": ["<key>", …], …}: fields of `data` by path, as text  |
| `upcasts`                | none       | JSON [{"decider": …, "event": …, "to_version": …, "moves": […]}, …]    |

In the table `"0"` stands for any log partition. The names are those of Kafka's source where it has one. Its offset is a
position here, the dense number of an event in its log partition. A time is milliseconds since 1970 or ISO 8601 with its
zone; if no event was appended at or after it, it means the log's end. A log partition that JSON does not name has the
option's default. If both ends are JSON, both name the same log partitions, and only these are read. A position beyond
the log's end, or in a log partition that does not exist, is an error, never fewer rows. A position below the first kept
one is data loss.

A batch reads an exact set of events: both ends of every log partition come from one statement. Rows come in no order:
sort by `position` within `partition`.

A stream begins at `startingOffsets` or `startingTimestamp` once; after that it resumes from its checkpoint. Begin and
end define a batch: a failed batch is read again with the same rows. The exception is a query's very first batch, if it
never finished: its beginning is looked up again. If `latest` or the time then lies behind the batch's end, the
beginning is lost, and that is data loss. `partitions` must not change. With a limit, each log partition gets a share in
proportion to its pending positions, and at least one position; if the limit is too small for that, they take turns. The
trigger `availableNow` reads up to the log's end at the start of the query.

Fields of `data` are extracted in Postgres, which takes less time than parsing JSON in Spark. A missing field and a JSON
null are null; text comes unquoted; any other JSON value comes as its JSON text. With `upcasts`, rows of the table
`event_store.event_upcasts`, `data` of older versions of these events come in the newest shape. Filters are options
because pushing down Spark's own filters gives wrong results in Spark 4.3.0.
"""

# Spark loads this folder again in a Python process for each plan: so tasks themselves import what only they need.
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from .batch import EventLogReader
from .log import Unreadable, in_utf8
from .options import COLUMNS, OPTIONS, EventLogOptions, InvalidOption
from .ranges import DataLoss, LogRange
from .stream import EventLogStreamReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = [
    "COLUMNS",
    "OPTIONS",
    "DataLoss",
    "EventLogOptions",
    "EventLogReader",
    "EventLogSource",
    "EventLogStreamReader",
    "InvalidOption",
    "LogRange",
    "Unreadable",
    "in_utf8",
]


class EventLogSource(DataSource):
    """The data source; the module's docstring has its options."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "event_log"

    def schema(self) -> str:
        """Return the rows' schema, by the options `columns` and `extract`."""
        return EventLogOptions.read(self.options).schema()

    def reader(self, schema: "StructType") -> EventLogReader:
        """Return the reader of a batch."""
        return EventLogReader(EventLogOptions.read(self.options, "batch"), schema)

    def streamReader(self, schema: "StructType") -> EventLogStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a stream."""
        return EventLogStreamReader(EventLogOptions.read(self.options, "stream"), schema)
