"""The events that a read model cannot be built from: of each stream the first one, told in one pass that never raises.

Belongs here: failures whose reason is one event, as plans over a batch. Not here: events that only together are too
large for a sum (`sums`), the plans that build and raise (`plans`), the search for failures that no single event is the
reason of (`consumption.failing_streams`).

Columns fail where a field of data is read as a type (`column_types`), and a fold where its function does
(`fold_task`). A function of whole streams says of no event that it fails at it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from millrace.resources.event_store import Lease
from millrace.resources.read_models.column_types import misread, refusal
from millrace.resources.read_models.columns import ORDER, Column, KeyColumn
from millrace.resources.read_models.declaration import ReadModel
from millrace.resources.read_models.fold import STREAM, Fold
from millrace.resources.read_models.fold_task import TOLD, teller
from millrace.resources.read_models.function_model import FunctionModel
from millrace.resources.read_models.plans import (
    arrow_schema,
    fold_task,
    looked_at,
    ordered_events,
    source_column,
    spark_schema,
    with_keys,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# from these offsets on streams are left out
_LEFT_OUT = pa.schema([("_decider", pa.string()), ("_decider_id", pa.string()), ("_from", pa.int64())])


class FailingEvent(NamedTuple):
    """The first event that a stream fails at, and the error that a build of the stream would raise."""

    partition: int
    decider: str
    decider_id: str
    offset: int
    error: str


def failing_events(events: "DataFrame", model: ReadModel, dsn: str, ranges: Sequence[Lease]) -> list[FailingEvent]:
    """Return the first failing event of each stream that fails at one; none if the kind of model does not tell."""
    if isinstance(model, Fold):
        run = teller(fold_task(model, dsn, ranges), arrow_schema(TOLD))
        told = ordered_events(events).mapInArrow(run, spark_schema(TOLD))
        return [FailingEvent(*row) for row in told.collect()]
    return [] if isinstance(model, FunctionModel) else _misread_events(events, model)


def without_failing(events: "DataFrame", failing: Sequence[tuple[str, str, int]]) -> "DataFrame":
    """Leave out what some streams (decider, decider_id) have from an offset on."""
    from pyspark.sql import functions as f

    if not failing:
        return events
    columns = zip(*failing, strict=True)
    left_out = events.sparkSession.createDataFrame(
        pa.table([pa.array(values, one.type) for values, one in zip(columns, _LEFT_OUT, strict=True)], _LEFT_OUT)
    )
    return events.join(
        f.broadcast(left_out),
        (f.col("decider") == f.col("_decider"))
        & (f.col("decider_id") == f.col("_decider_id"))
        & (f.col(ORDER) >= f.col("_from")),
        "left_anti",
    )


def _misread_events(events: "DataFrame", model: ReadModel) -> list[FailingEvent]:
    from pyspark.sql import functions as f

    read = _fields_read(model)
    told = [
        f.when(looked_at(column) & fault.isNotNull(), f.struct(f.lit(place).alias("place"), fault.alias("text")))
        for place, (source, column) in enumerate(read)
        if (fault := misread(source_column(source), column.type)) is not None
    ]
    if not told:
        return []
    failing = with_keys(events, model).select(*STREAM, ORDER, f.coalesce(*told).alias("told")).where("told is not null")
    firsts = failing.groupBy(*STREAM).agg(f.min(ORDER), f.min_by("told", f.col(ORDER))).collect()
    found = []
    for partition, decider, decider_id, offset, one in firsts:
        source, column = read[one["place"]]
        error = refusal(one["text"], source, column.type)
        found.append(FailingEvent(partition, decider, decider_id, offset, error))
    return found


def _fields_read(model: ReadModel) -> list[tuple[str, Column | KeyColumn]]:
    """Return the fields of data, each with the column that reads it, in the order in which Spark reads them."""
    read = [one for column in model.stored.values() for one in column.reads]
    columns: list[Column | KeyColumn] = [*model.keys.values(), *read]
    return [(column.source, column) for column in columns if column.source in model.extracted]
