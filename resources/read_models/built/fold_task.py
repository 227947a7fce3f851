"""A Spark task's work on the events of a fold's streams: look up their states, fold, and write a row for each."""

import json
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from types import FrameType
from typing import Any, Self, TypeVar

import pyarrow as pa

from millrace.resources.read_models.declared.column_types import exact
from millrace.resources.read_models.declared.fold import READ
from millrace.resources.read_models.declared.fold_event import FoldEvent, Function, State
from millrace.resources.spark.bounded import NotReturned

# (log partition, decider, decider_id)
Stream = tuple[int, str, str]
Row = tuple[Any, ...]

# what is told of a stream that fails: itself, the event, the error
TOLD = {"partition": "int", "decider": "string", "decider_id": "string", "offset": "bigint", "error": "string"}
# a call of a fold's function that has not returned after so long fails
CALL_S = 60.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class FoldFailed(Exception):
    """The function failed at an event; the text names the read model, the event and the failure, in one line."""


@dataclass(frozen=True)
class FoldTask:
    """The needs of a task that folds streams; the declaration itself stays with the driver.

    Attributes:
        name: The read model.
        function: The fold.
        types: The public columns.
        with_decider: Whether rows name the decider of their stream.
        dsn: The event store.
        begun: The log partitions whose streams may have stored states.
        states: The query for stored states: from arrays of log partitions, deciders and ids to `STREAM`, position,
            state.
        connecting: How it is run.
        patience_s: How long the function may take for an event.
        for_all: Whether it may take so long for all events together.
    """

    name: str
    function: Function
    types: Mapping[str, str]
    with_decider: bool
    dsn: str
    begun: frozenset[int]
    states: str
    connecting: "type[TaskQuery]"
    patience_s: float
    for_all: bool = False

    def streams(self, batches: Iterator[pa.RecordBatch], kind: "type[Folded]") -> "Iterator[Folded]":
        """Fold batches of `READ` columns, sorted by stream and position; yield each stream at its end.

        Raises what `kind.take` raises.
        """
        with self.connecting(self.dsn, self.states) as query, Watch(self.patience_s, for_all=self.for_all) as watch:
            stored = StoredStates(query)
            # the stream whose events come now; they may go on in the next batch
            now: Folded | None = None
            for batch in batches:
                columns = columns_of(batch)
                stored.look_up(
                    {
                        s
                        for s in zip(*columns[:3], strict=True)
                        if s[0] in self.begun and (now is None or s != now.stream)
                    }
                )
                for partition, decider, decider_id, position, *event in zip(*columns, strict=True):
                    stream = (partition, decider, decider_id)
                    if now is None or now.stream != stream:
                        if now is not None:
                            yield now
                        now = kind(self, watch, stream, *stored.take(stream))
                    now.take(position, *event)
            if now is not None:
                yield now


def folder(task: FoldTask, schema: pa.Schema) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for `mapInArrow` over `READ` columns, sorted by stream and position: one row per stream.

    `schema` is the rows' Arrow schema. The function raises FoldFailed for the first stream that fails.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return in_batches((row for folded in task.streams(batches, StreamFold) for row in folded.rows()), schema)

    return run


def teller(task: FoldTask, schema: pa.Schema) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for `mapInArrow` over the same events that gives one row per stream that fails, by `TOLD`."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tried = task.streams(batches, TriedFold)
        return in_batches(((*one.stream, *one.failed) for one in tried if one.failed is not None), schema)

    return run


class Watch:
    """Ends calls of the function that do not return, during a `with` block.

    A signal ends them, so it needs Python between two steps of the function: what never comes back from a library, or
    catches everything again and again, goes on until Spark ends the process.

    Attributes:
        at: The event that the function is called with at this moment.

    Args:
        seconds: How long a call may take, up to twice as long.
        for_all: Whether all calls together may take so long, and not each.
    """

    __slots__ = ("_before", "_for_all", "_seconds", "_seen", "at")

    def __init__(self, seconds: float, *, for_all: bool) -> None:
        self.at: FoldEvent | None = None
        self._seconds = seconds
        self._for_all = for_all
        self._seen: FoldEvent | None = None
        self._before: Any = None

    def __enter__(self) -> Self:
        # Python takes signals in its main thread, which is where Spark's tasks run
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGALRM, self._look)
            # again and again: one that comes between two calls ends none
            signal.setitimer(
                signal.ITIMER_REAL, self._seconds, min(self._seconds, 1.0) if self._for_all else self._seconds
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before)

    def _look(self, _number: int, _frame: FrameType | None) -> None:
        # the same event as at the last look, and not another one that the function was quick with
        if self.at is not None and (self._for_all or self.at is self._seen):
            of = " for the events of a round" if self._for_all else ""
            raise NotReturned(f"the function had not returned after {self._seconds:g} s{of}")
        self._seen = self.at


class StreamFold:
    """One stream while it is folded.

    Args:
        task: The fold.
        watch: What ends a call of its function that does not return.
        stream: The stream.
        position: Up to which position its stored state was folded.
        state: That state.
    """

    __slots__ = ("_before", "_function", "_last", "_position", "_state", "_task", "_watch", "stream")

    def __init__(self, task: FoldTask, watch: Watch, stream: Stream, position: int, state: State | None) -> None:
        self.stream = stream
        self._task = task
        self._watch = watch
        self._function = task.function
        self._state = state
        self._before = self._position = position
        self._last: FoldEvent | None = None

    def take(self, position: int, event: str, event_version: int, data: str, created_at: datetime, offset: int) -> None:
        """Fold the event at a position, unless it is in the state already.

        Raises:
            FoldFailed: The function fails at the event, or does not return.
        """
        if position <= self._position:
            return
        _, decider, decider_id = self.stream
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:  # Postgres holds JSON that Python cannot read
            unread = FoldEvent(decider, decider_id, event, event_version, None, created_at, offset)
            raise FoldFailed(failure(self._task.name, unread, error)) from error
        self._last = FoldEvent(decider, decider_id, event, event_version, value, created_at, offset)
        try:
            self._watch.at = self._last
            try:
                self._state = self._function(self._state, self._last)
            finally:
                # inside: what the watch raises until here is caught below
                self._watch.at = None
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # also SystemExit is the event's failure, and no end of Spark's worker
            said = TimeoutError(str(error)) if isinstance(error, NotReturned) else error
            raise FoldFailed(failure(self._task.name, self._last, said)) from error
        self._position = position

    def rows(self) -> list[Row]:
        """Return the stream's row, if some event changed it.

        Raises:
            FoldFailed: The state cannot be stored.
        """
        if self._last is None or self._position <= self._before:
            return []
        try:
            text, values = stored_row(self._state, self._task.types)
        except Exception as error:
            raise FoldFailed(failure(self._task.name, self._last, error)) from error
        partition, *names = self.stream
        return [(partition, *(names if self._task.with_decider else names[1:]), self._position, text, *values)]


class TriedFold(StreamFold):
    """A stream while it is folded to see where it fails; it is tried after each event whether its state can be stored.

    Attributes:
        failed: The offset of an event with which the stream fails, and without which it does not, and the error.
    """

    __slots__ = ("_given_up", "failed")

    def __init__(self, task: FoldTask, watch: Watch, stream: Stream, position: int, state: State | None) -> None:
        super().__init__(task, watch, stream, position, state)
        self.failed: tuple[int, str] | None = None
        self._given_up = False

    def take(self, position: int, event: str, event_version: int, data: str, created_at: datetime, offset: int) -> None:
        """Fold the event at a position, unless it is in the state already, or the function failed before."""
        if self._given_up:
            return
        try:
            super().take(position, event, event_version, data, created_at, offset)
        except FoldFailed as error:
            self._given_up = True
            self._fails(offset, error)
            return
        try:
            self.rows()
        except FoldFailed as error:
            self._fails(offset, error)
        else:
            self.failed = None  # a later event made good what could not be stored

    def _fails(self, offset: int, error: FoldFailed) -> None:
        # as Python tells of it where nobody catches it
        self.failed = self.failed or (offset, f"{FoldFailed.__module__}.{FoldFailed.__qualname__}: {error}")


Folded = TypeVar("Folded", bound=StreamFold)


class TaskQuery:
    """A query that a task runs; it connects at the first need."""

    def __init__(self, dsn: str, query: str) -> None:
        self._dsn = dsn
        self._query = query
        self._connection: Any = None

    def __enter__(self) -> "TaskQuery":
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()

    def rows(self, given: dict[str, Any]) -> Iterable[tuple[Any, ...]]:
        """Return the rows of the query, given its parameters."""
        from millrace.resources.connecting import connect

        if self._connection is None:
            self._connection = connect(self._dsn)
        found: Iterable[tuple[Any, ...]] = self._connection.execute(self._query, given)
        return found


class StoredStates:
    """The stored states of a batch's streams, as a query finds them."""

    def __init__(self, query: TaskQuery) -> None:
        self._query = query
        self._found: dict[Stream, tuple[int, State | None]] = {}

    def look_up(self, streams: set[Stream]) -> None:
        """Read the states of streams that have one, in place of those that were read before."""
        self._found = {}
        if not streams:
            return
        partitions, deciders, ids = (list(values) for values in zip(*streams, strict=True))
        # the state comes as text
        for partition, decider, decider_id, position, text in self._query.rows(
            {"partitions": partitions, "deciders": deciders, "ids": ids}
        ):
            self._found[partition, decider, decider_id] = (position, None if text is None else json.loads(text))

    def take(self, stream: Stream) -> tuple[int, State | None]:
        """Return a stream's position and state; where nothing is stored, one before all positions and None."""
        return self._found.pop(stream, (-1, None))


def stored_row(state: State | None, types: Mapping[str, str]) -> tuple[str | None, list[object]]:
    """Return a state as JSON, and its public columns.

    Raises:
        TypeError: The state is no dict, or JSON would change it.
        ValueError: A public column's type does not hold its value exactly.
    """
    if state is None:
        return None, [None] * len(types)
    if not isinstance(state, dict):
        raise TypeError(f"the state is a {type(state).__name__}; return a dict or None")
    text = json.dumps(state, allow_nan=False)
    if json.loads(text) != state:
        raise TypeError("JSON would change the state: use texts as keys, and lists, not tuples")
    values: list[object] = []
    for name, type_ in types.items():
        try:
            values.append(None if state.get(name) is None else exact(state[name], type_))
        except ValueError as error:
            raise ValueError(f"column {name}: {error}") from None
    return text, values


def columns_of(batch: pa.RecordBatch) -> list[list[Any]]:
    """Return the values of the `READ` columns of a batch."""
    return [_moments(batch.column(name)) if name == "created_at" else batch.column(name).to_pylist() for name in READ]


def _moments(column: pa.Array) -> list[datetime]:
    """Return the datetimes of a column of timestamps; Arrow's own way takes half of a fold's time."""
    return [_EPOCH + timedelta(microseconds=micros) for micros in column.cast(pa.int64()).to_pylist()]


def failure(name: str, event: FoldEvent, error: BaseException) -> str:
    """Describe a failure in one line: the event, its stream and the error."""
    why = traceback.format_exception_only(error)[-1].strip().splitlines()[-1]
    return (
        f"read model {name} failed at {event.decider} {event.decider_id!r}, offset {event.offset}, "
        f"event {event.event!r}: {why}"
    )


def in_batches(rows: Iterator[Row], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield rows as Arrow."""
    while some := list(islice(rows, 10_000)):
        yield pa.RecordBatch.from_arrays(
            [pa.array(values, type=one.type) for values, one in zip(zip(*some, strict=True), schema, strict=True)],
            schema=schema,
        )
