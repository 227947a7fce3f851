"""Spark's plans of read models: from events to rows of the state, for each kind of model.

Not here: a task's work on a fold's stream (`fold_task`), or on the values of columns (`slot_rows`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from millrace.errors import MillraceError
from millrace.read_models.built import fold_task as tasks
from millrace.read_models.built.fold_task import MISREAD, FoldTask, TaskQuery, folder
from millrace.read_models.built.slot_rows import MODEL, SlotRows
from millrace.read_models.built.slots import Slots, columns_of, slots_of, state_of, values_of
from millrace.read_models.built.stream_histories import history_reader
from millrace.read_models.declared.column_types import QUOTED, arrow_type, misread, typed
from millrace.read_models.declared.columns import ORDER, Column, KeyColumn, order_of
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.declared.fold import READ, STREAM, Fold
from millrace.read_models.declared.function_model import POSITION
from millrace.read_models.declared.items import ITEM_ORDER
from millrace.read_models.declared.recompute import Recompute
from millrace.read_models.declared.upcasts import as_option
from millrace.read_models.stored.merge import stored_states
from millrace.read_models.stored.tables import state_schema
from millrace.spark.bounded import NotReturned, ended_after
from millrace.spark.log_source import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame


# from events to the rows that are made of them, batch by batch
Run = Callable[[Iterator[pa.Table]], Iterator[pa.RecordBatch]]


class FunctionFailed(MillraceError):
    """A read model's function of DataFrames fails regardless of the events, or returns other columns than declared."""


class Events(Protocol):
    """Events as Spark reads them."""

    @property
    def given_up(self) -> frozenset[int]:
        """Offsets of events that are read only for the keys that they carry."""

    @property
    def frame(self) -> "DataFrame":
        """The events."""

    def through(self, run: Run, schema: pa.Schema) -> "DataFrame":
        """Return the result of a function of the events, in the tasks that have them, with this schema."""


@dataclass(frozen=True)
class FrameEvents:
    """The events of a DataFrame."""

    frame: "DataFrame"
    given_up: frozenset[int] = frozenset()

    def through(self, run: Run, schema: pa.Schema) -> "DataFrame":
        """Return the result of a function of the events, in the tasks that have them, with this schema."""
        from pyspark.sql.pandas.types import from_arrow_schema

        names = self.frame.columns

        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return run(pa.Table.from_batches([batch]).rename_columns(names) for batch in batches)

        # mapInArrow would read a dot in a name as a path into a column
        numbered = self.frame.toDF(*(f"c{n}" for n in range(len(names))))
        return numbered.mapInArrow(work, from_arrow_schema(schema))


def state_rows(
    events: Events, model: ReadModel, dsn: str, begun: frozenset[int], live_readers: int, plan_s: float
) -> "DataFrame":
    """Return the rows that some events add to the model's state, for any kind of model.

    Streams of the log partitions in `begun` may have rows already. Streams of other partitions are built from nothing,
    even if they have rows. At most `live_readers` tasks ask Postgres for whole streams at once. A function of
    DataFrames has `plan_s` seconds to return one.
    """
    if isinstance(model, Recompute):
        return recomputed_rows(events.frame, model, dsn, begun, live_readers, plan_s)
    return folded_rows(events.frame, model, dsn, begun) if isinstance(model, Fold) else partial_rows(events, model, dsn)


def partial_rows(events: Events, model: ReadModel, dsn: str) -> "DataFrame":
    """Return one row per log partition and key: the columns of the model's state, and null as MISREAD.

    An event with a value that its column's type does not hold exactly is in no such row; if each element of an array
    counts, only that element is in none. It has a row of its own with a MISREAD; the other values of this row mean
    nothing.
    """
    slots = slots_of([model])
    rows = aggregated(wide_events(events, model, dsn, slots), slots)
    names = dict(zip(state_of(model, slots), state_schema(model), strict=True))
    return rows.select(*(source_column(slot).alias(name) for slot, name in names.items()), source_column(MISREAD))


def wide_events(events: Events, model: ReadModel, dsn: str, slots: Slots, *event_columns: str) -> "DataFrame":
    """Return the wide table of some events of a model, with its values in their slots, and columns of the event."""
    rows = slot_rows(0, model, slots, wide_schema(slots, *event_columns), *event_columns)
    carried = model.carried
    if carried is None:
        return events.through(rows.of, rows.schema)

    given_up = events.given_up

    def fill(batches: Iterator[pa.Table]) -> Iterator[pa.RecordBatch]:
        with TaskQuery(dsn, carried.query) as log:
            yield from rows.of_streams(batches, log.rows, given_up)

    ordered = events.frame.repartition(*STREAM).sortWithinPartitions(*STREAM, ORDER)
    return FrameEvents(ordered).through(fill, rows.schema)


def wide_schema(slots: Slots, *event_columns: str) -> pa.Schema:
    """Return the columns of the wide table: a model's number, an event's place, and the slots."""
    return pa.schema(
        [
            (MODEL, pa.int32()),
            *((name, arrow_type(COLUMNS[name][0])) for name in ("partition", ORDER, *event_columns)),
            (ITEM_ORDER, pa.int64()),
            *(
                (slot.name, pa.string() if slot.is_text else arrow_type(slot.column.type))
                for slot in (*slots.keys, *(one for slot in slots.values for one in slot.reads))
            ),
        ]
    )


def slot_rows(number: int, model: ReadModel, slots: Slots, schema: pa.Schema, *event_columns: str) -> SlotRows:
    """Return the needs of a task that puts a model's events into the slots of a wide table."""
    key_slots = slots.of_keys[model.view]
    keys, of_items = (
        tuple(key_slots[name].name for name, key in model.keys.items() if key.is_of_item is of_item)
        for of_item in (False, True)
    )
    values = values_of(model, slots)
    return SlotRows(
        number, schema, ("partition", ORDER, *event_columns), values, keys, model.items, of_items, model.carried
    )


def valued(wide: "DataFrame", slots: Slots, *event_columns: str) -> "DataFrame":
    """Return the wide table with its slots' values read as their types, MISREAD, and columns of the event."""
    from pyspark.sql import functions as f

    read = [*slots.keys, *(one for slot in slots.values for one in slot.reads)]
    return read_exactly(
        wide,
        {slot.name: f.col(slot.name) for slot in read},
        {slot.name: slot.column.type for slot in read if slot.is_text},
        {slot.name: slot.key.to_key for slot in read if slot.key is not None},
        (MODEL, ITEM_ORDER, *event_columns),
    )


def aggregated(wide: "DataFrame", slots: Slots, *firsts: str) -> "DataFrame":
    """Return a row for each model, key and log partition of a wide table, the state of each slot, and one MISREAD.

    A column of the event in `firsts` has any one of its values.
    """
    from pyspark.sql import functions as f

    states = [
        state.partial(f.col(slot.name), order_of(slot.column, f.col(slot.reads[-1].name), f.col(ITEM_ORDER))).alias(
            state.name
        )
        for slot in slots.values
        for state in slot.column.state(slot.name)
    ]
    # Spark sorts if a state is a text. A log partition has many rows, a key few: with the key first in the order, most
    # comparisons end there
    keys = [MODEL, *(slot.name for slot in slots.keys), "partition", f"`{MISREAD}`"]
    return valued(wide, slots, *firsts).groupBy(*keys).agg(*(f.max(name).alias(name) for name in firsts), *states)


def columns_read(model: ReadModel) -> dict[str, Column | KeyColumn]:
    """Return the values that a model by itself reads of an event, in order, by the names that MISREAD has."""
    return columns_of(model, slots_of([model]))


def read_exactly(
    events: "DataFrame",
    values: Mapping[str, "SparkColumn"],
    texts: Mapping[str, str],
    conversions: "Mapping[str, Callable[[SparkColumn], SparkColumn]]",
    event_columns: Sequence[str] = (),
) -> "DataFrame":
    """Return values of events, with texts read as their types; MISREAD lists the texts that a type does not hold.

    Args:
        events: The events.
        values: The values, by name.
        texts: The types of the values that are texts.
        conversions: Functions that turn some values, once read, into others.
        event_columns: Further columns to return; log partition and offset are always returned.
    """
    from pyspark.sql import functions as f

    faults = {name: fault for name, type_ in texts.items() if (fault := misread(values[name], type_)) is not None}
    misread_json = f.to_json(
        f.struct(
            "partition",
            ORDER,
            *(f.when(fault, f.substring(values[name], 1, QUOTED)).alias(name) for name, fault in faults.items()),
        )
    )
    read = {name: typed(value, texts[name]) if name in texts else value for name, value in values.items()}
    read |= {name: make(read[name]) for name, make in conversions.items()}
    return events.select(
        *dict.fromkeys((*event_columns, "partition", ORDER)),
        *(value.alias(name) for name, value in read.items()),
        # all faults in one condition: Spark reads each text once, for its value and for this
        f.when(f.greatest(f.lit(False), f.lit(False), *faults.values()), misread_json).alias(MISREAD),
    )


def source_column(source: str) -> "SparkColumn":
    """Return a column of the events, by its name."""
    from pyspark.sql import functions as f

    return f.col("`{}`".format(source.replace("`", "``")))


def folded_rows(events: "DataFrame", model: Fold, dsn: str, begun: frozenset[int]) -> "DataFrame":
    """Return one row per stream: its state after some events, from the stored state on in the given log partitions.

    The state of a failing stream is that before the failing event, which has a row with MISREAD.
    """
    by_stream = events.select(*READ).repartition(*STREAM)
    ordered = by_stream.sortWithinPartitions("partition", "decider_id", "decider", READ[3])
    run = folder(fold_task(model, dsn, begun), arrow_schema(columns := folded_schema(model)))
    return ordered.mapInArrow(run, spark_schema(columns))


def folded_schema(model: Fold) -> dict[str, str]:
    """Return the columns of a fold's rows, and MISREAD, with their Spark types."""
    return state_schema(model) | {MISREAD: "string"}


def fold_task(model: Fold, dsn: str, begun: frozenset[int]) -> FoldTask:
    """Return the needs of the tasks that fold events, from stored states on in the given log partitions."""
    with_decider, states = "decider" in model.keys, stored_states(model)
    return FoldTask(model.name, model.function, model.types, with_decider, dsn, begun, states, TaskQuery, tasks.CALL_S)


def recomputed_rows(
    events: "DataFrame", model: Recompute, dsn: str, begun: frozenset[int], live_readers: int, plan_s: float
) -> "DataFrame":
    """Return one row per stream of some events: its rows, as arrays, computed from the stream's first event on.

    Raises:
        FunctionFailed: The function failed before it saw an event, did not return, or returned other columns than are
            declared.

    Raises, when it runs, Spark's error for a stream with two rows of one key, or one that the function made up.
    """
    from pyspark.sql import functions as f

    touched = events.groupBy(*STREAM).agg(f.max("position").alias(POSITION))
    history = events
    if begun:
        columns = {name: type_ for name, (type_, *_) in COLUMNS.items()}
        read = history_reader(dsn, model.events, arrow_schema(columns), as_option(model.seen_upcasts))
        streams = touched.select(*STREAM, POSITION).coalesce(live_readers)
        history = streams.mapInArrow(read, spark_schema(columns))
    identity = [key.source for key in model.keys.values()]
    rows = _computed(model, history.select(*COLUMNS), identity, plan_s)
    others = [name for name in model.types if name not in model.row_key]
    listed = f.sort_array(f.collect_list(f.struct(*(f.col(name) for name in (*model.row_key, *others)))))
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
            for name, type_ in model.stored_types.items()
        ),
    )


def _computed(model: Recompute, history: "DataFrame", identity: Sequence[str], plan_s: float) -> "DataFrame":
    """Return the rows that the function makes of events, if it returns in time and has the declared columns."""
    try:
        with ended_after(plan_s):
            rows = model.function(history)
            found = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
    except (Exception, NotReturned) as error:
        kind = TimeoutError if isinstance(error, NotReturned) else type(error)
        raise FunctionFailed(
            f"Read model {model.name}: its function failed before it saw an event.",
            detail=f"{kind.__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            hint="It gets the events of many streams as a DataFrame and returns a DataFrame.",
        ) from error
    types = dict.fromkeys(identity, "string") | model.stored_types
    wrong = [f"{name} is {found.get(name, 'missing')}" for name, type_ in types.items() if found.get(name) != type_]
    if wrong:
        raise FunctionFailed(
            f"Read model {model.name}: its function returned other columns than declared.",
            detail=", ".join(wrong),
            hint=f"Return {', '.join(f'{name} {type_}' for name, type_ in types.items())}: nothing is cast for you.",
        )
    return rows.select(*types)


def _error(model: Recompute, stream: str, why: str) -> "SparkColumn":
    from pyspark.sql import functions as f

    message = f.concat(
        f.lit(f"read model {model.name}: its function returned stream '"), f.col(stream), f.lit(f"', {why}")
    )
    return f.raise_error(message).cast("bigint")


def arrow_schema(columns: Mapping[str, str]) -> pa.Schema:
    """Return columns with their Spark types as an Arrow schema."""
    return pa.schema([(name, arrow_type(type_)) for name, type_ in columns.items()])


def spark_schema(columns: Mapping[str, str]) -> str:
    """Return columns with their Spark types as Spark's DDL."""
    return ", ".join(f"`{name}` {type_}" for name, type_ in columns.items())
