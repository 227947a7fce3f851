"""A Spark task's work on the events of a fold's streams: look up their states, fold, and write a row for each."""

import json
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from types import FrameType
from typing import Any, Self

import pyarrow as pa

from millrace.read_models.declared.column_types import exact
from millrace.read_models.declared.fold import READ
from millrace.read_models.declared.fold_event import FoldEvent, Function, State
from millrace.spark.bounded import NotReturned

# (log partition, decider, decider_id)
Stream = tuple[int, str, str]
# position, event, version, data, created_at, offset
TakenEvent = tuple[int, str, int, str, datetime, int]
Row = tuple[Any, ...]

# in rows made of events: the column that names an event that is not in them, and why; null in all other rows
MISREAD = "misread values"
# a call of a fold's function fails if it has not returned after this many seconds
CALL_S = 60.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class FoldFailed(Exception):
    """The function took too long for all events together; the text names the current event, in one line."""


@dataclass(frozen=True)
class FoldTask:
    """The needs of a task that folds streams; the declaration itself stays with the driver.

    Attributes:
        name: The read model.
        function: The fold.
        types: The public columns.
        with_decider: Whether rows name the decider of their stream.
        dsn: The event store.
        begun: The log partitions with streams that may have stored states.
        states: The query for stored states: from arrays of log partitions, deciders and ids to `STREAM`, position,
            state.
        connecting: The class that runs the query.
        patience_s: How long the function may take for an event.
        for_all: Whether that time is for all events together.
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

    def streams(self, batches: Iterator[pa.RecordBatch]) -> "Iterator[StreamFold]":
        """Fold batches of `READ` columns, sorted by stream and position; yield each stream at its end.

        Raises:
            FoldFailed: All events together took too long.
        """
        with self.connecting(self.dsn, self.states) as query, Watch(self.patience_s, for_all=self.for_all) as watch:
            stored = StoredStates(query)
            # the current stream; its events may continue in the next batch
            now: StreamFold | None = None
            for batch in batches:
                columns = columns_of(batch)
                stored.look_up(
                    {
                        s
                        for s in zip(*columns[:3], strict=True)
                        if s[0] in self.begun and (now is None or s != now.stream)
                    }
                )
                for row in zip(*columns, strict=True):
                    stream = row[:3]
                    if now is None or now.stream != stream:
                        if now is not None:
                            yield now
                        now = StreamFold(self, watch, stream, *stored.take(stream))
                    now.take(row[3:])
                if now is not None:
                    now.settle()
            if now is not None:
                yield now


def folder(task: FoldTask, schema: pa.Schema) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for `mapInArrow` over `READ` columns, sorted by stream and position: one row per stream.

    `schema` is the rows' Arrow schema, with MISREAD at its end. A failing stream has a row of its events before the
    failing one, and a row with MISREAD, which describes the failing event.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return in_batches((row for folded in task.streams(batches) for row in folded.rows()), schema)

    return run


class Watch:
    """Ends calls of the function that do not return, during a `with` block.

    A signal ends them, so it needs Python between two steps of the function: a call that never comes back from a
    library, or that catches everything again and again, runs until Spark ends the process.

    Attributes:
        at: The event that the function is called with at this moment.

    Args:
        seconds: How long a call may take; it ends after up to twice as long.
        for_all: Whether that time is for all calls together, and not for each.
    """

    __slots__ = ("_for_all", "_former_handler", "_last_at", "_seconds", "at")

    def __init__(self, seconds: float, *, for_all: bool) -> None:
        self.at: FoldEvent | None = None
        self._seconds = seconds
        self._for_all = for_all
        self._last_at: FoldEvent | None = None
        self._former_handler: Any = None

    def __enter__(self) -> Self:
        # Python takes signals in its main thread, which is where Spark's tasks run
        if threading.current_thread() is threading.main_thread():
            self._former_handler = signal.signal(signal.SIGALRM, self._end_call)
            # repeatedly: a signal that comes between two calls ends none
            signal.setitimer(
                signal.ITIMER_REAL, self._seconds, min(self._seconds, 1.0) if self._for_all else self._seconds
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._former_handler is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._former_handler)

    def _end_call(self, _number: int, _frame: FrameType | None) -> None:
        # the same event as at the last look, not another one after a quick call
        if self.at is not None and (self._for_all or self.at is self._last_at):
            of = " for the events of a round" if self._for_all else ""
            raise NotReturned(f"the function had not returned after {self._seconds:g} s{of}")
        self._last_at = self.at


class StreamFold:
    """One stream while it is folded.

    A state may be impossible to store, and a later event may correct that. So storing is tried at the end, and between
    batches. If the last state cannot be stored, the events since the last storable state are folded once more, one by
    one.

    Args:
        task: The fold.
        watch: Ends a call of its function that does not return.
        stream: The stream.
        position: The position up to which its stored state was folded.
        state: That state, as JSON; None if there is none.
    """

    __slots__ = (
        "_failed",
        "_function",
        "_position",
        "_row",
        "_since",
        "_state",
        "_stored",
        "_task",
        "_watch",
        "stream",
    )

    def __init__(self, task: FoldTask, watch: Watch, stream: Stream, position: int, state: str | None) -> None:
        self.stream = stream
        self._task = task
        self._watch = watch
        self._function = task.function
        self._state: State | None = None if state is None else json.loads(state)
        self._position = position
        # the last state that could be stored, its row if that is a new one, and the events since
        self._stored = state
        self._row: Row | None = None
        self._since: list[TakenEvent] = []
        # the event that alone makes the stream fail, and the error
        self._failed: tuple[int, str] | None = None

    def take(self, event: TakenEvent) -> None:
        """Fold an event, unless it is in the state already, or the stream failed before."""
        if event[0] <= self._position or self._failed is not None:
            return
        try:
            self._state = self._called(self._state, event)
        except _Fails as fails:
            self._failed = (event[-1], str(fails))
            # the function may have changed the state before it failed
            self._fold_again()
            return
        self._position = event[0]
        self._since.append(event)

    def settle(self) -> None:
        """Keep the state if it can be stored."""
        if self._since:
            with suppress(_Fails):
                self._keep_state(self._state, self._since[-1])
                self._since = []

    def rows(self) -> list[Row]:
        """Return the stream's row, if some event changed it, and a row for the event that it fails at."""
        self.settle()
        self._fold_again()
        partition, decider, decider_id = self.stream
        key = (partition, decider, decider_id) if self._task.with_decider else (partition, decider_id)
        rows = [] if self._row is None else [(*key, *self._row, None)]
        if self._failed is not None:
            offset, error = self._failed
            misread = {"partition": partition, "offset": offset, "stream": [decider, decider_id], "error": error}
            rows.append((*key, *([None] * (len(self._task.types) + 2)), json.dumps(misread)))
        return rows

    def _fold_again(self) -> None:
        """Fold the events since the last storable state, up to the one from which on no state can be stored."""
        state: State | None = None if self._stored is None else json.loads(self._stored)
        failed: tuple[int, str] | None = None
        for event in self._since:
            try:
                state = self._called(state, event)
            except _Fails as fails:  # it did not before
                failed = failed or (event[-1], str(fails))
                break
            try:
                self._keep_state(state, event)
            except _Fails as fails:
                failed = failed or (event[-1], str(fails))
            else:
                failed = None
        self._failed, self._since = failed or self._failed, []

    def _called(self, state: State | None, event: TakenEvent) -> State | None:
        _, name, version, data, created_at, offset = event
        _, decider, decider_id = self.stream
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:  # Postgres holds JSON that Python cannot read
            raise self._fails(event, error) from error
        called = FoldEvent(decider, decider_id, name, version, value, created_at, offset)
        try:
            self._watch.at = called
            try:
                return self._function(state, called)
            finally:
                # inside: an error that the watch raises until here is caught below
                self._watch.at = None
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # also SystemExit fails the event, and does not end Spark's worker
            if not isinstance(error, NotReturned):
                raise self._fails(event, error) from error
            fails = self._fails(event, TimeoutError(str(error)))
            # no single event is to blame if all together took too long
            raise (FoldFailed(str(fails)) if self._task.for_all else fails) from error

    def _keep_state(self, state: State | None, event: TakenEvent) -> None:
        """Keep a state after an event, if it can be stored."""
        try:
            text, values = stored_row(state, self._task.types)
        except Exception as error:
            raise self._fails(event, error) from error
        self._stored, self._row = text, (event[0], text, *values)

    def _fails(self, event: TakenEvent, error: BaseException) -> "_Fails":
        """Describe a failure in one line: the event, its stream and the error."""
        why = traceback.format_exception_only(error)[-1].strip().splitlines()[-1]
        _, decider, decider_id = self.stream
        return _Fails(
            f"read model {self._task.name} failed at {decider} {decider_id!r}, offset {event[-1]}, event {event[1]!r}: {why}"
        )


class _Fails(Exception):
    """A stream fails at an event; the text names the event and the reason, in one line."""


class TaskQuery:
    """A query that a task runs; it connects when it first runs."""

    def __init__(self, dsn: str, query: str) -> None:
        self._dsn = dsn
        self._query = query
        self._connection: Any = None

    def __enter__(self) -> "TaskQuery":
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()

    def rows(self, parameters: dict[str, Any]) -> Iterable[tuple[Any, ...]]:
        """Return the rows of the query, given its parameters."""
        from millrace.postgres.connecting import connect

        if self._connection is None:
            self._connection = connect(self._dsn)
        found: Iterable[tuple[Any, ...]] = self._connection.execute(self._query, parameters)
        return found


class StoredStates:
    """The stored states of a batch's streams, as a query finds them."""

    def __init__(self, query: TaskQuery) -> None:
        self._query = query
        self._found: dict[Stream, tuple[int, str | None]] = {}

    def look_up(self, streams: set[Stream]) -> None:
        """Read the states of streams that have one; they replace those that were read before."""
        self._found = {}
        if not streams:
            return
        partitions, deciders, ids = (list(values) for values in zip(*streams, strict=True))
        for partition, decider, decider_id, position, text in self._query.rows(
            {"partitions": partitions, "deciders": deciders, "ids": ids}
        ):
            self._found[partition, decider, decider_id] = (position, text)

    def take(self, stream: Stream) -> tuple[int, str | None]:
        """Return a stream's position and state, as JSON; if none is stored, a position before all others and None."""
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
    return [
        # Arrow's own way to make datetimes takes half of a fold's time
        [_EPOCH + timedelta(microseconds=micros) for micros in batch.column(name).cast(pa.int64()).to_pylist()]
        if name == "created_at"
        else batch.column(name).to_pylist()
        for name in READ
    ]


def in_batches(rows: Iterator[Row], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield rows as Arrow."""
    while some := list(islice(rows, 10_000)):
        yield pa.RecordBatch.from_arrays(
            [pa.array(values, type=one.type) for values, one in zip(zip(*some, strict=True), schema, strict=True)],
            schema=schema,
        )
