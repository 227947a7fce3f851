"""The work of one Spark task: reading its ranges of the log through ADBC as Arrow."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from .arrow import ArrowConnection, arrow_connection
from .options import COLUMNS, EventLogOptions, by_event
from .pulled import NotPulled, pulled
from .ranges import LogRange

if TYPE_CHECKING:
    import pyarrow as pa
    from psycopg import sql
    from pyspark.sql.types import StructType

# By index, independent of statistics: by default Postgres would read all events for each task, not only its ranges. No
# memoize: no two events have the same key. No JIT: a disabled scan has a cost at which Postgres would compile every
# statement.
PLAN = (
    "select set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),"
    " set_config('enable_mergejoin', 'off', true), set_config('enable_memoize', 'off', true),"
    " set_config('jit', 'off', true)"
)
# If a task reads most of the events between its first and its last offset, as when it reads all log partitions, one
# scan over these offsets is twice as fast.
DENSE_PLAN = (
    "select set_config('enable_seqscan', 'off', true), set_config('enable_nestloop', 'off', true),"
    " set_config('enable_hashjoin', 'on', true), set_config('enable_mergejoin', 'on', true),"
    " set_config('work_mem', '64MB', true), set_config('jit', 'off', true)"
)
# With fewer positions the scan saves less than the query for the offsets costs.
DENSE_POSITIONS = 10_000
# The greatest number of offsets between the first and the last, gaps included, per position to read.
DENSE_OFFSETS = 3
# A SELECT has at most 1,664 columns. More fields than this are sent as arrays of this length.
MOST_FIELDS = 1_000
_MARKS = "select partition, earliest_position, high_water_mark from event_store.partitions"

Keep = Callable[[Sequence[LogRange], Mapping[int, LogRange]], Sequence[LogRange]]


class HistoryShortened(Exception):
    """The log no longer holds events that the rows of a stream need."""


@dataclass(frozen=True)
class EventLogInput(InputPartition):
    """The input of one Spark task: slices of ranges."""

    ranges: tuple[LogRange, ...]


def read_ranges(
    options: EventLogOptions,
    target: "pa.Schema",
    ranges: Sequence[LogRange],
    keep: Keep,
    locks_of: str | None = None,
) -> "Iterator[pa.RecordBatch]":
    """Read ranges as Arrow batches, in no order.

    Args:
        options: The options of the read.
        target: The rows' schema.
        ranges: The slices of this task.
        keep: Returns the part of them to read, given the ranges that the log holds now.
        locks_of: A bulk view; its locked streams are left out. None leaves out none.

    Raises:
        Unreadable: Postgres does not answer, or not with an event log.
    """

    def statement(connection: ArrowConnection) -> "sql.Composed | None":
        held = {p: LogRange(p, first, mark) for p, first, mark in connection.rows(_MARKS)}
        readable = keep(ranges, held)
        if not readable:
            return None
        between = dense_offsets(connection, readable)
        if between is not None:
            connection.rows(DENSE_PLAN)
        return query(options, readable, between, locks_of)

    yield from _read(options, target, statement)


def read_retries(
    options: EventLogOptions, target: "pa.Schema", view: str, partition: int, token: int, end: int
) -> "Iterator[pa.RecordBatch]":
    """Read the events that the lease of a log partition retries, as `read_batch` does, up to the lease's end.

    Raises:
        Unreadable: Postgres does not answer, or not with an event log.
    """
    from psycopg import sql

    columns, upcast, conditions = _chosen(options)
    statement = sql.SQL(
        "select {columns} from event_store_platform.retried_events({view}, {partition}, {token}, {end}) e"
        ' cross join lateral (select {partition} as partition, e."position", e."offset") l{upcast} where {conditions}'
    ).format(
        columns=columns,
        upcast=upcast,
        view=sql.Literal(view),
        partition=sql.Literal(partition),
        token=sql.Literal(token),
        end=sql.Literal(end),
        conditions=conditions,
    )
    yield from _read(options, target, lambda _: statement)


def arrow_target(schema: "StructType") -> "pa.Schema":
    """Return the rows' schema as an Arrow schema."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def _read(
    options: EventLogOptions, target: "pa.Schema", statement: "Callable[[ArrowConnection], sql.Composed | None]"
) -> "Iterator[pa.RecordBatch]":
    with arrow_connection(options.dsn) as connection:
        connection.rows(PLAN)
        wanted = statement(connection)
        if wanted is None:
            return
        for batch in connection.batches(wanted.as_string()):
            yield fields_apart(options, batch).rename_columns(target.names).cast(target)


def fields_apart(options: EventLogOptions, batch: "pa.RecordBatch") -> "pa.RecordBatch":
    """Return rows of a SELECT with one column for each column and field, in the order of the schema."""
    import numpy as np
    import pyarrow as pa

    if len(options.extract) <= MOST_FIELDS:
        return batch
    columns = batch.columns[: len(options.columns)]
    left = len(options.extract)
    for packed in batch.columns[len(options.columns) :]:
        width = min(left, MOST_FIELDS)
        values = packed.flatten()
        columns += [values.take(pa.array(np.arange(field, len(values), width))) for field in range(width)]
        left -= width
    return pa.RecordBatch.from_arrays(columns, [f"c{n}" for n in range(len(columns))])


def dense_offsets(connection: ArrowConnection, ranges: Sequence[LogRange]) -> tuple[int, int] | None:
    """Return the first and the last offset of ranges, if they have many events and few others lie between them."""
    from psycopg import sql

    positions = sum(wanted.size for wanted in ranges)
    if positions < DENSE_POSITIONS:
        return None
    bounds = sql.SQL('select min(l."offset"), max(l."offset") from {}').format(_slices(ranges))
    ((first, last),) = connection.rows(bounds.as_string())
    return (first, last) if first is not None and last - first < DENSE_OFFSETS * positions else None


def query(
    options: EventLogOptions,
    ranges: Sequence[LogRange],
    between: tuple[int, int] | None = None,
    locks_of: str | None = None,
) -> "sql.Composed":
    """Return the SELECT that reads ranges. It has no bind parameters: with them ADBC would not read by COPY.

    All offsets of the ranges lie in `between`, if it is not None (`dense_offsets`). Streams with a lock of the bulk
    view `locks_of` are left out.
    """
    from psycopg import sql

    columns, upcast, conditions = _chosen(options)
    if between is not None:
        conditions += sql.SQL(' and e."offset" between {} and {}').format(*between)
    if locks_of is not None:
        # `offset 0` keeps this a probe by primary key per event, independent of the statistics of locks
        conditions += sql.SQL(
            " and not exists (select from event_store.stream_locks k"
            " where k.view = {} and k.decider_id = e.decider_id and k.decider = e.decider offset 0)"
        ).format(sql.Literal(locks_of))
    return sql.SQL(
        'select {columns} from {slices} join event_store.events e using ("offset"){upcast} where {conditions}'
    ).format(columns=columns, slices=_slices(ranges), upcast=upcast, conditions=conditions)


def _slices(ranges: Sequence[LogRange]) -> "sql.Composed":
    """Return the positions of ranges, as `l`. Because of `offset 0` each range is read by index, in every plan."""
    from psycopg import sql

    values = sql.SQL(", ").join(
        sql.SQL("({}, {}, {})").format(r.partition, r.from_position, r.to_position) for r in ranges
    )
    return sql.SQL(
        "(values {values}) r(partition, from_position, to_position) cross join lateral ("
        'select s.partition, s.position, s."offset" from event_store.event_log s where s.partition = r.partition'
        " and s.position >= r.from_position and s.position < r.to_position offset 0) l"
    ).format(values=values)


def _chosen(options: EventLogOptions) -> "tuple[sql.Composed, sql.Composed, sql.Composed]":
    """Return the columns of a SELECT, in the order of the schema; its join of upcast data; and its filters."""
    from psycopg import sql

    data, upcast = upcast_data(options.upcasts)
    values: list[sql.Composable] = [
        sql.SQL("{}::text").format(data) if c == "data" else sql.SQL(COLUMNS[c][1]) for c in options.columns
    ]
    upcasts = by_event(options.upcasts)
    try:
        fields = [_field(path, upcasts) for path in options.extract.values()]
        if "data" not in options.columns:
            upcast = sql.Composed([])
    except NotPulled:
        fields = [sql.SQL("{} #>> {}").format(data, _text_array(path)) for path in options.extract.values()]
    if len(fields) > MOST_FIELDS:
        # as arrays, which `fields_apart` splits
        firsts = range(0, len(fields), MOST_FIELDS)
        fields = [sql.SQL("array[{}]").format(sql.SQL(", ").join(fields[n : n + MOST_FIELDS])) for n in firsts]
    values += fields
    # numbered names: Postgres cuts a name at 63 bytes
    columns = [sql.SQL("{} as {}").format(value, sql.Identifier(f"c{n}")) for n, value in enumerate(values)]
    conditions: list[sql.Composable] = [sql.SQL("true")]
    for column, wanted in (("decider", options.deciders), ("event", options.events)):
        if wanted is not None:
            condition = sql.SQL("e.{} = any ({}::text[])")
            conditions.append(condition.format(sql.Identifier(column), sql.Literal(list(wanted))))
    return sql.SQL(", ").join(columns), upcast, sql.SQL(" and ").join(conditions)


def _field(path: tuple[str, ...], upcasts: Mapping[tuple[str, str], Sequence[dict[str, Any]]]) -> "sql.Composed":
    """Return the text of a field in the newest shape of its event, read from its place in the event's version.

    Raises:
        NotPulled: The field cannot be read by itself: the whole document must be moved.
    """
    from psycopg import sql

    stored = sql.SQL("e.data #>> {}").format(_text_array(path))
    older: list[sql.Composable] = []
    for (decider, event), versions in upcasts.items():
        moves = [[move for later in versions[n:] for move in later["moves"]] for n in range(len(versions))]
        found = [(one["to_version"], pulled(path, each)) for one, each in zip(versions, moves, strict=True)]
        if any(value != pulled(path, []) for _, value in found):
            case = sql.SQL(" ").join(
                sql.SQL("when e.event_version < {} then ({}) #>> '{{}}'").format(version, value)
                for version, value in found
            )
            older.append(
                sql.SQL(
                    "when e.event_version < {} and e.decider = {} and e.event = {} and jsonb_typeof(e.data) = 'object'"
                    " then case {} end"
                ).format(found[-1][0], decider, event, case)
            )
    return sql.SQL("case {} else {} end").format(sql.SQL(" ").join(older), stored) if older else stored


def _text_array(path: tuple[str, ...]) -> "sql.Composed":
    from psycopg import sql

    return sql.SQL("{}::text[]").format(sql.Literal(list(path)))


def upcast_data(upcasts: str) -> "tuple[sql.SQL, sql.Composed]":
    """Return the data of events `e` in their newest shape, and the join that a FROM with `e` needs for it."""
    from psycopg import sql

    moves_by_event = by_event(upcasts)
    if not moves_by_event:
        return sql.SQL("e.data"), sql.Composed([])
    moved = [
        sql.SQL(
            "when e.decider = {decider} and e.event = {event} and e.event_version < {version}"
            " then event_store_platform.moved(e.data, e.event_version, ("
            "select jsonb_agg(m.upcast) from jsonb_array_elements({upcasts}::jsonb) m(upcast)"
            " where m.upcast ->> 'decider' = {decider} and m.upcast ->> 'event' = {event}))"
        ).format(decider=decider, event=event, version=versions[-1]["to_version"], upcasts=upcasts)
        for (decider, event), versions in moves_by_event.items()
    ]
    # `offset 0`: computed once for all fields of an event
    join = sql.SQL(" cross join lateral (select case {} else e.data end as data offset 0) u")
    return sql.SQL("u.data"), join.format(sql.SQL(" ").join(moved))
