"""Sums that outgrow their types: the event of each stream that does not fit, told in one pass, however many there are.

Belongs here: which keys are too full, and which events do not fit there. Not here: events that fail each by itself
(`events`), sums (`columns`).

The values of a key are added up in the order of their events. One that does not fit is the event that its stream fails
at: this one and the stream's later ones wait, and the next stream's is tried without them. So a sum is never too full
because of streams that wait.
"""

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal, localcontext
from itertools import groupby
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
from psycopg import sql

from millrace.resources.read_models.built.fold_task import TOLD, in_batches
from millrace.resources.read_models.built.plans import arrow_schema, looked_at, source_value, spark_schema, with_keys
from millrace.resources.read_models.declared.column_types import arrow_type, raised, typed
from millrace.resources.read_models.declared.columns import (
    ORDER,
    Bounds,
    Column,
    KeyColumn,
    StateColumn,
    is_text,
    within,
)
from millrace.resources.read_models.declared.declaration import ReadModel
from millrace.resources.read_models.declared.fold import STREAM
from millrace.resources.read_models.failing.events import FailingEvent
from millrace.resources.read_models.stored.merge import StagedRows
from millrace.resources.read_models.stored.tables import listed, relation, state_key

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame

# a sum has so many digits
_DIGITS = 38
# parts of a key as a number, which Python holds whatever the year is
_COMPARABLE = {
    "timestamp": ("bigint", "(extract(epoch from {}) * 1000000)::bigint"),
    "date": ("int", "{} - date 'epoch'"),
}


def overflowing_events(events: "DataFrame", model: ReadModel, full: pa.Table | None = None) -> list[FailingEvent]:
    """Return the first event of each stream that does not fit into a sum beside those before it.

    Args:
        events: Events of which each by itself can be built.
        model: The read model; one that is a function has no sums.
        full: The keys whose sums are to be looked at, and what they were before these events, by `full_keys`. None for
            all keys, and for nothing before.
    """
    from pyspark.sql import functions as f

    summed = sums_of(model)
    if not summed:
        return []
    columns = [column for column, _ in summed]
    bounds = [state.bounds for _, state in summed if state.bounds is not None]
    schema = full_keys_schema(model)
    keys, before = schema.names[: 1 + len(model.keys)], schema.names[1 + len(model.keys) :]
    values = [f"value {number}" for number in range(len(columns))]
    wide = with_keys(events, model).select(
        *STREAM,
        ORDER,
        f.col("partition").alias(keys[0]),
        *(
            _comparable(_tried(key), key.type).alias(name)
            for name, key in zip(keys[1:], model.keys.values(), strict=True)
        ),
        *(
            f.when(looked_at(column), _tried(column)).cast(f"decimal({_DIGITS},{scale_of(column)})").alias(name)
            for name, column in zip(values, columns, strict=True)
        ),
    )
    if full is None:
        # of a key whose values without their signs fit, no sum can be too large
        doubtful = f.lit(False)
        for name, bound in zip(values, bounds, strict=True):
            size = f.try_sum(f.abs(f.col(name)))
            doubtful |= f.coalesce(size > f.lit(bound.most), f.count(name) > 0)
        groups = wide.groupBy(*keys).agg(doubtful.alias("doubtful")).where("doubtful").drop("doubtful")
        nothing = [
            f.lit(0).cast(f"decimal({_DIGITS},{scale_of(column)})").alias(n)
            for n, column in zip(before, columns, strict=True)
        ]
        known = groups.select(*keys, *nothing)
    else:
        known = f.broadcast(events.sparkSession.createDataFrame(full))
    looked = wide.join(known, keys).select(*keys, *STREAM[1:], ORDER, *before, *values)
    ordered = looked.repartition(*(f.col(f"`{key}`") for key in keys)).sortWithinPartitions(
        *(f.col(f"`{key}`") for key in keys), ORDER
    )
    told = ordered.mapInArrow(adder(len(keys), bounds, arrow_schema(TOLD)), spark_schema(TOLD)).collect()
    firsts: dict[tuple[object, ...], FailingEvent] = {}
    for one in sorted((FailingEvent(*row) for row in told), key=lambda one: -one.offset):
        firsts[one[:3]] = one
    return [*firsts.values()]


def adder(
    width: int, bounds: Sequence[Bounds], schema: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for `mapInArrow` that adds up the values of each key and tells what does not fit.

    Its rows are sorted: a key of so many columns, the first being the log partition; decider, decider_id, offset; each
    sum before; the value for each sum, or null. Of an event with several rows of a key all fit, or none.
    """

    def told(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[object, ...]]:
        now: list[object] = []
        sums: list[Decimal] = []
        failed: set[object] = set()
        rows = (row for b in batches for row in zip(*(column.to_pylist() for column in b.columns), strict=True))
        for (*key, decider, decider_id, offset), of_event in groupby(rows, lambda row: row[: width + 3]):
            first, *others = of_event
            if key != now:
                now, sums, failed = key, [*first[width + 3 : width + 3 + len(bounds)]], set()
            if (decider, decider_id) in failed:
                continue  # it waits with its first one
            added = sums
            for row in (first, *others):
                values = row[width + 3 + len(bounds) :]
                added = [total + (value or 0) for total, value in zip(added, values, strict=True)]
            over = [b.overflow for total, b in zip(added, bounds, strict=True) if not b.least <= total <= b.most]
            if over:
                failed.add((decider, decider_id))
                yield key[0], decider, decider_id, offset, raised(over[0])
            else:
                sums = added

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # 38 digits and one more, wherever their point is
        with localcontext(prec=2 * _DIGITS + 2):
            yield from in_batches(told(batches), schema)

    return run


def _tried(column: Column | KeyColumn) -> "SparkColumn":
    """Return the value that a column reads, null where it reads none."""
    source = source_value(column)
    value = typed(source, column.type) if is_text(column) else source
    return column.made(value) if isinstance(column, KeyColumn) else value


def _comparable(value: "SparkColumn", type_: str) -> "SparkColumn":
    """Return a part of a key as `full_keys` gives it."""
    from pyspark.sql import functions as f

    if type_ == "timestamp":
        return f.unix_micros(value)
    return f.unix_date(value) if type_ == "date" else value


def full_keys(
    connection: psycopg.Connection,
    model: ReadModel,
    batch: int,
    staged: Sequence[StagedRows],
    beside: Sequence[StagedRows] = (),
    *,
    merged: bool,
) -> pa.Table | None:
    """Return the keys in which staged rows do not fit, with what the sums there are without these rows.

    Args:
        connection: A connection in which to look.
        model: The read model.
        batch: The number of the batch.
        staged: The rows that may not fit.
        beside: Staged rows that are to be merged with them, and do fit.
        merged: Whether all of them are merged into the state; otherwise they replace it.
    """
    summed = sums_of(model)
    if not summed or not staged:
        return None
    key, names = state_key(model), [state.name for _, state in summed]
    known = sql.SQL(
        """
        union all
        select {known_key}, {known_sums}, true
        from (select distinct {key} from {staging} where batch = %(batch)s and attempt = any (%(attempts)s)) touched
        -- limit 1 keeps this an index probe per touched key, however many rows the model has
        cross join lateral (select * from {state} s where {same_key} limit 1) known
        """
    ).format(
        known_key=listed(key, of="known"),
        known_sums=listed(names, of="known"),
        key=listed(key),
        staging=relation(model.staging_table),
        state=relation(model.state_table),
        same_key=sql.SQL(" and ").join(sql.SQL("s.{0} = touched.{0}").format(sql.Identifier(n)) for n in key),
    )
    found = connection.execute(
        sql.SQL(
            """
            select {compared}, {before}
            from (
              select {key}, {sums}, not (attempt = any (%(attempts)s)) as is_before
              from {staging} where batch = %(batch)s and attempt = any (%(attempts)s || %(beside)s)
              {known}
            ) together
            group by {key}
            having not ({fit}) and not bool_and(is_before)
            """
        ).format(
            compared=sql.SQL(", ").join(
                _compared(sql.Identifier(name), type_) for name, type_ in zip(key, _key_types(model), strict=True)
            ),
            before=sql.SQL(", ").join(
                sql.SQL("coalesce(sum({}) filter (where is_before), 0)::numeric").format(sql.Identifier(name))
                for name in names
            ),
            key=listed(key),
            sums=listed(names),
            staging=relation(model.staging_table),
            known=known if merged else sql.SQL(""),
            fit=sql.SQL(" and ").join(
                within(state.name, state.bounds) for _, state in summed if state.bounds is not None
            ),
        ),
        {
            "batch": batch,
            "attempts": [rows.attempt for rows in staged],
            "beside": [rows.attempt for rows in beside],
        },
    ).fetchall()
    schema = full_keys_schema(model)
    return (
        pa.table(
            [pa.array(values, one.type) for values, one in zip(zip(*found, strict=True), schema, strict=True)], schema
        )
        if found
        else None
    )


def full_keys_schema(model: ReadModel) -> pa.Schema:
    """Return the columns of `full_keys`: log partition and key, then the sums."""
    compared = [_COMPARABLE.get(type_, (type_,))[0] for type_ in _key_types(model)]
    return pa.schema(
        [
            *((f"key {number}", arrow_type(type_)) for number, type_ in enumerate(compared)),
            *(
                (f"before {number}", pa.decimal128(_DIGITS, scale_of(column)))
                for number, (column, _) in enumerate(sums_of(model))
            ),
        ]
    )


def sums_of(model: ReadModel) -> list[tuple[Column, StateColumn]]:
    """Return the stored sums of a model, each with its column; a function has none."""
    return [
        (column, state)
        for name, column in model.stored.items()
        for state in column.state(name)
        if state.bounds is not None
    ]


def scale_of(column: Column) -> int:
    """Return how many decimals a sum of a column has."""
    return 0 if column.type == "bigint" else int(column.type.rstrip(")").split(",")[1])


def _key_types(model: ReadModel) -> list[str]:
    return ["int", *(key.type for key in model.keys.values())]


def _compared(value: sql.Composable, type_: str) -> sql.Composable:
    return sql.SQL(_COMPARABLE[type_][1]).format(value) if type_ in _COMPARABLE else value
