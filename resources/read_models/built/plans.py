"""Spark's plans of read models: from events to rows of the state, for each kind of model.

Belongs here: columns, folds, and functions of whole streams, as plans. Not here: a kind's words (`words`, `fold`,
`recompute`), a task's work on a fold's stream (`fold_task`), staging and commits (`consumption`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from millrace.resources.errors import MillraceError
from millrace.resources.event_log_source import COLUMNS
from millrace.resources.read_models.built import fold_task as tasks
from millrace.resources.read_models.built.fold_task import FoldTask, TaskQuery, folder
from millrace.resources.read_models.built.stream_histories import history_reader
from millrace.resources.read_models.declared.carried import Carried
from millrace.resources.read_models.declared.column_types import QUOTED, arrow_type, misread, typed
from millrace.resources.read_models.declared.columns import ORDER, Column, KeyColumn, is_text, order_of
from millrace.resources.read_models.declared.declaration import ReadModel
from millrace.resources.read_models.declared.fold import READ, STREAM, Fold
from millrace.resources.read_models.declared.function_model import POSITION
from millrace.resources.read_models.declared.items import ITEM_ORDER, Items
from millrace.resources.read_models.declared.recompute import Recompute
from millrace.resources.read_models.declared.upcasts import as_option
from millrace.resources.read_models.stored.merge import stored_states
from millrace.resources.read_models.stored.tables import state_schema
from millrace.resources.spark.bounded import NotReturned, ended_after

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame


# of the rows of columns, the one that says which values of one event their types do not hold; null in the other rows
MISREAD = "misread values"


class FunctionFailed(MillraceError):
    """A read model's function of DataFrames fails, whatever the events are, or returns other columns than declared."""


def state_rows(
    events: "DataFrame", model: ReadModel, dsn: str, begun: frozenset[int], live_readers: int, plan_s: float
) -> "DataFrame":
    """Return the rows that some events add to the model's state, whatever kind of model it is.

    Streams of the log partitions in `begun` may have rows already. Those of others are built from nothing, whatever
    rows there are. At most `live_readers` tasks ask Postgres for whole streams at once. A function of DataFrames has so
    many seconds to return one.
    """
    if isinstance(model, Recompute):
        return recomputed_rows(events, model, dsn, begun, live_readers, plan_s)
    return folded_rows(events, model, dsn, begun) if isinstance(model, Fold) else partial_rows(events, model)


def partial_rows(events: "DataFrame", model: ReadModel) -> "DataFrame":
    """Return one row per log partition and key: the columns of the model's state, and null as MISREAD.

    An event with a value that its column's type does not hold exactly is in no such row; where each element of an array
    counts, that element is in none. It has a row of its own, in which MISREAD is not null; what else stands there means
    nothing.
    """
    from pyspark.sql import functions as f

    # Spark sorts where a state is a text. Rows of a log partition are many, those of a key few: sorted by that first,
    # most comparisons end there
    order = ORDER if model.items is None else ITEM_ORDER
    valued = event_values(with_keys(events, model), model, order)
    keys = [f.col(f"`key {name}`").alias(name) for name in model.keys]
    rows = valued.groupBy(*keys, "partition", f"`{MISREAD}`").agg(
        *(
            state.partial(f.col(f"`value {name}`"), order_of(column, f.col(f"`by {name}`"), f.col(order))).alias(
                state.name
            )
            for name, column in model.stored.items()
            for state in column.state(name)
        )
    )
    return rows.select(*(source_column(name) for name in (*state_schema(model), MISREAD)))


def event_values(events: "DataFrame", model: ReadModel, *kept: str) -> "DataFrame":
    """Return each value that a model reads of each event, by the names of `columns_read`, beside kept columns."""
    from pyspark.sql import functions as f

    def value(column: Column | KeyColumn) -> "SparkColumn":
        source = f.lit(1) if column.source is None else source_value(column)
        # the cast comes after this: what a column does not look at it does not misread
        return f.when(looked_at(column), source)

    read = columns_read(model)
    return read_exactly(
        events,
        {name: value(column) for name, column in read.items()},
        {name: column.type for name, column in read.items() if is_text(column)},
        {name: column.made for name, column in read.items() if isinstance(column, KeyColumn)},
        kept,
    )


def columns_read(model: ReadModel) -> dict[str, Column | KeyColumn]:
    """Return what a model reads of an event, in order; each value once, although a column may have several states."""
    read: dict[str, Column | KeyColumn] = {f"key {name}": key for name, key in model.read_keys.items()}
    for name, column in model.stored.items():
        read |= dict(zip((f"value {name}", f"by {name}"), column.reads, strict=False))
    return read


def read_exactly(
    events: "DataFrame",
    values: Mapping[str, "SparkColumn"],
    texts: Mapping[str, str],
    made: "Mapping[str, Callable[[SparkColumn], SparkColumn]]",
    kept: Sequence[str] = (),
) -> "DataFrame":
    """Return values of events, those that are texts read as a type; MISREAD says which texts a type does not hold.

    Args:
        events: The events.
        values: The values, by name.
        texts: The types of those that are texts.
        made: What some become when they are read.
        kept: Columns to return besides; log partition and offset are returned in any case.
    """
    from pyspark.sql import functions as f

    faults = {name: fault for name, type_ in texts.items() if (fault := misread(values[name], type_)) is not None}
    told = f.to_json(
        f.struct(
            "partition",
            ORDER,
            *(f.when(fault, f.substring(values[name], 1, QUOTED)).alias(name) for name, fault in faults.items()),
        )
    )
    read = {name: typed(value, texts[name]) if name in texts else value for name, value in values.items()}
    read |= {name: make(read[name]) for name, make in made.items()}
    return events.select(
        *dict.fromkeys((*kept, "partition", ORDER)),
        *(value.alias(name) for name, value in read.items()),
        # all faults in one condition: Spark reads each text once, for its value and for this
        f.when(f.greatest(f.lit(False), f.lit(False), *faults.values()), told).alias(MISREAD),
    )


def with_keys(events: "DataFrame", model: ReadModel) -> "DataFrame":
    """Return the events that have all keys of a model; of the others it does not look at any field, not at a key's.

    Where each element of an array counts, return these elements; and a row for an array that is none.
    """
    for key in model.keys.values():
        if not key.is_of_item:
            events = events.where(source_value(key).isNotNull())
    if model.items is None:
        return judged_rows(events, model)
    items = item_rows(events, model.items)
    for key in model.keys.values():
        if key.is_of_item:
            items = items.where(source_value(key).isNotNull() | source_column(model.items.array).isNotNull())
    return judged_rows(items, model)


def judged_rows(events: "DataFrame", model: ReadModel) -> "DataFrame":
    """Return events with a column for each condition of a model: whether they meet it."""
    found = model.conditions

    def judge(batches: Iterator[pa.Table]) -> Iterator[pa.Table]:
        for rows in batches:
            met = {one.column: one.met(rows) for one in found}
            yield pa.table({**dict(zip(rows.column_names, rows.columns, strict=True)), **met})

    return _with_columns(events, judge, {one.column: "boolean" for one in found}) if found else events


def item_rows(events: "DataFrame", items: Items) -> "DataFrame":
    """Return a row for each element of an array in events, as `Items.apart` gives them."""

    def apart(batches: Iterator[pa.Table]) -> Iterator[pa.Table]:
        return chain.from_iterable(map(items.apart, batches))

    return _with_columns(events, apart, dict.fromkeys(items.paths, "string") | {ITEM_ORDER: "bigint"})


def carried_rows(events: "DataFrame", carried: Carried, dsn: str) -> "DataFrame":
    """Return events with the keys that they take over from the events of their stream before them."""

    def fill(batches: Iterator[pa.Table]) -> Iterator[pa.Table]:
        with TaskQuery(dsn, carried.query) as log:
            yield from carried.filled(batches, log.rows)

    ordered = events.repartition(*STREAM).sortWithinPartitions(*STREAM, ORDER)
    return _with_columns(ordered, fill, dict.fromkeys(carried.fields, "string"))


def _with_columns(
    events: "DataFrame", work: Callable[[Iterator[pa.Table]], Iterator[pa.Table]], added: Mapping[str, str]
) -> "DataFrame":
    """Return what is made of events in Arrow: their columns, and some with these types."""
    from pyspark.sql.types import BooleanType, LongType, StringType, StructType

    names = events.columns

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for rows in work(pa.Table.from_batches([batch]).rename_columns(names) for batch in batches):
            yield from rows.combine_chunks().to_batches()

    schema = StructType(events.schema.fields)
    for name, type_ in added.items():
        schema.add(name, {"string": StringType(), "bigint": LongType(), "boolean": BooleanType()}[type_])
    # mapInArrow takes a dot in a name for one that leads into a column
    return events.toDF(*(f"c{n}" for n in range(len(names)))).mapInArrow(run, schema)


def source_value(column: Column | KeyColumn) -> "SparkColumn":
    """Return what a column reads of an event, as it stands there."""
    from pyspark.sql import functions as f

    if isinstance(column, Column):
        return source_column(str(column.source))
    if not column.by_decider:
        return source_column(column.column)
    chosen = [f.when(f.col("decider") == decider, source_column(source)) for decider, source in column.by_decider]
    return f.coalesce(*chosen)


def looked_at(column: Column | KeyColumn) -> "SparkColumn":
    """Say whether a column looks at an event that has all keys."""
    from pyspark.sql import functions as f

    if not isinstance(column, Column):
        return f.lit(True)
    of_event = f.lit(True) if column.events is None else f.col("event").isin(*column.events)
    return of_event if column.where is None else of_event & source_column(column.where.column)


def source_column(source: str) -> "SparkColumn":
    """Return a column of the events, by its name."""
    from pyspark.sql import functions as f

    return f.col("`{}`".format(source.replace("`", "``")))


def folded_rows(events: "DataFrame", model: Fold, dsn: str, begun: frozenset[int]) -> "DataFrame":
    """Return one row per stream: its state after some events, in these log partitions from the stored one on.

    Raises, when it runs, Spark's error for an event at which the function fails.
    """
    run = folder(fold_task(model, dsn, begun), arrow_schema(columns := state_schema(model)))
    return ordered_events(events).mapInArrow(run, spark_schema(columns))


def ordered_events(events: "DataFrame") -> "DataFrame":
    """Return what a fold reads of some events, each stream by itself, and in order."""
    by_stream = events.select(*READ).repartition(*STREAM)
    return by_stream.sortWithinPartitions("partition", "decider_id", "decider", READ[3])


def fold_task(model: Fold, dsn: str, begun: frozenset[int]) -> FoldTask:
    """Return the needs of the tasks that fold events, in these log partitions from stored states on."""
    with_decider, states = "decider" in model.keys, stored_states(model)
    return FoldTask(model.name, model.function, model.types, with_decider, dsn, begun, states, TaskQuery, tasks.CALL_S)


def recomputed_rows(
    events: "DataFrame", model: Recompute, dsn: str, begun: frozenset[int], live_readers: int, plan_s: float
) -> "DataFrame":
    """Return one row per stream of some events: its rows, as arrays, computed from the stream's first event on.

    Raises:
        FunctionFailed: The function failed before it saw an event, did not return, or returned other columns than are
            declared.

    Raises, when it runs, Spark's error for a stream that has two rows of one key, or that the function made up.
    """
    from pyspark.sql import functions as f

    touched = events.groupBy(*STREAM).agg(f.max("position").alias(POSITION))
    history = events
    if begun:
        columns = {name: type_ for name, (type_, *_) in COLUMNS.items()}
        read = history_reader(dsn, model.events, arrow_schema(columns), as_option(model.seen_upcasts))
        asked = touched.select(*STREAM, POSITION).coalesce(live_readers)
        history = asked.mapInArrow(read, spark_schema(columns))
    identity = [key.source for key in model.keys.values()]
    rows = _computed(model, history.select(*COLUMNS), identity, plan_s)
    listed = f.sort_array(f.collect_list(f.struct(*(f.col(name) for name in (*model.row_key, *_others(model))))))
    row_keys = f.struct(*(f.col(name) for name in model.row_key)) if model.row_key else f.lit(1)
    per_stream = rows.groupBy(*(f.col(name).alias(f"_{name}") for name in identity)).agg(
        listed.alias("_rows"), (f.count(f.lit(1)) > f.count_distinct(row_keys)).alias("_twice")
    )
    joined = touched.join(per_stream, [f.col(name).eqNullSafe(f.col(f"_{name}")) for name in identity], "full_outer")
    return joined.select(
        f.col("partition"),
        *(f.col(key.source).alias(name) for name, key in model.keys.items()),
        f.when(f.col(POSITION).isNull(), _error(model, "_decider_id", "which it was given no event of"))
        .when(f.col("_twice"), _error(model, "decider_id", f"which has two rows of one key {list(model.row_key)}"))
        .otherwise(f.col(POSITION))
        .alias(POSITION),
        *(
            f.coalesce(f.col("_rows").getField(name), f.array().cast(f"array<{type_}>")).alias(name)
            for name, type_ in model.types.items()
        ),
    )


def _computed(model: Recompute, history: "DataFrame", identity: Sequence[str], plan_s: float) -> "DataFrame":
    """Return the rows that the function makes of events, if it does so in time and they have the declared columns."""
    try:
        with ended_after(plan_s):
            rows = model.function(history)
            found = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
    except (Exception, NotReturned) as error:
        raise FunctionFailed(
            f"Read model {model.name}: its function failed before it saw an event.",
            detail=f"{_name_of(error)}: {str(error).splitlines()[0] if str(error) else ''}",
            hint="It gets the events of many streams as a DataFrame and returns a DataFrame.",
        ) from error
    wanted = dict.fromkeys(identity, "string") | model.types
    wrong = [f"{name} is {found.get(name, 'missing')}" for name, type_ in wanted.items() if found.get(name) != type_]
    if wrong:
        raise FunctionFailed(
            f"Read model {model.name}: its function returned other columns than declared.",
            detail=", ".join(wrong),
            hint=f"Return {', '.join(f'{name} {type_}' for name, type_ in wanted.items())}: nothing is cast for you.",
        )
    return rows.select(*wanted)


def _name_of(error: BaseException) -> str:
    return TimeoutError.__name__ if isinstance(error, NotReturned) else type(error).__name__


def _error(model: Recompute, stream: str, why: str) -> "SparkColumn":
    from pyspark.sql import functions as f

    said = f.concat(
        f.lit(f"read model {model.name}: its function returned stream '"), f.col(stream), f.lit(f"', {why}")
    )
    return f.raise_error(said).cast("bigint")


def _others(model: Recompute) -> list[str]:
    return [name for name in model.types if name not in model.row_key]


def arrow_schema(columns: Mapping[str, str]) -> pa.Schema:
    """Return columns with their Spark types as Arrow says it."""
    return pa.schema([(name, arrow_type(type_)) for name, type_ in columns.items()])


def spark_schema(columns: Mapping[str, str]) -> str:
    """Return columns with their Spark types as Spark says it."""
    return ", ".join(f"`{name}` {type_}" for name, type_ in columns.items())
