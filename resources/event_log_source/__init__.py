"""The Spark data source `event_log`: the log as rows, in batches and as a stream, through ADBC as Arrow, without a JAR.

This folder is all of it: it needs pyspark, pyarrow, adbc-driver-postgresql and psycopg, and nothing else of Millrace. Where
Spark's workers cannot import it, `pyspark.cloudpickle.register_pickle_by_value(event_log_source)` before `register` sends it
along.

    spark.dataSource.register(EventLogSource)
    spark.read.format("event_log").option("dsn", "postgresql://…").load()
    spark.readStream.format("event_log").option("dsn", "postgresql://…").load()

| option                   | default    | meaning                                                                        |
|--------------------------|------------|--------------------------------------------------------------------------------|
| `dsn`                    | required   | the event store's Postgres                                                     |
| `startingOffsets`        | `earliest` | `earliest`, `latest` (stream only), or JSON `{"<log partition>": <first position>, …}` |
| `startingTimestamp`      | none       | instead: from the first event appended at or after a time; none such: the end of the log |
| `endingOffsets`          | `latest`   | batch: `latest`, or JSON `{"<log partition>": <position after the last>, …}` |
| `endingTimestamp`        | none       | batch, instead: up to the first event appended at or after a time; none such: the end of the log |
| `maxOffsetsPerTrigger`   | no limit   | stream: how many positions a batch reads at most, over all log partitions  |
| `failOnDataLoss`         | `true`     | `false`: where the log does not hold what is to be read, warn and go on with what it holds |
| `minPartitions`          | 1          | how many Spark tasks read at least, unless there are fewer positions       |
| `maxRecordsPerPartition` | 500000     | how many positions one Spark task reads at most                            |
| `partitions`             | all        | JSON list of log partitions                                                    |
| `deciders`               | all        | JSON list of deciders                                                          |
| `events`                 | all        | JSON list of events                                                            |
| `view`                   | none       | batch: leave out the streams that have a lock of this bulk view                |
| `leaseTokens`            | none       | batch, with `view`: JSON `{"<log partition>": <token of its lease>, …}`; read the events that these leases try again, too |
| `columns`                | all        | JSON list of columns, of `COLUMNS`                                             |
| `extract`                | none       | JSON `{"<new column>": ["<key>", …], …}`: fields of `data` by path, as text    |

A time is milliseconds since 1970 or ISO 8601 with its zone. Log partitions that JSON offsets do not name have the default; if
both ends are JSON, both name the same log partitions, and only these are read. An offset beyond the log's end, or in another
log partition than there are, is an error and never fewer rows; one below what the log still holds is a matter of
`failOnDataLoss`.

A batch reads an exact set of events: both ends of every log partition come from one statement. Rows come in no order: sort by
`position` within `partition`.

With `view` and `leaseTokens` a batch is what the function `read_batch` returns for these leases: the ranges without the streams
that have a lock, and of those whose retry is due what is pending up to `endingOffsets`. It is the same rows as long as the leases
are in force.

A stream begins at `startingOffsets` or `startingTimestamp` once; after that its checkpoint says where it goes on. Its batches
are decided by their offsets: one that failed is read again with the same rows. Only a very first batch that never finished is
begun anew; where `latest` or a time then lies behind its end, nobody knows its beginning, and that is data loss. `partitions`
must stay what it was. With a limit, each log partition has a share in proportion to what it has pending, and at least one
position, or they take turns. The trigger `availableNow` reads what was there when the query started.

Fields of `data` are extracted in Postgres, which takes less time than parsing JSON in Spark. A missing field and a JSON null
are null; text comes unquoted; any other JSON value comes as its JSON text. Filters are options because pushing down Spark's
own filters gives wrong results in Spark 4.3.0.
"""

# Spark loads this folder anew in a Python process for each plan: what only tasks need, tasks import.
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from .batch import EventLogReader
from .log import Unreadable
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
]


class EventLogSource(DataSource):
    """The data source; see the module's text for its options."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "event_log"

    def schema(self) -> str:
        """The rows' schema, by the options `columns` and `extract`."""
        return EventLogOptions.read(self.options).schema()

    def reader(self, schema: "StructType") -> EventLogReader:
        """The reader of a batch."""
        return EventLogReader(EventLogOptions.read(self.options, "batch"), schema)

    def streamReader(self, schema: "StructType") -> EventLogStreamReader:  # noqa: N802 - Spark's name
        """The reader of a stream."""
        return EventLogStreamReader(EventLogOptions.read(self.options, "stream"), schema)
