"""A read model: a name, the view that it is consumed as, a key and columns.

Not here: kinds of columns (`columns`), models that are functions (`function_model`).

    @read_model(view="orders", deciders=["order"], key=["order_id"])
    class Orders:
        \"\"\"One row per order: where it stands and what it is worth.\"\"\"
        order_id = stream_id()
        status = last("event")
"""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Self, TypeVar

from psycopg import sql

from millrace.errors import InvalidReadModel
from millrace.labels import labels_fault
from millrace.read_models.declared.carried import Carried
from millrace.read_models.declared.column_types import ARRAY, InvalidColumn, postgres_type
from millrace.read_models.declared.columns import Column, KeyColumn, StateColumn, data_path, item_path, last_position
from millrace.read_models.declared.computed import Computed, Value, as_operand, values_with
from millrace.read_models.declared.indexes import Declared, Index, as_indexes, index_problems
from millrace.read_models.declared.items import Items
from millrace.read_models.declared.lookups import Lookup, require_keys
from millrace.read_models.declared.upcasts import Path, Touching, Upcast, as_option, touching
from millrace.read_models.declared.words import require_of_events
from millrace.user_code import snake_case

if TYPE_CHECKING:
    from millrace.event_schemas.model import DeclaredEvent
    from millrace.read_models.declared.rollups import Rollup

# Postgres cuts identifiers at 63 bytes, and the longest suffix of ours is `_state_12345678_all`
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
# the columns of a staged row that are not the model's, and those that Postgres gives each table
_RESERVED = {"partition", "batch", "attempt", "staged_at", "tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"}
# names of tables in the schema read_models, and of models as of a moment and of diffs, which are removed by their names
_TABLE = re.compile(r"declarations|as_of|diffs|batch_seq|.*_(state|staging)(_.*)?|.*_(at|diff)_[0-9]+(_before|_rows)?")


# The version of the tables' layout: a model with another number is built anew. `stream_state.sql` has it, too.
LAYOUT = 2
# the offsets of a key's last event and of its last removal: the row exists unless they are equal
_LAST, _LAST_DELETE = "_last_offset", "_last_delete_offset"

Problem = tuple[Sequence[str], str]
Model = TypeVar("Model", bound="ReadModel")


@dataclass(frozen=True)
class ReadModel:
    """A declared read model.

    Attributes:
        name: Its name: the table `read_models.<name>`, the asset, the Python class in snake_case.
        view: The event store's view that it is consumed as.
        description: The meaning of one row.
        keys: The columns of its key, in order.
        columns: Its other columns, in order.
        deciders: The deciders it takes events of; None for all.
        events: The events it takes; None for all.
        deletes: The events that remove a row; none for rows that stay.
        version: Which of the model's declarations this is, counted in the order of their first builds; its tables have
            the rows.
        pooling_delay_s: How long a drain waits after a poll that found nothing, in seconds.
        max_lag_s: How old a pending event may become before the model counts as late, in seconds.
        serve: When a changed declaration serves: `built`, once it has caught up, or `approved`, once an operator has
            also approved it.
        upcasts: All upcasts that the store had when the model was resolved; None before.
        unregistered: The upcasts of declared events that the model takes, and that the store did not have then.
        indexes: The indexes of its rows, without the index of its key.
        declared_events: The declared events that have upcasts; None if a file of events fails to load.
        computed: The columns that are computed from the others when a row is read.
        lookups: The columns that show another read model's row.
        rollups: Rollups of its rows.
        all_rollups: Whether these are all declared rollups, so that others are dropped.
        each: As a source, the array with elements that each count as an event does; None if events count.
        owners: The owners that Dagster shows.
        tags: The tags that Dagster shows.
        feed: Whether its changes are events of the decider `model:<name>`.
    """

    name: str
    view: str
    description: str
    keys: dict[str, KeyColumn]
    columns: dict[str, Column]
    deciders: tuple[str, ...] | None = None
    events: tuple[str, ...] | None = None
    pooling_delay_s: int = 1
    max_lag_s: int = 60
    deletes: tuple[str, ...] = ()
    version: int = 1
    serve: str = "built"
    upcasts: tuple[Upcast, ...] | None = None
    computed: dict[str, Computed] = field(default_factory=dict)
    lookups: dict[str, Lookup] = field(default_factory=dict)
    is_rollup: ClassVar[bool] = False
    rollups: "tuple[Rollup, ...]" = field(default=(), repr=False, compare=False)
    all_rollups: bool = field(default=False, repr=False, compare=False)
    each: str | None = None
    unregistered: tuple[Upcast, ...] = ()
    indexes: tuple[Index, ...] = ()
    declared_events: "tuple[DeclaredEvent, ...] | None" = field(default=(), repr=False, compare=False)
    owners: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    feed: bool = False

    def at_version(self, version: int, view: str) -> Self:
        """Return the model as one of its versions: with that version's tables and view."""
        return replace(self, version=version, view=view)

    @property
    def state_table(self) -> str:
        """The table of partial values, in the schema `read_models`."""
        return f"{self.name}_state{self._suffix}"

    @property
    def staging_table(self) -> str:
        """The table of staged rows, in the schema `read_models`."""
        return f"{self.name}_staging{self._suffix}"

    @property
    def parts_table(self) -> str:
        """The table of each log partition's part of a row, if keys cross streams."""
        return f"{self.state_table}_parts"

    @property
    def _suffix(self) -> str:
        return "" if self.version == 1 else f"_v{self.version}"

    @property
    def crosses_streams(self) -> bool:
        """Whether one key may get events of several streams, and so of several log partitions."""
        return all(key.source != "decider_id" for key in self.keys.values())

    @property
    def adds_up(self) -> bool:
        """Whether a read adds up a public row from its parts of log partitions."""
        return False

    @property
    def stored(self) -> dict[str, Column]:
        """The declared columns, and those that decide whether a row exists."""
        if not self.deletes:
            return self.columns
        return self.columns | {_LAST: last_position(), _LAST_DELETE: last_position(self.deletes)}

    @property
    def state_columns(self) -> tuple[StateColumn, ...]:
        """The stored columns, without the log partition and the key."""
        return tuple(state for name, column in self.stored.items() for state in column.state(name))

    @property
    def public_values(self) -> dict[str, sql.Composable]:
        """The SQL expression of each column, without the key, over the stored columns."""
        values = {name: column.value(name) for name, column in self.columns.items()}
        return values | {name: value.expression for name, value in self._computed_values().items()}

    def _computed_values(self) -> dict[str, Value]:
        types = self._stored_types()
        expressions = {
            name: self.columns[name].value(name) if name in self.columns else sql.Identifier(name) for name in types
        }
        values = values_with(
            self.computed, {name: as_operand(expressions[name], type_) for name, type_ in types.items()}
        )
        return {name: values[name] for name in self.computed}

    @property
    def visible(self) -> sql.Composable:
        """The SQL condition of a public row, over the stored columns."""
        if not self.deletes:
            return sql.SQL("true")
        return sql.SQL("{} is distinct from {}").format(sql.Identifier(_LAST_DELETE), sql.Identifier(_LAST))

    @property
    def public_key(self) -> tuple[str, ...]:
        """The columns that distinguish public rows."""
        return tuple(self.keys)

    @property
    def expanded(self) -> sql.Composable:
        """The text after the state table in the public view's FROM; empty where a stored row is a public row."""
        return sql.SQL("")

    @property
    def fingerprint(self) -> str:
        """A hash of all that decides the content of rows: without the docstring and the delays.

        It belongs to the model as it is declared, and is the same for all of its versions. For upcasts it has the moves
        that decide what the model reads: a new shape of an event changes no model that does not read that part.
        """
        # as in the first layout: so rows of the first layout still match an unchanged declaration
        adds_up = self.crosses_streams and any(column.kind in {"sum", "avg"} for column in self.columns.values())
        rows = (self.view, self.keys, self.columns, self.deciders, self.events, self.deletes, adds_up)
        # apart: so models without any kept their fingerprints when these were introduced
        where = {name: column.where for name, column in self.columns.items() if column.where}
        sealed = [name for name, column in self.columns.items() if column.sealed]
        return self.hashed((*rows, *(part for part in (self.computed, self.lookups, self.each, where, sealed) if part)))

    def hashed(self, declared: tuple[object, ...]) -> str:
        """Return the hash of a declaration, a plus, and the hash of the tables' layout and the effect of upcasts."""
        # apart: the declaration's hash alone finds its versions
        parts = (repr(declared), f"{LAYOUT}{self.shaped_by}")
        return "+".join(hashlib.sha256(part.encode()).hexdigest() for part in parts)

    @property
    def shaped_by(self) -> str:
        """The moves that decide what the model reads; empty if none does."""
        moves = [(path, found) for path, found in self._moves() if found]
        return json.dumps(moves, sort_keys=True) if moves else ""

    @property
    def sources(self) -> set[str]:
        """The columns of the event and the fields of its data that the model reads."""
        return {source for source in self._read if item_path(source) is None}

    @property
    def items(self) -> Items | None:
        """Its reads of the elements of an array, if these are its rows."""
        paths = {source: path for source in sorted(self._read) if (path := item_path(source)) is not None}
        return None if self.each is None else Items(self.each, paths)

    @property
    def carried(self) -> Carried | None:
        """The fields that keys are carried from along streams, if there are any."""
        fields = {key.column: key.source for key in self.keys.values() if key.is_carried}
        return Carried(fields, self.events, as_option(self.seen_upcasts)) if fields else None

    @property
    def read_keys(self) -> dict[str, KeyColumn]:
        """Its reads of an event that precede its columns: the array of `each=`, then its keys."""
        return ({} if self.each is None else {"each=": KeyColumn(self.each, ARRAY)}) | self.keys

    @property
    def _read(self) -> set[str]:
        read: list[Column | KeyColumn] = [*self.read_keys.values(), *self.stored.values()]
        return {source for one in read for source in one.sources}

    @property
    def seen_upcasts(self) -> tuple[Upcast, ...]:
        """The upcasts of events with some move that decides what the model reads."""
        moved = {(decider, event) for _, found in self._moves() for decider, event, *_ in found}
        return tuple(one for one in self._known_upcasts if (one.decider, one.event) in moved)

    @property
    def _known_upcasts(self) -> tuple[Upcast, ...]:
        return (self.upcasts or ()) + self.unregistered

    def of_taken_events(self, upcasts: Iterable[Upcast]) -> list[Upcast]:
        """Return those upcasts that are of events that the model takes."""
        return [
            one
            for one in upcasts
            if (self.deciders is None or one.decider in self.deciders)
            and (self.events is None or one.event in self.events)
        ]

    def _moves(self) -> Iterator[tuple[Path, list[Touching]]]:
        """Return the paths that the model reads, in order, each with the moves that decide the value there."""
        upcasts = self.of_taken_events(self._known_upcasts)
        if not upcasts:
            return
        columns = [(source, column.events) for column in self.stored.values() for source in column.sources]
        # a fold, or a function of DataFrames, reads all data
        whole = [("data", None)] if "data" in self.sources else []
        keys = ((source, None) for key in self.read_keys.values() for source in key.sources)
        for source, events in sorted({*keys, *columns, *whole}, key=repr):
            path = data_path(source)
            if source == "data" or path:
                yield (
                    path or (),
                    touching(path or (), [one for one in upcasts if events is None or one.event in events]),
                )

    @property
    def extracted(self) -> dict[str, tuple[str, ...]]:
        """The fields of `data` that the model needs: the source's name to its path."""
        return {source: path for source in sorted(self.sources) if (path := data_path(source))}

    def public_columns(self) -> dict[str, str]:
        """Return the columns of `read_models.<name>` with their Postgres types, key first."""
        types = self._stored_types() | {name: value.type for name, value in self._computed_values().items()}
        require_keys(self.lookups, types)
        return types | {name: one.type for name, one in self.lookups.items()}

    def _stored_types(self) -> dict[str, str]:
        types = {name: postgres_type(key.type) for name, key in self.keys.items()}
        for name, column in self.columns.items():
            types[name] = column.public_type(name)
        return {name: type_.removesuffix(' collate "C"') for name, type_ in types.items()}


def read_model(
    *,
    view: str,
    key: Sequence[str],
    deciders: Sequence[str] | None = None,
    events: Sequence[str] | None = None,
    deletes: Sequence[str] | None = None,
    each: str | None = None,
    pooling_delay_s: int = 1,
    max_lag_s: int = 60,
    serve: str = "built",
    indexes: Sequence[Declared] = (),
    owners: Sequence[str] = (),
    tags: Mapping[str, str] | None = None,
    feed: bool = False,
) -> Callable[[type], ReadModel]:
    """Declare a read model: the class's docstring is its description, its attributes are its columns.

    Args:
        view: The name under which it consumes the event store.
        key: The names of the attributes that make up its key, each a `stream_id()`, a `field(…)`, a `carried(…)` or
            a `bucket(…)`.
        deciders: The deciders that it takes events of; None for all.
        events: The events that it takes; None for all.
        deletes: The events that remove a row. The row is gone while the last event of its key, by offset, is one of
            these. A later event brings it back with all its earlier values. These events need the key as all others do.
        each: An array, such as `data.lines`, with elements that each count as an event does. Sources may name the
            element, `item`, and its fields, `item.sku`. Of one event, the last element counts as the last. An event
            without the array does not count.
        pooling_delay_s: How long to wait after a poll that found nothing, in seconds.
        max_lag_s: How old a pending event may become before the model counts as late, in seconds.
        serve: When a changed declaration serves: `built`, once it has caught up, or `approved`, once an operator has
            also approved it.
        indexes: The indexes of its rows, each a column, a tuple of columns or an `index(…)`; its key has one.
        owners: The owners that Dagster shows: email addresses, and `team:` with a name.
        tags: The tags that Dagster shows.
        feed: Whether each change of a row is an event of the decider `model:<name>`, in the row's transaction; such a
            model names its deciders.

    Raises:
        InvalidReadModel: Names, key or columns do not fit together.
    """

    def declare(declaration: type) -> ReadModel:
        name = snake_case(declaration.__name__)
        members = {n: c for n, c in vars(declaration).items() if isinstance(c, KeyColumn | Column | Computed | Lookup)}
        stray = [n for n, c in vars(declaration).items() if not n.startswith("__") and n not in members]
        keys = {n: c for n, c in members.items() if isinstance(c, KeyColumn)}
        columns = {n: c for n, c in members.items() if isinstance(c, Column)}
        read = {n: key.sources for n, key in keys.items()}
        read |= {n: column.sources for n, column in columns.items()}
        refuse(
            name,
            (
                (stray, "is neither a key nor a column: use the functions of millrace"),
                # a text would be taken for a list of its letters
                ([n for n in (key, deletes) if isinstance(n, str)], "is a text: write a list"),
                *naming_problems(name, members, deciders, events, declaration.__doc__, serve),
                (
                    ["deletes"] if deletes is not None and not deletes else [],
                    "is an empty list: leave it out for rows that stay",
                ),
                (
                    [n for n in deletes or () if events is not None and n not in events],
                    "is named in deletes= but not in events=: name it in both",
                ),
                (
                    ["feed"] if feed and (deciders is None or f"model:{name}" in deciders) else [],
                    "would be fed by its own events: name other deciders in deciders=",
                ),
                *key_problems(name, key, keys, columns, "stream_id(), field(…), carried(…) or bucket(…)"),
                (
                    [n for n, c in keys.items() if c.by_decider and {*dict(c.by_decider)} != {*(deciders or ())}],
                    "has a source for each of some deciders: name these in deciders=, and no others",
                ),
                (
                    [each] if each is not None and not (isinstance(each, str) and all(data_path(each) or [""])) else [],
                    "is named in each= but is no field data.<key>[.<key>…]",
                ),
                (
                    [
                        n
                        for n, sources in read.items()
                        if each is None and any(item_path(s) is not None for s in sources)
                    ],
                    "reads item: name the array that it is an element of in each=",
                ),
                (
                    [n for n, sources in read.items() if each in sources],
                    "reads the array of each=: read its elements, item",
                ),
            ),
        )
        model = ReadModel(
            name=name,
            view=view,
            description=" ".join((declaration.__doc__ or "").split()),
            keys={n: keys[n] for n in key},
            columns=columns,
            deciders=tuple(sorted(set(deciders))) if deciders is not None else None,
            events=tuple(sorted(set(events))) if events is not None else None,
            pooling_delay_s=pooling_delay_s,
            max_lag_s=max_lag_s,
            deletes=tuple(sorted(set(deletes or ()))),
            serve=serve,
            computed={n: c for n, c in members.items() if isinstance(c, Computed)},
            lookups={n: c for n, c in members.items() if isinstance(c, Lookup)},
            each=each,
            owners=tuple(owners),
            tags=dict(tags or {}),
            feed=feed,
        )
        if fault := labels_fault(owners, tags or {}):
            raise InvalidReadModel(f"read model {name}: {fault}")
        try:
            require_of_events(*keys.values(), *columns.values())
            model.public_columns()
        except InvalidColumn as error:
            raise InvalidReadModel(f"read model {name}: {error}") from error
        stored = [state.name for state in model.state_columns]
        twice = {n for n in stored if stored.count(n) > 1 or n in {*keys, *model.computed, *model.lookups}}
        if twice:
            raise InvalidReadModel(f"read model {name}: {min(twice)!r} is stored twice; rename one of the columns")
        return with_indexes(model, indexes)

    return declare


def with_indexes(model: Model, declared: Sequence[Declared]) -> Model:
    """Return a model with indexes.

    Raises:
        InvalidReadModel: One has no column, or a column that can have no index.
    """
    try:
        indexes = as_indexes(declared)
    except InvalidColumn as error:
        raise InvalidReadModel(f"read model {model.name}: {error}") from error
    without = dict.fromkeys(model.lookups, "it is a column of another read model's row")
    spans = dict.fromkeys(model.columns, "its spans are put together at each read")
    without |= {name: why for name, why in spans.items() if model.columns[name].kind == "sessions"}
    types = model.public_columns()
    without |= {name: "its values are sealed" for name, type_ in types.items() if type_.startswith("jsonb")}
    # a computed column may depend on another one
    for name in [*model.computed] * len(model.computed):
        for of in {*model.computed[name].names} & {*without}:
            without[name] = f"it is computed from {of}, which can have none"
    refuse(model.name, index_problems(indexes, types, without))
    return replace(model, indexes=indexes)


def lookup(model: ReadModel | type, *, on: str, column: str) -> Lookup:
    """Show a column of another read model's row, with a column of this row as its key; null if there is no such row.

    Args:
        model: The other read model, imported from its file. Its key is one column.
        on: The column of this row, of the key's type.
        column: The column of the other row.
    """
    if not isinstance(model, ReadModel):
        raise InvalidColumn(f"lookup({model!r:.100}): name a read model, imported from the file that declares it")
    if model.is_rollup:
        raise InvalidColumn(
            f"lookup({model.name}): it is a rollup; look up a read model, or join the rollup in a view of your own"
        )
    keys = model.public_key
    if len(keys) > 1:
        raise InvalidColumn(
            f"lookup({model.name}): its key is {', '.join(keys)}; look up read models whose key is one column"
        )
    types = model.public_columns()
    if column not in types:
        raise InvalidColumn(f"lookup({model.name}): it has no column {column!r}; it has {', '.join(types)}")
    return Lookup(model.name, on, column, keys[0], types[keys[0]], types[column])


def key_problems(
    name: str, key: Sequence[str], keys: Collection[str], columns: Collection[str], key_words: str
) -> Iterator[Problem]:
    """List the problems of a key: the names in key=, the declared key columns, and the words that make keys."""
    yield [n for n in key if n not in keys], f"is named in key= but is no {key_words}"
    yield [n for n in keys if n not in key], "is a key column that key= does not name"
    yield [] if key else [name], "has no key"
    yield [] if columns else [name], "has no columns beside its key"


def naming_problems(
    name: str,
    members: Iterable[str],
    deciders: Sequence[str] | None,
    events: Sequence[str] | None,
    docstring: str | None,
    serve: str,
) -> Iterator[Problem]:
    """List the problems that any kind of declaration may have: the bad names, and why they are bad."""
    yield (
        [n for n in (name, *members) if not _NAME.fullmatch(n)],
        "is no name: use a-z, 0-9, _, at most 40 characters",
    )
    yield [name] if _TABLE.fullmatch(name) else [], "is the name of a table of ours: use another"
    yield [n for n in members if n in _RESERVED], f"is taken: use none of {', '.join(sorted(_RESERVED))}"
    yield [n for n in (deciders, events) if isinstance(n, str)], "is a text: write a list"
    yield ["deciders"] if deciders is not None and not deciders else [], "is an empty list: leave it out for all"
    yield ["events"] if events is not None and not events else [], "is an empty list: leave it out for all"
    yield [] if serve in {"built", "approved"} else [serve], 'is no value of serve=: use "built" or "approved"'
    yield [] if (docstring or "").strip() else [name], "has no docstring: say what one row is"


def refuse(name: str, problems: Iterable[Problem]) -> None:
    """Refuse a declaration for its first actual problem.

    Raises:
        InvalidReadModel: The text names the read model and the bad name.
    """
    for bad, problem in problems:
        if bad:
            raise InvalidReadModel(f"read model {name}: {bad[0]!r} {problem}")
