"""What one Spark task does: read its ranges of the log through ADBC as Arrow.

Belongs here: the SELECT and its batches. Not here: which ranges a task gets (`batch`, `stream`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from .log import Unreadable, without_password
from .options import COLUMNS, EventLogOptions
from .ranges import OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa
    from psycopg import sql
    from pyspark.sql.types import StructType

# What a task holds at once, and hands on to Spark, is a few of these, or one event if that is larger.
BATCH_BYTES = 4 * 1024 * 1024

# By index, whatever the statistics say: Postgres would rather read all events for each task than look up those of one range.
PLAN = (
    "select set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),"
    " set_config('enable_mergejoin', 'off', true)"
)
_MARKS = "select partition, earliest_offset, high_water_mark from event_store.partitions"

Keep = Callable[[Sequence[OffsetRange], Mapping[int, OffsetRange]], Sequence[OffsetRange]]


@dataclass(frozen=True)
class EventLogInput(InputPartition):
    """What one Spark task reads."""

    ranges: tuple[OffsetRange, ...]


def read_ranges(
    options: EventLogOptions, schema: "StructType", ranges: Sequence[OffsetRange], keep: Keep
) -> "Iterator[pa.RecordBatch]":
    """Read ranges as Arrow batches, in no order, after `keep` made of what the log holds what is to be read.

    Raises:
        Unreadable: Postgres does not answer, or not with an event log.
    """
    from adbc_driver_postgresql import StatementOptions, dbapi
    from pyspark.sql.pandas.types import to_arrow_schema

    target = to_arrow_schema(schema, timezone="UTC")
    without_password(options.dsn)  # a DSN that cannot be read is refused before anybody quotes it
    try:
        with dbapi.connect(options.dsn) as connection, connection.cursor() as cursor:
            # what the marks promise is there for the SELECT too, although somebody removes it at this moment
            cursor.execute("set transaction isolation level repeatable read, read only")
            cursor.execute(PLAN)
            cursor.fetchall()
            cursor.execute(_MARKS)
            held = {p: OffsetRange(p, first, mark) for p, first, mark in cursor.fetchall()}
            kept = keep(ranges, held)
            if not kept:
                return
            cursor.adbc_statement.set_options(**{StatementOptions.BATCH_SIZE_HINT_BYTES.value: str(BATCH_BYTES)})
            cursor.execute(query(options, kept).as_string())
            for batch in cursor.fetch_record_batch():
                yield batch.cast(target)
    except dbapi.Error as error:
        raise Unreadable(options.dsn, error) from error


def query(options: EventLogOptions, ranges: Sequence[OffsetRange]) -> "sql.Composed":
    """The SELECT that reads ranges; without bind parameters, because ADBC reads by COPY only then."""
    from psycopg import sql

    columns = [sql.SQL("{} as {}").format(sql.SQL(COLUMNS[c][1]), sql.Identifier(c)) for c in options.columns]
    columns += [
        sql.SQL("e.data #>> {}::text[] as {}").format(sql.Literal(list(path)), sql.Identifier(column))
        for column, path in options.extract.items()
    ]
    conditions: list[sql.Composable] = [sql.SQL("true")]
    for column, wanted in (("decider", options.deciders), ("event", options.events)):
        if wanted is not None:
            condition = sql.SQL("e.{} = any ({}::text[])")
            conditions.append(condition.format(sql.Identifier(column), sql.Literal(list(wanted))))
    values = sql.SQL(", ").join(sql.SQL("({}, {}, {})").format(r.partition, r.from_offset, r.to_offset) for r in ranges)
    return sql.SQL(
        "select {columns} from (values {values}) r(partition, from_offset, to_offset)"
        " join event_store.event_log l on l.partition = r.partition"
        " and l.partition_offset >= r.from_offset and l.partition_offset < r.to_offset"
        ' join event_store.events e using ("offset") where {conditions}'
    ).format(columns=sql.SQL(", ").join(columns), values=values, conditions=sql.SQL(" and ").join(conditions))
