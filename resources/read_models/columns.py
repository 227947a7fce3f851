"""The columns of read models: mergeable values.

Each is a monoid, given as state columns: how Spark makes a partial value from events, and how Postgres merges partial
values. A merge is an aggregate, so the same one serves increments, rebuilds and keys that cross log partitions: batch and
incremental agree by construction.

Belongs here: the kinds of columns. Not here: what a model is (`read_model`), its tables (`read_model_tables`), its plan
(`read_model_build`).

A column's `source` is a column of the event (`event`, `created_at`, …) or a field of its data by path (`data.amount`).
Events where the source is missing or null do not count. `events=` restricts a column to some events.

A field of data is text, read as the column's type exactly or not at all (`column_types`).

A sum that outgrows bigint or 38 digits fails its log partition and names the column.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millrace.resources.event_log_source import COLUMNS
from millrace.resources.read_models.column_types import ALLOWED_TYPES, InvalidColumn, is_type, postgres_type

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn

ORDER = "offset"  # what decides between first and last: rises along each stream, the same in every recomputation


@dataclass(frozen=True)
class StateColumn:
    """One stored column: a partial value.

    Attributes:
        name: Its name in the state table.
        spark_type: Its type in Spark.
        partial: From the source column, filtered and typed, and the order column, to Spark's aggregate.
        merge: The Postgres aggregate over partial values; `{column}` is this column, `{order}` its `<name>_offset`.
        stored_as: Its type in Postgres, where that is not the usual one of its Spark type.
    """

    name: str
    spark_type: str
    partial: "Callable[[SparkColumn, SparkColumn], SparkColumn]"
    merge: str
    stored_as: str | None = None

    @property
    def postgres_type(self) -> str:
        """Its type in Postgres."""
        return self.stored_as or postgres_type(self.spark_type)


@dataclass(frozen=True)
class Column:
    """A column of a read model.

    Attributes:
        kind: The function that declared it.
        source: Where its input comes from; None counts events.
        type: The input's Spark type.
        events: The events it looks at; None for all of the model's.
    """

    kind: str
    source: str | None
    type: str
    events: tuple[str, ...] | None = None

    def state(self, name: str) -> tuple[StateColumn, ...]:
        """The stored columns for this column under a name."""
        return _STATE[self.kind](self, name)

    def value(self, name: str) -> str:
        """The SQL expression of the public value; `{<stored column>}` stands for the stored columns."""
        return f"{{{name}_sum}}::numeric / nullif({{{name}_count}}, 0)" if self.kind == "avg" else f"{{{name}}}"


@dataclass(frozen=True)
class KeyColumn:
    """A column of a read model's key. Events where it is null do not count for the model."""

    source: str
    type: str = "string"


def stream_id() -> KeyColumn:
    """The stream's `decider_id` as key: the model has one row per stream, or per id where it takes several deciders."""
    return KeyColumn("decider_id")


def field(source: str, *, type: str | None = None) -> KeyColumn:  # noqa: A002 - the word of the declaration
    """A column of the event or a field of its data as key; the key may cross streams."""
    return KeyColumn(_source(source), _type(source, type))


def count(source: str | None = None, *, events: list[str] | None = None) -> Column:
    """The number of events, or of those where `source` is not null; 0 for none."""
    return Column("count", source and _source(source), _type(source, None) if source else "bigint", _events(events))


def sum_(source: str, *, type: str = "bigint", events: list[str] | None = None) -> Column:  # noqa: A002
    """The sum, exact: of `bigint` or `decimal(p,s)`; 0 for none."""
    if type != "bigint" and not type.startswith("decimal"):
        raise InvalidColumn(
            f"sum_({source!r}): type is {type!r}; sums are bigint or decimal(p,s), which add up exactly"
        )
    return Column("sum", _source(source), _type(source, type), _events(events))


def avg(source: str, *, type: str = "decimal(38,18)", events: list[str] | None = None) -> Column:  # noqa: A002
    """The mean, kept as exact sum and count; null for none."""
    if type != "bigint" and not type.startswith("decimal"):
        raise InvalidColumn(
            f"avg({source!r}): type is {type!r}; means are of bigint or decimal(p,s), which add up exactly"
        )
    return Column("avg", _source(source), _type(source, type), _events(events))


def min_(source: str, *, type: str | None = None, events: list[str] | None = None) -> Column:  # noqa: A002
    """The smallest value; text by its bytes; null for none."""
    return Column("min", _source(source), _ordered(source, type), _events(events))


def max_(source: str, *, type: str | None = None, events: list[str] | None = None) -> Column:  # noqa: A002
    """The largest value; text by its bytes; null for none."""
    return Column("max", _source(source), _ordered(source, type), _events(events))


def first(source: str, *, type: str | None = None, events: list[str] | None = None) -> Column:  # noqa: A002
    """The value of the first event that has one; null for none."""
    return Column("first", _source(source), _type(source, type), _events(events))


def last(source: str, *, type: str | None = None, events: list[str] | None = None) -> Column:  # noqa: A002
    """The value of the last event that has one; null for none."""
    return Column("last", _source(source), _type(source, type), _events(events))


def any_(source: str, *, events: list[str] | None = None) -> Column:
    """Whether some value is true; false for none."""
    return Column("any", _source(source), _type(source, "boolean"), _events(events))


def all_(source: str, *, events: list[str] | None = None) -> Column:
    """Whether every value is true; true for none."""
    return Column("all", _source(source), _type(source, "boolean"), _events(events))


def set_union(source: str, *, type: str | None = None, events: list[str] | None = None) -> Column:  # noqa: A002
    """The distinct values as a sorted array, text by its bytes; empty for none. Each change writes the whole set."""
    element = _type(source, type)
    if element == "double":
        raise InvalidColumn(f"set_union({source!r}): type is 'double', which 0 and -0 are two of; use decimal(p,s)")
    return Column("set_union", _source(source), element, _events(events))


def replaced_position(name: str) -> StateColumn:
    """A state column that says up to which position of its log partition a row was computed."""
    from pyspark.sql import functions as f

    return StateColumn(name, "bigint", lambda _, order: f.max(order), "max({column})")


def replaced(name: str, spark_type: str, position: str, *, stored_as: str | None = None) -> StateColumn:
    """A state column that is computed anew as a whole: the value at the highest position is kept."""
    from pyspark.sql import functions as f

    merge = f'(array_agg({{column}} order by "{position}" desc))[1]'
    if spark_type.startswith("array<"):
        # arrays of several lengths have no aggregate; rows have
        merge = (
            "(select r.a from rows from ("  # noqa: S608 - names of ours
            f'unnest(array_agg(row({{column}}) order by "{position}" desc)) as (a {postgres_type(spark_type)})'
            ") with ordinality r(a, n) order by r.n limit 1)"
        )
    return StateColumn(name, spark_type, f.max_by, merge, stored_as)


def last_position(events: tuple[str, ...] | None = None) -> Column:
    """The offset of the last event, or of the last of some."""
    return Column("max", ORDER, COLUMNS[ORDER][0], events)


def data_path(source: str) -> tuple[str, ...] | None:
    """The path in `data` that a source names, None for a column of the event."""
    return tuple(source.split(".")[1:]) if source.startswith("data.") else None


def _source(source: str) -> str:
    path = data_path(source)
    if (path is None and source not in COLUMNS) or (path is not None and "" in path):
        raise InvalidColumn(
            f"{source!r} is neither a column of the event ({', '.join(COLUMNS)}) nor a field data.<key>[.<key>…]"
        )
    return source


def _type(source: str, type_: str | None) -> str:
    if data_path(source) is None:
        own = COLUMNS[source][0]
        if type_ not in {None, own}:
            raise InvalidColumn(f"{source!r} has type {own}, not {type_}")
        return own
    type_ = (type_ or "string").replace(" ", "")
    if not is_type(type_):
        raise InvalidColumn(f"{source!r}: type is {type_!r}; allowed: {ALLOWED_TYPES}")
    return type_


def _ordered(source: str, type_: str | None) -> str:
    ordered = _type(source, type_)
    if ordered == "boolean":
        raise InvalidColumn(f"{source!r}: a boolean has no order; use any_ and all_")
    return ordered


def _events(events: list[str] | None) -> tuple[str, ...] | None:
    if events is None:
        return None
    # a text would be taken for a list of its letters, and never match
    if isinstance(events, str) or not events:
        raise InvalidColumn(f"events= is {events!r}: name at least one event in a list, or leave it out for all")
    return tuple(sorted(set(events)))


def _sum_type(column: Column) -> str:
    # as wide as it gets, so that a sum of many does not overflow
    return "bigint" if column.type == "bigint" else f"decimal(38,{column.type.split(',')[1]}"


def _count_state(_: Column, name: str) -> tuple[StateColumn, ...]:
    from pyspark.sql import functions as f

    return (StateColumn(name, "bigint", lambda value, _: f.count(value), "sum({column})::bigint"),)


def _sum_state(column: Column, name: str) -> tuple[StateColumn, ...]:
    return (_summed(column, name, name),)


def _avg_state(column: Column, name: str) -> tuple[StateColumn, ...]:
    return (_summed(column, f"{name}_sum", name), *_count_state(column, f"{name}_count"))


def _summed(column: Column, name: str, declared: str) -> StateColumn:
    """The exact sum; where it outgrows its type, an error that names the declared column."""
    from pyspark.sql import functions as f

    type_ = _sum_type(column)
    overflow = f"overflow in column {declared}: its sum does not fit {type_}"

    def partial(value: "SparkColumn", _: "SparkColumn") -> "SparkColumn":
        summed = f.try_sum(value)
        # both sides of the sum's type: beside a plain 0 Spark would give up decimals for digits
        exact = f.coalesce(summed.cast(type_), f.lit(0).cast(type_))
        return f.when(summed.isNull() & (f.count(value) > 0), f.raise_error(f.lit(overflow))).otherwise(exact)

    held = "bigint" if type_ == "bigint" else "numeric"
    fits = (
        "sum({column}) between -9223372036854775808 and 9223372036854775807"
        if type_ == "bigint"
        else f"abs(sum({{column}})) < 1e{38 - int(type_.rstrip(')').split(',')[1])}"
    )
    # SQL has no expression that raises: casting the sentence does, and shows it
    merge = f"case when {fits} then sum({{column}})::{held} else ('{overflow}: ' || sum({{column}}))::{held} end"
    return StateColumn(name, type_, partial, merge)


def _extreme_state(aggregate: str) -> "Callable[[Column, str], tuple[StateColumn, ...]]":
    def state(column: Column, name: str) -> tuple[StateColumn, ...]:
        from pyspark.sql import functions as f

        return (
            StateColumn(name, column.type, lambda value, _: getattr(f, aggregate)(value), f"{aggregate}({{column}})"),
        )

    return state


def _decided_state(aggregate: str, direction: str) -> "Callable[[Column, str], tuple[StateColumn, ...]]":
    """First and last: the value and the offset that decided it."""

    def state(column: Column, name: str) -> tuple[StateColumn, ...]:
        from pyspark.sql import functions as f

        def decides(value: "SparkColumn", order: "SparkColumn") -> "SparkColumn":
            return f.when(value.isNotNull(), order)

        return (
            StateColumn(
                name,
                column.type,
                lambda value, order: getattr(f, f"{aggregate}_by")(value, decides(value, order)),
                f"(array_agg({{column}} order by {{order}} {direction} nulls last))[1]",
            ),
            StateColumn(
                f"{name}_offset",
                "bigint",
                lambda value, order: getattr(f, aggregate)(decides(value, order)),
                f"{aggregate}({{column}})",
            ),
        )

    return state


def _truth_state(aggregate: str, merge: str, empty: bool) -> "Callable[[Column, str], tuple[StateColumn, ...]]":
    def state(_: Column, name: str) -> tuple[StateColumn, ...]:
        from pyspark.sql import functions as f

        return (
            StateColumn(
                name,
                "boolean",
                lambda value, _: f.coalesce(getattr(f, aggregate)(value), f.lit(empty)),
                f"{merge}({{column}})",
            ),
        )

    return state


def _set_state(column: Column, name: str) -> tuple[StateColumn, ...]:
    from pyspark.sql import functions as f

    type_ = f"array<{column.type}>"
    return (
        StateColumn(
            name,
            type_,
            lambda value, _: f.collect_set(value),
            # arrays of several lengths have no aggregate: they go into rows, and the rows into one array
            "(select coalesce(array_agg(distinct v.v order by v.v), '{{}}')"  # noqa: S608 - a type of ours
            f" from unnest(array_agg(row({{column}}))) r(a {postgres_type(type_)}), unnest(r.a) v(v))",
        ),
    )


_STATE: "dict[str, Callable[[Column, str], tuple[StateColumn, ...]]]" = {
    "count": _count_state,
    "sum": _sum_state,
    "avg": _avg_state,
    "min": _extreme_state("min"),
    "max": _extreme_state("max"),
    "first": _decided_state("min", "asc"),
    "last": _decided_state("max", "desc"),
    "any": _truth_state("bool_or", "bool_or", empty=False),
    "all": _truth_state("bool_and", "bool_and", empty=True),
    "set_union": _set_state,
}
