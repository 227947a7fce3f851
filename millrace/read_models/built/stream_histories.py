"""Reads whole histories of many streams from Postgres, in Spark's tasks: a function for `mapInArrow`."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa

from millrace.spark.log_source import COLUMNS
from millrace.spark.log_source.arrow import arrow_connection
from millrace.spark.log_source.reading import PLAN, HistoryShortened, upcast_data

if TYPE_CHECKING:
    from psycopg import sql

# the streams that one statement looks up
_STREAMS = 1_000


def history_reader(
    dsn: str,
    events: Sequence[str] | None,
    schema: pa.Schema,
    upcasts: str,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for `mapInArrow` from (partition, decider, decider_id, position) to these streams' events.

    It reads each stream from its first event up to the one at `position` in its log partition, and gives no order.

    Args:
        dsn: The event store.
        events: The events that are read; None for all.
        schema: The columns, of the source `event_log`, with their Arrow types.
        upcasts: How data of older versions of events is read as the newest one's: an option of the source.
    """
    data = upcast_data(upcasts)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        streams = (stream for batch in batches for stream in zip(*(c.to_pylist() for c in batch.columns), strict=True))
        first = list(islice(streams, _STREAMS))
        if not first:
            return
        with arrow_connection(dsn) as connection:
            connection.rows(PLAN)
            shortened = dict(
                connection.rows(
                    "select partition, earliest_position from event_store.partitions where earliest_position > 0"
                )
            )
            while first:
                lost = sorted({partition for partition, *_ in first} & shortened.keys())
                if lost:
                    raise HistoryShortened(
                        f"log partition {lost[0]} begins at {shortened[lost[0]]}: no stream is whole"
                    )
                for batch in connection.batches(query(first, events, schema.names, data).as_string()):
                    yield batch.cast(schema)
                first = list(islice(streams, _STREAMS))

    return read


def query(
    streams: Sequence[tuple[int, str, str, int]],
    events: Sequence[str] | None,
    columns: Sequence[str],
    upcast: "tuple[sql.SQL, sql.Composed]",
) -> "sql.Composed":
    """Return the SELECT for some streams; without bind parameters, because ADBC reads by COPY only then."""
    from psycopg import sql

    data, joined = upcast
    _, deciders, ids, positions = (list(values) for values in zip(*streams, strict=True))
    return sql.SQL(
        "select {columns} from unnest({positions}::bigint[], {deciders}::text[], {ids}::text[]) s(last, decider, decider_id)"
        " join event_store.events e on e.decider_id = s.decider_id and e.decider = s.decider"
        ' join event_store.event_log l on l."offset" = e."offset"'
        "{joined} where l.position <= s.last and ({all_events} or e.event = any ({events}::text[]))"
    ).format(
        columns=sql.SQL(", ").join(
            sql.SQL("{} as {}").format(
                sql.SQL("{}::text").format(data) if c == "data" else sql.SQL(COLUMNS[c][1]), sql.Identifier(c)
            )
            for c in columns
        ),
        joined=joined,
        positions=sql.Literal(positions),
        deciders=sql.Literal(deciders),
        ids=sql.Literal(ids),
        all_events=sql.Literal(events is None),
        events=sql.Literal(list(events or ())),
    )
