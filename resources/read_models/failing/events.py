"""The events that a read model cannot be built from: of each stream the first one, told in one pass that never raises.

Columns fail where a field of data is read as a type (`column_types`), and a fold where its function does
(`fold_task`). A function of whole streams says of no event that it fails at it: the search for failures that no single
event is the reason of is `consumption.failing_streams`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from millrace.resources.read_models.built.fold_task import TOLD, teller
from millrace.resources.read_models.built.plans import (
    MISREAD,
    Events,
    arrow_schema,
    columns_read,
    fold_task,
    ordered_events,
    spark_schema,
    valued,
    wide_events,
)
from millrace.resources.read_models.built.slots import slots_of
from millrace.resources.read_models.declared.column_types import refusal
from millrace.resources.read_models.declared.columns import ORDER, Column, KeyColumn
from millrace.resources.read_models.declared.declaration import ReadModel
from millrace.resources.read_models.declared.fold import STREAM, Fold
from millrace.resources.read_models.declared.function_model import FunctionModel

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


class MisreadEvent(NamedTuple):
    """An event with a value that its column's type does not hold, and what is said of the first such value."""

    partition: int
    offset: int
    error: str


def misread_event(told: str, read: Mapping[str, Column | KeyColumn]) -> MisreadEvent:
    """Return what `plans.read_exactly` tells of an event, where a model reads these columns, in order."""
    found = json.loads(told)
    name, column = next((name, column) for name, column in read.items() if found.get(name) is not None)
    return MisreadEvent(found["partition"], found[ORDER], refusal(found[name], str(column.source), column.type))


def failing_events(events: Events, model: ReadModel, dsn: str, begun: frozenset[int]) -> list[FailingEvent]:
    """Return the first failing event of each stream that fails at one; none if the kind of model does not tell."""
    if isinstance(model, Fold):
        run = teller(fold_task(model, dsn, begun), arrow_schema(TOLD))
        told = ordered_events(events.frame).mapInArrow(run, spark_schema(TOLD))
        return [FailingEvent(*row) for row in told.collect()]
    return [] if isinstance(model, FunctionModel) else _misread_events(events, model, dsn)


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


def _misread_events(events: Events, model: ReadModel, dsn: str) -> list[FailingEvent]:
    from pyspark.sql import functions as f

    told, slots = f.col(f"`{MISREAD}`"), slots_of([model])
    wide = wide_events(events, model, dsn, slots, *STREAM[1:])
    failing = valued(wide, slots, *STREAM[1:]).where(told.isNotNull())
    firsts = failing.groupBy(*STREAM).agg(f.min_by(told, f.col(ORDER))).collect()
    read = columns_read(model)
    found = []
    for partition, decider, decider_id, one in firsts:
        event = misread_event(one, read)
        found.append(FailingEvent(partition, decider, decider_id, event.offset, event.error))
    return found
