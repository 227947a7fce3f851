"""The Spark task of a round: reads an owner's leased events once, and gives each model its events in slots.

Spark plans once, because the task is the same in every round: leases in the store say which events it reads. The task
reports the leases under which it read, and the driver commits nothing else.
"""

import io
import json
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from millrace.drain.worker_connections import KeptQuery, read
from millrace.postgres.connecting import lasting
from millrace.read_models.built.fold_task import FoldFailed, FoldTask, folder
from millrace.read_models.built.slot_rows import MODEL, SlotRows, wide_rows
from millrace.read_models.declared.columns import ORDER
from millrace.read_models.declared.fold import READ
from millrace.spark.log_source import DataLoss, EventLogOptions, LogRange
from millrace.spark.log_source.arrow import ArrowConnection
from millrace.spark.log_source.reading import PLAN, HistoryShortened, fields_apart, query

if TYPE_CHECKING:
    import numpy as np

# a column of the wide table: the rows of a fold, or the report, which has REPORT as the model's number
PAYLOAD = "payload"
REPORT = -1
# the rows of all models may be this many times as large as the events: each model copies those that it takes
COPIES = 2
# the columns that say which events a view takes, and their order
WHERE = ("partition", "position", ORDER, "decider", "decider_id", "event")


@dataclass(frozen=True)
class Reader:
    """A model as the task reads for it.

    Attributes:
        number: Its number in the plan.
        view: Its view.
        deciders: The deciders that it takes; None for all.
        events: The events that it takes; None for all.
    """

    number: int
    view: str
    deciders: tuple[str, ...] | None
    events: tuple[str, ...] | None


@dataclass(frozen=True)
class ColumnsReader(Reader):
    """A model of columns: how its rows are made."""

    rows: SlotRows


@dataclass(frozen=True)
class FoldReader(Reader):
    """A fold: what its task needs, and the schema of its rows."""

    task: FoldTask
    schema: pa.Schema


@dataclass(frozen=True)
class Task:
    """The work of a round's task.

    Attributes:
        dsn: The event store.
        owner: The owner of the leases that it reads.
        columns: The columns of events to read.
        extract: Fields of their data to read, and the path of each.
        deciders: The deciders to read; None for all.
        events: The events to read; None for all.
        readers: The models.
        schema: The wide table.
        most_bytes: Nothing is built if the events take more memory, or the rows for all models `COPIES` times as much:
            the driver then claims fewer events.
        without: Streams (decider, decider_id), and the offset from which on their events are left out.
        upcasts: How data of older versions of events is read as the newest one's: an option of the source.
    """

    dsn: str
    owner: str
    columns: tuple[str, ...]
    extract: Mapping[str, tuple[str, ...]]
    deciders: tuple[str, ...] | None
    events: tuple[str, ...] | None
    readers: tuple[Reader, ...]
    schema: pa.Schema
    most_bytes: int
    without: tuple[tuple[str, str, int], ...] = ()
    upcasts: str = "[]"

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read and yield the rows of all models, and a report."""
        import psycopg

        # Spark ends a process that leaves input unread, and with it the connection
        deque(batches, maxlen=0)
        leased = read(self.dsn, self._read_leased)
        seconds: dict[str, float] = {}
        failed: dict[str, str] = {}
        size, is_too_large = 0, leased.is_too_large
        for reader in self.readers:
            if reader.view not in leased.ranges or is_too_large:
                continue
            started = time.perf_counter()
            try:
                for rows in self._rows(reader, leased):
                    size += sum(column.nbytes for column in rows.columns if column.null_count < len(column))
                    if size > COPIES * self.most_bytes:
                        is_too_large = True
                        break
                    yield rows
            except (FoldFailed, HistoryShortened, DataLoss, psycopg.errors.LockNotAvailable) as error:
                # it fails alone: the other models of the round proceed
                failed[reader.view] = str(error)
            seconds[reader.view] = time.perf_counter() - started
        report = {"leases": leased.leases, "seconds": seconds, "failed": failed, "too_large": is_too_large}
        yield wide_rows(self.schema, {MODEL: [REPORT], PAYLOAD: [json.dumps(report).encode()]}, 1)

    def _read_leased(self, connection: ArrowConnection) -> "Leased":
        from psycopg import sql

        connection.rows(PLAN)
        owner = sql.Literal(self.owner).as_string()
        # first: it lists streams of leases in force, and a lease may end before the next statement
        locked = connection.rows(
            "select view, decider, decider_id"  # noqa: S608 - a literal
            f" from event_store_platform.locked_streams({owner})"
        )
        leases = connection.rows(
            "select view, partition, from_position, to_position, lease_token"  # noqa: S608 - a literal
            f" from event_store_platform.owned_leases({owner})"
        )
        views = {reader.view for reader in self.readers}
        ranges = [lease for lease in leases if lease[0] in views]
        held = dict(connection.rows("select partition, earliest_position from event_store.partitions"))
        return Leased(ranges, locked, held, self._events(connection, ranges))

    def _events(self, connection: ArrowConnection, leases: "Sequence[LeaseRow]") -> pa.Table | None:
        """Read the events of some leases, each once; None if they are too large."""
        options = EventLogOptions.read(
            {
                "dsn": lasting(self.dsn),
                "columns": json.dumps(self.columns),
                "extract": json.dumps(self.extract),
                "upcasts": self.upcasts,
                **({"deciders": json.dumps(self.deciders)} if self.deciders is not None else {}),
                **({"events": json.dumps(self.events)} if self.events is not None else {}),
            },
            "batch",
        )
        batches, size = [], 0
        ranges = union(leases)
        for batch in connection.batches(query(options, ranges).as_string()) if ranges else ():
            batches.append(fields_apart(options, batch))
            size += batch.nbytes
            if size > self.most_bytes:
                return None
        names = [*self.columns, *self.extract]
        return (
            pa.Table.from_batches(batches).rename_columns(names) if batches else pa.table({name: [] for name in names})
        )

    def _rows(self, reader: Reader, leased: "Leased") -> Iterator[pa.RecordBatch]:
        events = without_failing(leased.events_of(reader), self.without)
        if not len(events):
            return
        if isinstance(reader, ColumnsReader) and reader.rows.carried is not None:
            ordered = events.sort_by([(name, "ascending") for name in ("decider_id", "decider", ORDER)])
            carried_query = KeptQuery(self.dsn, reader.rows.carried.query)
            yield from reader.rows.of_streams(iter([ordered]), carried_query.rows)
        elif isinstance(reader, ColumnsReader):
            yield from reader.rows.of(iter([events]))
        elif isinstance(reader, FoldReader):
            ordered = events.select(list(READ)).sort_by(
                [(name, "ascending") for name in ("partition", "decider_id", "decider", "position")]
            )
            # from position 0 only failed streams can have a state: these are locked, and no round reads them
            begun = frozenset(partition for partition, (first, _) in leased.ranges[reader.view].items() if first > 0)
            fold = folder(replace(reader.task, begun=begun, connecting=KeptQuery), reader.schema)
            rows = io.BytesIO()
            with pa.ipc.new_stream(rows, reader.schema) as stream:
                for batch in fold(iter(ordered.combine_chunks().to_batches())):
                    stream.write_batch(batch)
            if rows.tell() > self.most_bytes:
                raise FoldFailed(
                    f"read model {reader.task.name}: its rows of a round are more than {self.most_bytes} bytes"
                )
            yield wide_rows(self.schema, {MODEL: [reader.number], PAYLOAD: [rows.getvalue()]}, 1)


LeaseRow = tuple[str, int, int, int, int]


class Leased:
    """The leases of an owner in one snapshot, and their events.

    Args:
        leases: View, log partition, first position, the one after the last, token.
        locked: View, decider and decider_id of the streams that have a lock; the leases do not deliver their events.
        held: The first position that each log partition still holds.
        events: The events of all leases, each once; None if they are too large to be built at once.

    Attributes:
        ranges: By view and log partition, the first position and the one after the last.
        is_too_large: Whether the events are missing because they are too large.
    """

    def __init__(
        self,
        leases: Sequence[LeaseRow],
        locked: Sequence[tuple[str, str, str]],
        held: Mapping[int, int],
        events: pa.Table | None,
    ) -> None:
        self.leases = leases
        self.ranges: dict[str, dict[int, tuple[int, int]]] = {}
        for view, partition, first, end, _ in leases:
            self.ranges.setdefault(view, {})[partition] = (first, end)
        self._locked: dict[str, list[str]] = {}
        for view, decider, decider_id in locked:
            self._locked.setdefault(view, []).append(_name(decider, decider_id))
        self._held = held
        self.is_too_large = events is None
        self._events = pa.table({}) if events is None else events

    def events_of(self, reader: Reader) -> pa.Table:
        """Return the events for a view: those of its leases that it takes, of streams without a lock.

        Raises:
            DataLoss: The log no longer holds all of them.
        """
        ranges = self.ranges[reader.view]
        for partition, (first, _) in ranges.items():
            if first < self._held[partition]:
                begins = f"log partition {partition} begins at position {self._held[partition]}"
                raise DataLoss(f"positions from {first} on are to be read", begins)
        if not len(self._events):
            return self._events
        import numpy as np

        partitions, positions = self._places
        size = max([*ranges, *partitions.tolist()], default=0) + 1
        begin, end = np.ones(size, np.int64), np.zeros(size, np.int64)
        for partition, (first, until) in ranges.items():
            begin[partition], end[partition] = first, until
        mask = pa.array((positions >= begin[partitions]) & (positions < end[partitions]))
        for name, names in (("decider", reader.deciders), ("event", reader.events)):
            if names is not None:
                mask = pc.and_(mask, pc.is_in(self._events.column(name), pa.array(names)))
        locked = self._locked.get(reader.view)
        if locked is not None:
            mask = pc.and_not(mask, pc.is_in(_names(self._events), pa.array(locked)))
        return self._events.filter(mask)

    @cached_property
    def _places(self) -> "tuple[np.ndarray, np.ndarray]":
        return tuple(self._events.column(name).to_numpy() for name in ("partition", "position"))


def without_failing(events: pa.Table, failing: Sequence[tuple[str, str, int]]) -> pa.Table:
    """Leave out the events of some streams (decider, decider_id), each from an offset on."""
    if not failing or not len(events):
        return events
    place = pc.index_in(_names(events), pa.array([_name(decider, decider_id) for decider, decider_id, _ in failing]))
    first = pa.array([offset for *_, offset in failing]).take(place.combine_chunks())
    return events.filter(pc.fill_null(pc.less(events.column(ORDER), first), fill_value=True))


def union(leases: Sequence[LeaseRow]) -> list[LogRange]:
    """Return ranges that cover those of all views, but not the gap between a view and one far behind it."""
    found: list[LogRange] = []
    for log_range in sorted(LogRange(partition, first, end) for _, partition, first, end, _ in leases):
        last = found[-1] if found else None
        if last is None or last.partition != log_range.partition or last.to_position < log_range.from_position:
            found.append(log_range)
        else:
            found[-1] = LogRange(last.partition, last.from_position, max(last.to_position, log_range.to_position))
    return found


def _name(decider: str, decider_id: str) -> str:
    # the length keeps the names of two streams apart
    return f"{len(decider.encode())} {decider}{decider_id}"


def _names(events: pa.Table) -> pa.ChunkedArray:
    """Return the `_name` of each event's stream."""
    decider = events.column("decider")
    size = pc.binary_join_element_wise(pc.binary_length(decider).cast(pa.string()), "", " ")
    return pc.binary_join_element_wise(size, decider, events.column("decider_id"), "")
