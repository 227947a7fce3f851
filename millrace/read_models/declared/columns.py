"""The columns of a read model: mergeable values.

Each column is a monoid, described by its state columns. For each of these Spark makes one partial value of a key's
events in a batch, and Postgres merges partial values into one. The merge is an aggregate, so its result does not depend
on how events are divided into batches; the same merge serves a drain, a rebuild and keys that cross log partitions.

| column       | state columns     | Spark's partial value         | Postgres' merge                         |
|--------------|-------------------|-------------------------------|-----------------------------------------|
| `count`      | the count         | count                         | sum                                     |
| `sum_`       | the sum           | sum                           | sum                                     |
| `avg`        | a sum and a count | both                          | both; the view divides                  |
| `min_ max_`  | the value         | min, max                      | min, max                                |
| `first last` | value, offset     | those of the first, last one  | those of the lowest, highest offset     |
| … `by=`      | and the by-value  | those of the least, most one  | those of the least, most; then by offset |
| `any_ all_`  | the truth         | or, and                       | or, and                                 |
| `set_union`  | an array          | the distinct values           | the distinct elements of the arrays     |
| `sessions`   | arrays: begins, ends | distinct spans         | the union of all spans                  |
| `top latest` | arrays: values, by-values, offsets | those of the most | those of the most of all arrays   |

Not here: the words that declare columns (`words`), the statement that merges (`merge`), Spark's plan (`plans`).

A column's `source` is a column of the event (`event`, `created_at`, …) or a field of its data by path (`data.amount`);
if the model has a row per element of an array (`items`), also the element or a field of it (`item`, `item.amount`).
Events with a missing or null source do not count. `events=` restricts a column to some events, and `where=` to events
that meet conditions on their values (`conditions`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from psycopg import sql

from millrace.personal.values import SEALED
from millrace.read_models.declared.buckets import beginning
from millrace.read_models.declared.column_types import postgres_type
from millrace.read_models.declared.conditions import Conditions
from millrace.spark.log_source import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn

# the order for first and last: it rises along each stream and is the same in every recomputation
ORDER = "offset"
# the bits of a bigint's lower half
_LOW_HALF = 2**32 - 1
# in sources, an element of the array that `each=` of the model names
ITEM = "item"


@dataclass(frozen=True)
class StateColumn:
    """One stored column: a partial value.

    Attributes:
        name: Its name in the state table.
        spark_type: Its type in Spark.
        partial: From the source column, filtered and typed, and the order column, to Spark's aggregate.
        merge: The Postgres aggregate of partial values; it names this column, and maybe others of the same row. The
            merge of a single partial value is that value: a rebuild leaves it out.
        stored_as: Its type in Postgres, if that is not the usual one of its Spark type.
    """

    name: str
    spark_type: str
    partial: "Callable[[SparkColumn, SparkColumn], SparkColumn]"
    merge: sql.Composable
    stored_as: str | None = None

    @property
    def postgres_type(self) -> str:
        """Its type in Postgres."""
        return self.stored_as or postgres_type(self.spark_type)

    @property
    def staged_type(self) -> str:
        """Its type in the staging table: there a sum has the decimals of its Spark type."""
        return postgres_type(self.spark_type) if self.stored_as == "numeric" else self.postgres_type


@dataclass(frozen=True)
class Column:
    """A column of a read model.

    Attributes:
        kind: The merge that it has.
        source: The source of its input; None counts events.
        type: The input's Spark type.
        events: The events that it takes; None for all of the model's.
        where: The conditions that these events meet; None for none.
        sealed: Whether its values are personal, and so sealed.
    """

    kind: str
    source: str | None
    type: str
    events: tuple[str, ...] | None = None
    # fingerprints have it apart: so columns without it kept their fingerprints when it was introduced
    where: Conditions | None = field(default=None, repr=False)
    sealed: bool = field(default=False, repr=False, kw_only=True)

    def state(self, name: str) -> tuple[StateColumn, ...]:
        """Return the stored columns of this column under a name."""
        return _STATE[self.kind](self, name)

    @property
    def options(self) -> tuple[str, ...]:
        """The options that distinguish it from others of its kind and types."""
        return ()

    def public_type(self, name: str) -> str:
        """Return the Postgres type of its public value."""
        if self.sealed:
            return "jsonb[]" if self.kind == "top" else "jsonb"
        return "numeric" if self.kind == "avg" else self.state(name)[0].postgres_type

    def value(self, name: str) -> sql.Composable:
        """Return the SQL expression of its public value, over its stored columns."""
        if self.kind == "avg":
            return sql.SQL("{}::numeric / nullif({}, 0)").format(
                sql.Identifier(f"{name}_sum"), sql.Identifier(f"{name}_count")
            )
        return in_envelopes(sql.Identifier(name), self.public_type(name))

    @property
    def reads(self) -> "tuple[Column, ...]":
        """The values that it reads of an event, each as a column."""
        return (self,)

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources that it reads of an event, those of its conditions included."""
        judged = [] if self.where is None else [source for source, *_ in self.where.tests]
        return tuple(dict.fromkeys([*(one.source for one in self.reads if one.source), *judged]))


@dataclass(frozen=True)
class RankedColumn(Column):
    """A column that keeps the value of the event with the least, or the most, of another value.

    Attributes:
        by: That other value, as a column of the kind `by`, which takes the same events.
    """

    by: Column = Column("by", None, "")

    @property
    def reads(self) -> tuple[Column, ...]:
        """The value, and the one that ranks it."""
        return (self, self.by)


@dataclass(frozen=True)
class TopColumn(RankedColumn):
    """A column that keeps the values of the events with the most of another value, the most first.

    Attributes:
        most: How many it keeps.
    """

    most: int = 1

    @property
    def options(self) -> tuple[str, ...]:
        """How many it keeps."""
        return (str(self.most),)


@dataclass(frozen=True)
class SessionsColumn(Column):
    """A column that unites times that lie close together.

    Attributes:
        gap_s: How far those of one session may lie apart, in seconds.
    """

    gap_s: int = 0

    @property
    def options(self) -> tuple[str, ...]:
        """How far they may lie apart."""
        return (str(self.gap_s),)

    def public_type(self, name: str) -> str:  # noqa: ARG002 - of each name
        """Return the type of many spans of time."""
        return "tstzmultirange"

    def value(self, name: str) -> sql.Composable:
        """Return the SQL expression of the spans, each from its first time to its last one."""
        return sql.SQL(
            "(select coalesce(range_agg(tstzrange(s.b, s.e, '[]')), '{{}}') from unnest({}, {}) s(b, e))"
        ).format(sql.Identifier(name), sql.Identifier(f"{name}_end"))


@dataclass(frozen=True)
class KeyColumn:
    """A column of a read model's key. Events where it is null do not count for the model.

    Attributes:
        source: The source of its value; of several sources, their name in errors.
        type: The value's Spark type.
        every: The length of a bucket.
        zone: The zone of a bucket's clocks.
        by_decider: The source of each decider, if there are several.
        is_carried: Whether an event without it takes it over from the event before in its stream.
    """

    source: str
    type: str = "string"
    every: str | None = None
    zone: str | None = None
    by_decider: tuple[tuple[str, str], ...] = ()
    is_carried: bool = False

    def __repr__(self) -> str:
        """Return it without unset fields: fingerprints are made of this."""
        fields = [f"{name}={value!r}" for name, value in vars(self).items() if value]
        return f"KeyColumn({', '.join(fields)})"

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources that it reads of an event."""
        return ("decider", *(source for _, source in self.by_decider)) if self.by_decider else (self.source,)

    @property
    def column(self) -> str:
        """The column of the events that has its value."""
        return f"carried {self.source}" if self.is_carried else self.source

    @property
    def is_of_item(self) -> bool:
        """Whether it reads an element of an array."""
        return any(item_path(source) is not None for source in self.sources)

    @property
    def in_words(self) -> str:
        """The source of its value, in words."""
        return f"{self.source} by {self.every} in {self.zone}" if self.every else self.column

    def to_key(self, value: "SparkColumn") -> "SparkColumn":
        """Return the key that a read value gives."""
        return beginning(value, self.every, self.zone) if self.every and self.zone else value


def in_envelopes(text: sql.Composable, type_: str) -> sql.Composable:
    """Return the SQL expression of a stored value as a public type: of a sealed value, a text, it is the envelope.

    A text from before its field became personal is no envelope, and maybe no JSON.
    """
    if type_ == "jsonb[]":
        each = in_envelopes(sql.SQL("e.v"), "jsonb")
        return sql.SQL("array(select {} from unnest({}) with ordinality e(v, n) order by e.n)").format(each, text)
    shape = sql.Literal(f'^[{{]"[$]{SEALED[1:]}": ?"[A-Za-z0-9._-]+"[}}]$')
    shown = sql.SQL("case when {0} ~ {1} then {0}::jsonb else to_jsonb({0}) end").format(text, shape)
    return shown if type_ == "jsonb" else text


def last_position(events: tuple[str, ...] | None = None) -> Column:
    """Keep the offset of the last event, or of the last one of some events."""
    return Column("max", ORDER, COLUMNS[ORDER][0], events)


def data_path(source: str) -> tuple[str, ...] | None:
    """Return the path in `data` that a source names, None for a column of the event."""
    return tuple(source.split(".")[1:]) if source.startswith("data.") else None


def item_path(source: str) -> tuple[str, ...] | None:
    """Return the path in an element of an array that a source names, None for another source."""
    first, *path = source.split(".")
    return tuple(path) if first == ITEM else None


def is_text(column: Column | KeyColumn) -> bool:
    """Return whether a column reads a field of data, which is text."""
    sources = column.sources if isinstance(column, KeyColumn) else (column.source,)
    return any(is_field(source) for source in sources if source)


def is_field(source: str) -> bool:
    """Return whether a source is a field of data, or of an element of an array."""
    return data_path(source) is not None or item_path(source) is not None


def _count_state(_: Column, name: str) -> tuple[StateColumn, ...]:
    from pyspark.sql import functions as f

    merge = sql.SQL("sum({})::bigint").format(sql.Identifier(name))
    return (StateColumn(name, "bigint", lambda value, _: f.count(value), merge),)


def _sum_state(column: Column, name: str) -> tuple[StateColumn, ...]:
    """Return the state of an exact sum: in Postgres a numeric without bounds, like its own sum of bigint."""
    from pyspark.sql import functions as f

    type_ = f"decimal(38,{column.type.split(',')[1].rstrip(')') if ',' in column.type else 0})"

    def partial(value: "SparkColumn", _: "SparkColumn") -> "SparkColumn":
        if column.type == "bigint":
            # in halves, too few in a batch to overflow bigint; a sum of decimals has ten more digits than its values
            high, low = f.sum(f.shiftright(value, 32)), f.sum(value.bitwiseAND(f.lit(_LOW_HALF)))
            summed = high.cast("decimal(20,0)") * f.lit(_LOW_HALF + 1).cast("decimal(10,0)") + low.cast("decimal(20,0)")
        else:
            summed = f.sum(value)
        # both operands in the sum's type: with a plain 0 Spark would give up decimals for digits
        return f.coalesce(summed.cast(type_), f.lit(0).cast(type_))

    return (StateColumn(name, type_, partial, _aggregate("sum", name), stored_as="numeric"),)


def _extreme_state(aggregate: str) -> "_State":
    def state(column: Column, name: str) -> tuple[StateColumn, ...]:
        from pyspark.sql import functions as f

        smallest_or_largest = getattr(f, aggregate)
        return (
            StateColumn(name, column.type, lambda value, _: smallest_or_largest(value), _aggregate(aggregate, name)),
        )

    return state


def order_of(column: Column, by: "SparkColumn", offset: "SparkColumn") -> "SparkColumn":
    """Return the order by which a column decides, in the form that its partial values take.

    Args:
        column: The column.
        by: For a ranked column, the value that ranks it, filtered and typed.
        offset: The offset.
    """
    from pyspark.sql import functions as f

    if not isinstance(column, RankedColumn):
        return offset
    return f.when(by.isNotNull(), f.struct(by.alias("by"), offset.alias("offset")))


def _decided_state(aggregate: str, direction: str) -> "_State":
    """Return the state of first or last: the value, and the offset that decided it, after the value that ranks it."""

    def state(column: Column, name: str) -> tuple[StateColumn, ...]:
        from pyspark.sql import functions as f

        offset = f"{name}_offset"
        decided, decided_by = getattr(f, aggregate), getattr(f, f"{aggregate}_by")

        def only_of(value: "SparkColumn", order: "SparkColumn") -> "SparkColumn":
            """Give an event without a value no order, so that it never decides."""
            return f.when(value.isNotNull(), order)

        ranks = [f"{name}_by", offset] if isinstance(column, RankedColumn) else [offset]
        order = sql.SQL(", ").join(
            sql.SQL("{} {} nulls last").format(sql.Identifier(rank), sql.SQL(direction)) for rank in ranks
        )

        def of_that(state: str) -> sql.Composed:
            return sql.SQL("(array_agg({} order by {}))[1]").format(sql.Identifier(state), order)

        def part(state: str, type_: str, member: str) -> StateColumn:
            """Return the state that a ranked column keeps of its order."""
            return StateColumn(
                state, type_, lambda value, order: decided(only_of(value, order)).getField(member), of_that(state)
            )

        decided_state = StateColumn(
            name, column.type, lambda value, order: decided_by(value, only_of(value, order)), of_that(name)
        )
        if isinstance(column, RankedColumn):
            return (decided_state, part(f"{name}_by", column.by.type, "by"), part(offset, "bigint", "offset"))
        of_offset = StateColumn(
            offset, "bigint", lambda value, order: decided(only_of(value, order)), _aggregate(aggregate, offset)
        )
        return (decided_state, of_offset)

    return state


def _truth_state(aggregate: str, *, empty: bool) -> "_State":
    def state(_: Column, name: str) -> tuple[StateColumn, ...]:
        from pyspark.sql import functions as f

        truth = getattr(f, aggregate)
        return (
            StateColumn(
                name,
                "boolean",
                lambda value, _: f.coalesce(truth(value), f.lit(empty)),
                _aggregate(aggregate, name),
            ),
        )

    return state


def _set_state(column: Column, name: str) -> tuple[StateColumn, ...]:
    from pyspark.sql import functions as f

    type_ = f"array<{column.type}>"
    # no aggregate takes arrays of several lengths: they go into rows, and the rows into one array
    merge = sql.SQL(
        "(select coalesce(array_agg(distinct v.v order by v.v), '{{}}')"
        " from unnest(array_agg(row({}))) r(a {}), unnest(r.a) v(v))"
    ).format(sql.Identifier(name), sql.SQL(postgres_type(type_)))
    return (StateColumn(name, type_, lambda value, _: f.sort_array(f.collect_set(value)), merge),)


def _top_state(column: Column, name: str) -> tuple[StateColumn, ...]:
    """Return the state of the first `most` values: parallel arrays of values, of by-values and of offsets."""
    from pyspark.sql import functions as f

    assert isinstance(column, TopColumn)
    types = {"value": column.type, "by": column.by.type, "offset": "bigint"}
    names = {"value": name, "by": f"{name}_by", "offset": f"{name}_offset"}
    arrays = {member: f"array<{type_}>" for member, type_ in types.items()}

    def part(member: str) -> StateColumn:
        def partial(value: "SparkColumn", order: "SparkColumn") -> "SparkColumn":
            decided = f.when(value.isNotNull(), order)
            event = f.struct(
                value.alias("value"), order.getField("by").alias("by"), order.getField("offset").alias("offset")
            )
            first_values = f.max_by(event, decided, column.most).getField(member)
            return f.coalesce(first_values, f.array().cast(arrays[member]))

        # as in `_set_state`, the arrays go into rows; those of one row have one length
        merge = sql.SQL(
            "(select coalesce(array_agg(kept.{member} order by kept.by desc, kept.\"offset\" desc), '{{}}') from ("
            "select e.* from unnest(array_agg(row({arrays}))) r({members}),"
            ' unnest(r.value, r.by, r."offset") e(value, by, "offset")'
            ' order by e.by desc, e."offset" desc limit {most}) kept)'
        ).format(
            member=sql.Identifier(member),
            arrays=sql.SQL(", ").join(map(sql.Identifier, names.values())),
            members=sql.SQL(", ").join(
                sql.SQL("{} {}").format(sql.Identifier(one), sql.SQL(postgres_type(type_)))
                for one, type_ in arrays.items()
            ),
            most=sql.Literal(column.most),
        )
        return StateColumn(names[member], arrays[member], partial, merge)

    return tuple(map(part, names))


def _sessions_state(column: Column, name: str) -> tuple[StateColumn, ...]:
    """Return the state of spans that are further apart than the gap: their first times and their last ones, sorted."""
    from pyspark.sql import functions as f

    assert isinstance(column, SessionsColumn)
    gap = column.gap_s * 1_000_000

    def partial(step: int) -> "Callable[[SparkColumn, SparkColumn], SparkColumn]":
        """Keep the times that are too far from the time before, or after."""

        def times(value: "SparkColumn", _: "SparkColumn") -> "SparkColumn":
            sorted_micros = f.sort_array(f.collect_set(f.unix_micros(value)))
            # an array around it gives it a name: within the function it would be sorted again for each time
            sorted_times = f.transform(
                f.array(sorted_micros),
                lambda all_times: f.filter(
                    all_times,
                    lambda time, n: f.coalesce(f.abs(f.get(all_times, n + step) - time) > gap, f.lit(True)),
                ),
            )
            return f.transform(sorted_times[0], f.timestamp_micros)

        return times

    # A round mostly adds one session to one row. Of two rows, the first to begin has the least begins. It also has the
    # least ends if it ends before the other, or if the other is one session that begins in its last one.
    merge = (
        "case when count(*) = 1 then min({own})"
        " when count(*) = 2 and (min({ends}))[cardinality(min({begins}))] + {gap} < (max({begins}))[1]"
        " then min({own}) || max({own})"
        " when count(*) = 2 and cardinality(max({begins})) = 1 and (max({begins}))[1] between"
        " (min({begins}))[cardinality(min({begins}))] and (min({ends}))[cardinality(min({begins}))] + {gap}"
        " then {reaching}"
        " else (select coalesce(array_agg({one} order by s.r), '{{}}') from ("
        "select range_agg(tstzrange(e.b, e.e + {gap}, '[]')) as united"
        " from unnest(array_agg(row({begins}, {ends}))) r(b timestamptz[], e timestamptz[]), unnest(r.b, r.e) e(b, e)"
        ") u, unnest(u.united) s(r)) end"
    )
    begins, ends = sql.Identifier(name), sql.Identifier(f"{name}_end")
    # in seconds: a day has several lengths by the zone's clocks
    gap_s = sql.SQL("make_interval(secs => {})").format(sql.Literal(column.gap_s))
    both = {"begins": begins, "ends": ends, "gap": gap_s}
    later = sql.SQL(
        "trim_array(min({ends}), 1) || greatest((min({ends}))[cardinality(min({ends}))], (max({ends}))[1])"
    ).format(**both)
    begin = sql.SQL(merge).format(
        own=begins, reaching=sql.SQL("min({})").format(begins), one=sql.SQL("lower(s.r)"), **both
    )
    end = sql.SQL(merge).format(own=ends, reaching=later, one=sql.SQL("upper(s.r) - {}").format(gap_s), **both)
    type_ = "array<timestamp>"
    return (StateColumn(name, type_, partial(-1), begin), StateColumn(f"{name}_end", type_, partial(1), end))


def _aggregate(aggregate: str, name: str) -> sql.Composed:
    return sql.SQL("{}({})").format(sql.SQL(aggregate), sql.Identifier(name))


# from a column and the name under which it is stored
_State = Callable[[Column, str], tuple[StateColumn, ...]]
_STATE: dict[str, _State] = {
    "count": _count_state,
    "sum": _sum_state,
    "avg": lambda column, name: (*_sum_state(column, f"{name}_sum"), *_count_state(column, f"{name}_count")),
    "min": _extreme_state("min"),
    "max": _extreme_state("max"),
    "first": _decided_state("min", "asc"),
    "last": _decided_state("max", "desc"),
    "first_by": _decided_state("min", "asc"),
    "last_by": _decided_state("max", "desc"),
    "any": _truth_state("bool_or", empty=False),
    "all": _truth_state("bool_and", empty=True),
    "set_union": _set_state,
    "top": _top_state,
    "sessions": _sessions_state,
}
