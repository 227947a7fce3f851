"""The Spark plan of a round: one constant plan for all models, executed again and again.

Not here: what its task reads (`collected_task`), when it runs and what is committed (`round`).

One task reads and does the folds, and one aggregate of slots builds the rows of all models of columns. It groups by
model, log partition and key, which all lie in that one task: Spark exchanges nothing.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from millrace.drain.collected_task import PAYLOAD, REPORT, WHERE, ColumnsReader, FoldReader, Reader, Task
from millrace.drain.failing_streams import Failure
from millrace.drain.misread import MisreadEvent, misread_event
from millrace.event_store import Lease
from millrace.read_models.built.fold_task import MISREAD
from millrace.read_models.built.plans import aggregated, arrow_schema, fold_task, folded_schema, slot_rows, wide_schema
from millrace.read_models.built.slot_rows import MODEL
from millrace.read_models.built.slots import Slots, columns_of, slots_of, state_of
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.declared.fold import Fold
from millrace.read_models.declared.recompute import Recompute
from millrace.read_models.declared.upcasts import as_option
from millrace.read_models.stored.tables import state_schema
from millrace.spark.bounded import at_most

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A plan of one task gains nothing from adaptive planning or compiled code.
ROUND_CONFIGURATION = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "1",
}
# Bytes of events that a task holds at once, and of a fold's rows. Each model copies the events that it takes, and Spark
# holds a copy more than once: 160 MiB for two models killed a server with 1 GiB.
ROUND_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True)
class Built:
    """The result of building a round.

    Attributes:
        leases: By view, the leases under which the task read.
        rows: By view, new rows of its model's state: log partition, key and state, under the model's names.
        failed: By view, why its model cannot be built.
        seconds: By view, how long the task worked for its model alone.
        misread: By view, the misread events: no row contains anything of them.
        is_too_large: Whether nothing was built, because the events together are too large.
    """

    leases: Mapping[str, Sequence[Lease]]
    rows: Mapping[str, pa.Table]
    failed: Mapping[str, str]
    seconds: Mapping[str, float]
    misread: Mapping[str, Sequence[MisreadEvent]] = field(default_factory=dict)
    is_too_large: bool = False

    def with_(self, other: "Built") -> "Built":
        """Return the results of both."""
        return Built(
            {**self.leases, **other.leases},
            {**self.rows, **other.rows},
            {**self.failed, **other.failed},
            {**self.seconds, **other.seconds},
            {**self.misread, **other.misread},
            self.is_too_large or other.is_too_large,
        )


def fits(model: ReadModel) -> bool:
    """Return whether rounds can build a model. A recomputed one needs whole streams, by a plan of its own."""
    return not isinstance(model, Recompute)


class RoundPlan:
    """The plan for some models.

    Args:
        spark: The session.
        dsn: The event store.
        owner: The owner of the leases that are read.
        models: The models, as the versions that are built.
        seconds: How long it may take.
        without: Failing streams: the events of each are left out from the failing one on.
    """

    def __init__(
        self,
        spark: "SparkSession",
        dsn: str,
        owner: str,
        models: Sequence[ReadModel],
        seconds: float,
        without: Sequence[Failure] = (),
    ) -> None:
        self._spark = spark
        self._models = list(models)
        self._seconds = seconds
        self._slots = slots_of([model for model in models if not isinstance(model, Fold)])
        with at_most(spark, seconds):
            self._frame = _frame(spark, dsn, owner, self._models, self._slots, seconds / 2, without)

    def run(self) -> Built:
        """Read the events that the owner has leased for the models, and build them.

        Raises:
            TookTooLong: It took longer than it may.
        """
        with at_most(self._spark, self._seconds):
            table = self._frame.toArrow()
        numbers = table.column(MODEL).to_pylist()
        at: dict[int, list[int]] = {}
        for row, number in enumerate(numbers):
            at.setdefault(number, []).append(row)
        report = json.loads(table.column(PAYLOAD)[at[REPORT][0]].as_py())
        leases: dict[str, list[Lease]] = {}
        for view, *lease in report["leases"]:
            leases.setdefault(view, []).append(Lease(*lease))
        rows = {}
        misread = {}
        for number, model in enumerate(self._models):
            # the rows of a failed model are incomplete; skip them
            if number not in at or model.view in report["failed"]:
                continue
            model_rows = table.take(pa.array(at[number]))
            if isinstance(model, Fold):
                model_rows = pa.ipc.open_stream(model_rows.column(PAYLOAD)[0].as_py()).read_all()
            misread_texts = model_rows.column(MISREAD)
            if misread_texts.null_count < len(misread_texts):
                read = {} if isinstance(model, Fold) else columns_of(model, self._slots)
                misread[model.view] = [misread_event(one, read) for one in misread_texts.drop_null().to_pylist()]
                model_rows = model_rows.filter(misread_texts.is_null())
            names = list(state_schema(model))
            state_columns = names if isinstance(model, Fold) else state_of(model, self._slots)
            rows[model.view] = model_rows.select(state_columns).rename_columns(names)
        return Built(leases, rows, report["failed"], report["seconds"], misread, report["too_large"])


def _frame(
    spark: "SparkSession",
    dsn: str,
    owner: str,
    models: Sequence[ReadModel],
    slots: Slots,
    patience_s: float,
    without: Sequence[Failure],
) -> "DataFrame":
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = wide_schema(slots).append(pa.field(PAYLOAD, pa.binary()))
    readers = list[Reader]()
    for number, model in enumerate(models):
        where = (number, model.view, model.deciders, model.events)
        if isinstance(model, Fold):
            # the task stops a slow function itself and names it before the whole round times out
            fold = replace(fold_task(model, dsn, frozenset()), patience_s=patience_s, for_all=True)
            readers.append(FoldReader(*where, fold, arrow_schema(folded_schema(model))))
        else:
            readers.append(ColumnsReader(*where, slot_rows(number, model, slots, schema)))
    sources = {source for model in models for source in model.sources}
    extract = {source: path for model in models for source, path in model.extracted.items()}
    found = {(one.decider, one.event, one.to_version): one for model in models for one in model.seen_upcasts}
    task = Task(
        dsn=dsn,
        owner=owner,
        columns=tuple(sorted({*WHERE, *(sources - set(extract))})),
        extract=extract,
        upcasts=as_option(found.values()),
        deciders=_all_of([model.deciders for model in models]),
        events=_all_of([model.events for model in models]),
        readers=tuple(readers),
        schema=schema,
        most_bytes=ROUND_BYTES,
        without=tuple((one.stream.decider, one.stream.decider_id, one.offset) for one in without),
    )
    wide = spark.range(0, 1, 1, 1).mapInArrow(task.__call__, from_arrow_schema(schema))
    return aggregated(wide, slots, PAYLOAD)


def _all_of(filters: Sequence[tuple[str, ...] | None]) -> tuple[str, ...] | None:
    """Return all names that some models take; None if one of them takes everything."""
    if any(one is None for one in filters):
        return None
    return tuple(sorted({name for one in filters for name in one or ()}))
