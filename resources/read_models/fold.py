"""Read models that are a fold in Python: a function (state, event) -> state, run over each stream in order.

Belongs here: the declaration, and what a Spark task does with the events of its streams. Not here: Spark's plan
(`read_model_build`), the tables (`read_model_tables`).

    @fold(view="carts", deciders=["cart"], key="cart_id", columns={"items": "int"})
    def carts(state: State | None, event: Event) -> State | None:
        \"\"\"One row per cart.\"\"\"

A state is stored as JSON with the position up to which it was folded, one row per stream, and a later one replaces it. A
drain goes on from the stored state, a rebuild from None. Events at or below a state's position are in it already: reading them
again changes nothing.

Prefer columns (`read_model`) where they say it: they are several times faster.
"""

import ast
import hashlib
import inspect
import json
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from textwrap import dedent
from typing import Any, NamedTuple

import pyarrow as pa

from millrace.resources.read_models.column_types import ALLOWED_TYPES, exact, is_type, postgres_type
from millrace.resources.read_models.columns import KeyColumn, StateColumn, replaced, replaced_position
from millrace.resources.read_models.declaration import ReadModel, naming_problems, refuse, snake_case

State = dict[str, Any]
Function = Callable[[State | None, "Event"], State | None]
# what a state is known by, and what decides which one is the latest
POSITION, STATE = "_position", "_state"
# what identifies a stream in a task's batches
STREAM = ("partition", "decider", "decider_id")
READ = (*STREAM, "position", "event", "event_version", "data", "created_at", "offset")
_ROWS = 10_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class FoldFailed(Exception):
    """The function failed at an event; the text names the read model, the event and the failure, in one line."""


class Event(NamedTuple):
    """An event as a fold sees it; `data` is the JSON's value."""

    decider: str
    decider_id: str
    event: str
    event_version: int
    data: Any
    created_at: datetime
    offset: int


@dataclass(frozen=True, kw_only=True)
class Fold(ReadModel):
    """A read model whose rows a Python function computes, one per stream.

    Attributes:
        function: From the state before (None at first) and an event to the state after; None for no row.
        types: The public columns: keys of the state and their types.
        code_version: What is raised when something that the function uses changed.
    """

    function: Function = field(repr=False)
    types: dict[str, str]
    code_version: int

    @property
    def state_columns(self) -> tuple[StateColumn, ...]:
        """The position, the state and the public columns; the latest state's are kept."""
        return (
            replaced_position(POSITION),
            # json, not jsonb: a state that is read again is the same, with its keys in order
            replaced(STATE, "string", POSITION, stored_as="json"),
            *(replaced(name, type_, POSITION) for name, type_ in self.types.items()),
        )

    @property
    def public_values(self) -> dict[str, str]:
        """The public columns are stored as they are."""
        return {name: f"{{{name}}}" for name in self.types}

    @property
    def visible(self) -> str:
        """A stream without a state has no row."""
        return f"{{{STATE}}} is not null"

    @property
    def sources(self) -> set[str]:
        """What an `Event` is made of, and what orders it."""
        return set(READ)

    @property
    def fingerprint(self) -> str:
        """Changes with the declaration and with the function's code, not with its comments or its formatting."""
        rows = (self.view, self.keys, self.types, self.deciders, self.events, self.code_version, code_of(self.function))
        return hashlib.sha256(repr(rows).encode()).hexdigest()

    def public_columns(self) -> dict[str, str]:
        """The columns of `read_models.<name>` with their Postgres types, key first."""
        types = dict.fromkeys(self.keys, "string") | self.types
        return {name: postgres_type(type_).removesuffix(' collate "C"') for name, type_ in types.items()}


def fold(
    *,
    view: str,
    key: str,
    columns: Mapping[str, str],
    deciders: Sequence[str] | None = None,
    events: Sequence[str] | None = None,
    version: int = 1,
    pooling_delay_s: int = 1,
    max_lag_s: int = 60,
) -> Callable[[Function], Fold]:
    """Declare a read model by a function: its name is the model's, its docstring says what a row is.

    The function gets the state before, None at a stream's first event, and an event, and returns the state after: a dict that
    JSON holds as it is, with texts as keys, without tuples. It must not look at anything else: not at the time, not at a
    database. None removes the row, until a later event returns a state again.

    Args:
        view: The name under which it consumes the event store.
        key: What the stream's `decider_id` is called. Unless `deciders` names exactly one, the key is `decider` and this.
        columns: The public columns: keys of the state to types; a key that is missing or None is null.
        deciders: The deciders whose events it takes; None for all.
        events: The events it takes; None for all.
        version: Raise it when the function changes what it does by something that it calls: only its own code is looked at.
        pooling_delay_s: How long to wait after a poll that found nothing, in seconds.
        max_lag_s: How old a pending event may become before the model counts as late, in seconds.

    Raises:
        InvalidReadModel: Names, key or columns do not fit together.
    """

    def declare(function: Function) -> Fold:
        name = snake_case(function.__name__)
        docstring = function.__doc__ or ""
        keys = stream_key(key, deciders)
        refuse(
            name,
            (
                *naming_problems(name, [*keys, *columns], deciders, events, docstring),
                *column_problems(keys, columns),
            ),
        )
        return Fold(
            name=name,
            view=view,
            description=" ".join(docstring.split()),
            keys=keys,
            columns={},
            deciders=tuple(sorted(set(deciders))) if deciders is not None else None,
            events=tuple(sorted(set(events))) if events is not None else None,
            pooling_delay_s=pooling_delay_s,
            max_lag_s=max_lag_s,
            function=function,
            types={column: type_.replace(" ", "") for column, type_ in columns.items()},
            code_version=version,
        )

    return declare


def stream_key(key: str, deciders: Sequence[str] | None) -> dict[str, KeyColumn]:
    """The key of a model with one row, or one set of rows, per stream."""
    stream = {key: KeyColumn("decider_id")}
    return stream if deciders is not None and len(set(deciders)) == 1 else {"decider": KeyColumn("decider")} | stream


def column_problems(keys: Iterable[str], columns: Mapping[str, str]) -> Iterator[tuple[Sequence[str], str]]:
    """What may be wrong with public columns that are declared by their types."""
    yield [n for n in columns if n in set(keys)], "is a column and in the key: rename one"
    yield [] if columns else ["columns"], "is empty: name at least one public column and its type"
    for name, type_ in columns.items():
        bad = not isinstance(type_, str) or not is_type(type_.replace(" ", ""))
        yield [name] if bad else [], f"has type {type_!r}; allowed: {ALLOWED_TYPES}"


def code_of(function: Callable[..., object]) -> str:
    """A function's code without comments, docstring and decorators."""
    tree = ast.parse(dedent(inspect.getsource(function)))
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []
    if ast.get_docstring(definition) is not None:
        definition.body = definition.body[1:] or [ast.Pass()]
    return ast.unparse(definition)


def folder(
    fold: Fold, dsn: str, fresh: frozenset[int], states: str, schema: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow` over `READ` columns, sorted by stream and position: one row per stream.

    Args:
        fold: The read model.
        dsn: The event store.
        fresh: The log partitions that are folded from their first event.
        states: The query for stored states: from arrays of log partitions, deciders and ids to `STREAM`, position and state.
        schema: The rows' Arrow schema.
    """
    # only what the task needs: the declaration itself stays here
    name, function, types, with_decider = fold.name, fold.function, fold.types, "decider" in fold.keys

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        done: list[tuple[Any, ...]] = []
        with StoredStates(dsn, states) as stored:
            stream: tuple[Any, ...] | None = None
            state: State | None = None
            before = position = -1
            last: Event | None = None

            def finish() -> None:
                if stream is None or last is None or position <= before:
                    return
                try:
                    text, values = stored_row(state, types)
                except Exception as error:
                    raise FoldFailed(failure(name, last, error)) from error
                done.append((stream[0], *stream[1 if with_decider else 2 :], position, text, *values))

            for batch in batches:
                columns = [
                    _moments(batch.column(column)) if column == "created_at" else batch.column(column).to_pylist()
                    for column in READ
                ]
                stored.look_up({s for s in zip(*columns[:3], strict=True) if s[0] not in fresh and s != stream})
                for partition, decider, decider_id, at, event, event_version, data, created_at, offset in zip(
                    *columns, strict=True
                ):
                    if stream != (partition, decider, decider_id):
                        finish()
                        stream, last = (partition, decider, decider_id), None
                        position, state = stored.take(stream)
                        before = position
                    if at <= position:
                        continue
                    last = Event(decider, decider_id, event, event_version, json.loads(data), created_at, offset)
                    try:
                        state = function(state, last)
                    except Exception as error:
                        raise FoldFailed(failure(name, last, error)) from error
                    position = at
                if len(done) >= _ROWS:
                    yield batch_of(done, schema)
                    done.clear()
            finish()
        if done:
            yield batch_of(done, schema)

    return run


class StoredStates:
    """The states of streams, read from Postgres for as many as a batch of events has, through a connection opened at need."""

    def __init__(self, dsn: str, query: str) -> None:
        self._dsn = dsn
        self._query = query
        self._found: dict[tuple[Any, ...], tuple[int, State | None]] = {}
        self._connection: Any = None

    def __enter__(self) -> "StoredStates":
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()

    def look_up(self, streams: set[tuple[Any, ...]]) -> None:
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

    def take(self, stream: tuple[Any, ...]) -> tuple[int, State | None]:
        """The position and the state of a stream; before everything, and None, where nothing is stored."""
        return self._found.pop(stream, (-1, None))


def stored_row(state: State | None, types: Mapping[str, str]) -> tuple[str | None, list[object]]:
    """A state as JSON, and its public columns.

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


def _moments(column: pa.Array) -> list[datetime]:
    """The datetimes of a column of timestamps in microseconds; Arrow takes half of a fold's time for it."""
    return [_EPOCH + timedelta(microseconds=micros) for micros in column.cast(pa.int64()).to_pylist()]


def failure(name: str, event: Event, error: Exception) -> str:
    """What failed where, in one line."""
    why = traceback.format_exception_only(error)[-1].strip().splitlines()[-1]
    return (
        f"read model {name} failed at {event.decider} {event.decider_id!r}, offset {event.offset}, "
        f"event {event.event!r}: {why}"
    )


def batch_of(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    """Rows as Arrow."""
    return pa.RecordBatch.from_arrays(
        [pa.array(values, type=one.type) for values, one in zip(zip(*rows, strict=True), schema, strict=True)],
        schema=schema,
    )
