"""The columns of read models: mergeable values.

Each is a monoid, given as state columns: how Spark makes a partial value from events, and how Postgres merges partial
values. A merge is an aggregate, so the same one serves increments, rebuilds and keys that cross log partitions: batch and
incremental agree by construction.

Belongs here: the kinds of columns. Not here: what a model is (`read_model`), its tables (`read_model_tables`), its plan
(`read_model_build`).

A column's `source` is a column of the event (`event`, `created_at`, …) or a field of its data by path (`data.amount`).
Events where the source is missing or null do not count. `events=` restricts a column to some events.

A field of data is text, read as the column's type exactly or not at all: a value that the type does not hold fails its log
partition, which keeps its events and names the value. Nothing is rounded, cut, guessed or made null.

| type           | takes                                                                                              |
|----------------|----------------------------------------------------------------------------------------------------|
| `string`       | every value; what is no text as its JSON                                                           |
| `bigint`, `int`| whole numbers within its range, written without a fraction: 5, not 5.0                             |
| `decimal(p,s)` | numbers of up to p-s digits and s decimals: decimal(18,2) takes 12.5 and 12.340, not 12.345         |
| `double`       | finite numbers, as the nearest double; not NaN, not 1e400                                          |
| `boolean`      | true and false, and in any case the words t, y, yes, 1 and f, n, no, 0                             |
| `date`         | 2024-02-29                                                                                         |
| `timestamp`    | a date with or without time and zone, to the microsecond; UTC where no zone is given               |

A sum that outgrows bigint or 38 digits fails its log partition too.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from resources.event_log_source import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn

ORDER = "offset"  # what decides between first and last: rises along each stream, the same in every recomputation

_POSTGRES_TYPES = {
    "string": 'text collate "C"',  # compares bytes, as Spark does
    "bigint": "bigint",
    "int": "int",
    "double": "double precision",
    "boolean": "boolean",
    "timestamp": "timestamptz",
    "date": "date",
}
_ALLOWED_TYPES = f"{', '.join(sorted(_POSTGRES_TYPES))}, decimal(precision,scale)"
_DECIMAL = re.compile(r"decimal\(([0-9]{1,2}),([0-9]{1,2})\)")

# what Spark's cast would take although it has to change it
_INEXACT = {
    "double": r"[^0-9.eE+\-\s]",  # NaN, Infinity, 1d
    "date": r"^(?!\s*[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}\s*$)",  # a year, a timestamp
    "timestamp": r"^(?!\s*[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([T\s]|$))",  # a time, which would be today's
}


class InvalidColumn(ValueError):
    """A column is declared with something that it cannot be; the text says what is allowed."""


@dataclass(frozen=True)
class StateColumn:
    """One stored column: a partial value.

    Attributes:
        name: Its name in the state table.
        spark_type: Its type in Spark.
        partial: From the source column, filtered and typed, and the order column, to Spark's aggregate.
        merge: The Postgres aggregate over partial values; `{column}` is this column, `{order}` its `<name>_offset`.
    """

    name: str
    spark_type: str
    partial: "Callable[[SparkColumn, SparkColumn], SparkColumn]"
    merge: str

    @property
    def postgres_type(self) -> str:
        """Its type in Postgres."""
        return postgres_type(self.spark_type)


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


def postgres_type(spark_type: str) -> str:
    """The Postgres type that holds every value of a Spark type."""
    if spark_type.startswith("decimal"):
        return f"numeric{spark_type.removeprefix('decimal')}"
    return _POSTGRES_TYPES[spark_type]


def typed(text: "SparkColumn", source: str, type_: str) -> "SparkColumn":
    """A field of data, which is text, as a type; raises, when it runs, for a value that the type does not hold exactly."""
    from pyspark.sql import functions as f

    value = text.cast(type_)
    decimal = _DECIMAL.fullmatch(type_)
    pattern = rf"[eE]|\.[0-9]{{{decimal[2]}}}[0-9]*[1-9]" if decimal else _INEXACT.get(type_)
    if pattern is None:
        return value
    inexact = text.rlike(pattern)
    if type_ == "double":
        inexact = inexact | (f.abs(value) == float("inf"))
    said = f.concat(f.lit(f"{source} is '"), f.substring(text, 1, 100), f.lit(f"', which is not exactly a {type_}"))
    return f.when(inexact, f.raise_error(said)).otherwise(value)


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
    if type_ not in _POSTGRES_TYPES and not _is_decimal(type_):
        raise InvalidColumn(f"{source!r}: type is {type_!r}; allowed: {_ALLOWED_TYPES}")
    return type_


def _ordered(source: str, type_: str | None) -> str:
    ordered = _type(source, type_)
    if ordered == "boolean":
        raise InvalidColumn(f"{source!r}: a boolean has no order; use any_ and all_")
    return ordered


def _is_decimal(type_: str) -> bool:
    digits = _DECIMAL.fullmatch(type_)
    return digits is not None and int(digits[2]) <= int(digits[1]) <= 38 and int(digits[1]) > 0


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
    from pyspark.sql import functions as f

    type_ = _sum_type(column)
    return (
        StateColumn(
            name,
            type_,
            # both sides of the sum's type: beside a plain 0 Spark would give up decimals for digits
            lambda value, _: f.coalesce(f.sum(value).cast(type_), f.lit(0).cast(type_)),
            "sum({column})::bigint" if type_ == "bigint" else "sum({column})",
        ),
    )


def _avg_state(column: Column, name: str) -> tuple[StateColumn, ...]:
    summed = _sum_state(column, f"{name}_sum")
    return summed + _count_state(column, f"{name}_count")


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
}
