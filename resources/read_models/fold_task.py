"""A Spark task's work on the events of a fold's streams: look up their states, fold, and write a row for each.

Belongs here: everything that runs in the task. Not here: the declaration (`fold`), the plan that sorts the events
(`plans`), the query for stored states (`merge`).
"""

import json
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from millrace.resources.read_models.column_types import exact
from millrace.resources.read_models.fold import READ, Event, Fold, Function, State

# (log partition, decider, decider_id)
Stream = tuple[int, str, str]
Row = tuple[Any, ...]

_ROWS = 10_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class FoldFailed(Exception):
    """The function failed at an event; the text names the read model, the event and the failure, in one line."""


def folder(
    fold: Fold, dsn: str, fresh: frozenset[int], states: str, schema: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for `mapInArrow` over `READ` columns, sorted by stream and position: one row per stream.

    Args:
        fold: The read model.
        dsn: The event store.
        fresh: The log partitions that are folded from their first event.
        states: The query for stored states: from arrays of log partitions, deciders and ids to `STREAM`, position,
            state.
        schema: The rows' Arrow schema.
    """
    # only the task's needs: the declaration itself stays here
    name, function, types, with_decider = fold.name, fold.function, fold.types, "decider" in fold.keys

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        done: list[Row] = []
        with StoredStates(dsn, states) as stored:
            # the stream whose events come now; they may go on in the next batch
            now: StreamFold | None = None
            for batch in batches:
                columns = columns_of(batch)
                stored.look_up(
                    {
                        s
                        for s in zip(*columns[:3], strict=True)
                        if s[0] not in fresh and (now is None or s != now.stream)
                    }
                )
                for partition, decider, decider_id, position, *event in zip(*columns, strict=True):
                    stream = (partition, decider, decider_id)
                    if now is None or now.stream != stream:
                        if now is not None:
                            done += now.rows(types, with_decider=with_decider)
                        now = StreamFold(name, function, stream, *stored.take(stream))
                    now.take(position, *event)
                if len(done) >= _ROWS:
                    yield batch_of(done, schema)
                    done.clear()
            if now is not None:
                done += now.rows(types, with_decider=with_decider)
        if done:
            yield batch_of(done, schema)

    return run


class StreamFold:
    """One stream while it is folded.

    Args:
        name: The read model.
        function: The fold.
        stream: The stream.
        position: Up to which position its stored state was folded.
        state: That state.
    """

    __slots__ = ("_before", "_function", "_last", "_name", "_position", "_state", "stream")

    def __init__(self, name: str, function: Function, stream: Stream, position: int, state: State | None) -> None:
        self.stream = stream
        self._name = name
        self._function = function
        self._state = state
        self._before = self._position = position
        self._last: Event | None = None

    def take(self, position: int, event: str, event_version: int, data: str, created_at: datetime, offset: int) -> None:
        """Fold the event at a position, unless it is in the state already.

        Raises:
            FoldFailed: The function fails at the event.
        """
        if position <= self._position:
            return
        _, decider, decider_id = self.stream
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:  # Postgres holds JSON that Python cannot read
            unread = Event(decider, decider_id, event, event_version, None, created_at, offset)
            raise FoldFailed(failure(self._name, unread, error)) from error
        self._last = Event(decider, decider_id, event, event_version, value, created_at, offset)
        try:
            self._state = self._function(self._state, self._last)
        except Exception as error:
            raise FoldFailed(failure(self._name, self._last, error)) from error
        self._position = position

    def rows(self, types: Mapping[str, str], *, with_decider: bool) -> list[Row]:
        """Return the stream's row, if some event changed it.

        Raises:
            FoldFailed: The state cannot be stored.
        """
        if self._last is None or self._position <= self._before:
            return []
        try:
            text, values = stored_row(self._state, types)
        except Exception as error:
            raise FoldFailed(failure(self._name, self._last, error)) from error
        partition, *names = self.stream
        return [(partition, *(names if with_decider else names[1:]), self._position, text, *values)]


class StoredStates:
    """The stored states of streams, looked up for all streams of a batch of events; it connects at the first need."""

    def __init__(self, dsn: str, query: str) -> None:
        self._dsn = dsn
        self._query = query
        self._found: dict[Stream, tuple[int, State | None]] = {}
        self._connection: Any = None

    def __enter__(self) -> "StoredStates":
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()

    def look_up(self, streams: set[Stream]) -> None:
        """Read the states of streams that have one, in place of those that were read before."""
        import psycopg

        self._found = {}
        if not streams:
            return
        if self._connection is None:
            self._connection = psycopg.connect(self._dsn, autocommit=True)
        partitions, deciders, ids = (list(values) for values in zip(*streams, strict=True))
        # the state comes as text
        for partition, decider, decider_id, position, text in self._connection.execute(
            self._query, {"partitions": partitions, "deciders": deciders, "ids": ids}
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


def failure(name: str, event: Event, error: Exception) -> str:
    """Describe a failure in one line: the event, its stream and the error."""
    why = traceback.format_exception_only(error)[-1].strip().splitlines()[-1]
    return (
        f"read model {name} failed at {event.decider} {event.decider_id!r}, offset {event.offset}, "
        f"event {event.event!r}: {why}"
    )


def batch_of(rows: Sequence[Row], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows as Arrow."""
    return pa.RecordBatch.from_arrays(
        [pa.array(values, type=one.type) for values, one in zip(zip(*rows, strict=True), schema, strict=True)],
        schema=schema,
    )
