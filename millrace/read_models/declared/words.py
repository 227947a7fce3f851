"""The words that declare a read model's columns: each makes a column of one kind, or refuses its arguments."""

import re
from collections.abc import Mapping
from dataclasses import replace

from millrace.read_models.declared.buckets import require_bucket, spelled
from millrace.read_models.declared.column_types import ALLOWED_TYPES, InvalidColumn, is_type
from millrace.read_models.declared.columns import (
    ORDER,
    Column,
    KeyColumn,
    RankedColumn,
    SessionsColumn,
    TopColumn,
    data_path,
    is_field,
    item_path,
)
from millrace.read_models.declared.conditions import Conditions, conditions
from millrace.spark.log_source import COLUMNS

_COLUMN = re.compile(r"[a-z][a-z0-9_]*")
_GAP = re.compile(r"([1-9][0-9]{0,4}) (sec|min|hour|day)")
_SECONDS = {"sec": 1, "min": 60, "hour": 3600, "day": 86_400}
Where = Mapping[str, object] | None
_Selection = tuple[tuple[str, ...] | None, Conditions | None]
# each change of an array writes the whole array
MOST_KEPT = 1_000
# the most digits of a summed value: a sum of ten billion such values fits into Spark's 38 digits
MOST_SUMMED_DIGITS = 28


def stream_id() -> KeyColumn:
    """Key by the stream's `decider_id`: one row per stream, or per id if the model takes several deciders."""
    return KeyColumn("decider_id")


def field(source: str | Mapping[str, str], *, type: str | None = None) -> KeyColumn:  # noqa: A002 - the word of the declaration
    """Key by a column of the event or a field of its data; one key may have events of several streams.

    A mapping of deciders to sources joins their events: an order's by its id, a payment's by the id of its order.
    """
    if isinstance(source, str):
        return KeyColumn(_source(source), _type(source, type))
    if not source:
        raise InvalidColumn("field({}): name a source for each decider of the model")
    sources = [*map(_source, source.values())]
    types = {_type(one, type) for one in sources}
    is_text = {is_field(one) for one in sources}
    if len(types) > 1 or (len(is_text) > 1 and types != {"string"}):
        raise InvalidColumn(
            f"field({source!r}): its sources are of several types; name fields of data, or columns of one type"
        )
    in_words = ", ".join(f"{one} of {decider}" for decider, one in sorted(source.items()))
    return KeyColumn(f"({in_words})", types.pop(), by_decider=tuple(sorted(source.items())))


def row(source: str) -> KeyColumn:
    """Key a rollup by a column of its read model's rows; null is a key of its own."""
    return KeyColumn(source)


def carried(source: str, *, type: str | None = None) -> KeyColumn:  # noqa: A002
    """Key by a field of data that some events of a stream lack: they take the last value before them.

    Events before the first value are left out.
    """
    if not isinstance(source, str) or data_path(source) is None:
        raise InvalidColumn(f"carried({source!r}): name a field data.<key>[.<key>…]; every event has its columns")
    return replace(field(source, type=type), is_carried=True)


def bucket(source: str | Mapping[str, str], *, every: str, zone: str = "UTC") -> KeyColumn:
    """Key by the day, the hour, … of a time: the key is its beginning.

    `every` is `1 day`, `1 week` from Monday on, `1 month`, `1 year`, or hours that divide 24 (`6 hour`), or minutes
    that divide 60 (`15 min`). Buckets longer than an hour follow the zone's clocks: a day may have 23 or 25 hours. A
    late event counts for its own bucket. `source` is as that of `field`; in a rollup, a column of its read model.
    """
    every = spelled(every)
    require_bucket(f"bucket({source!r})", every, zone)
    if isinstance(source, str) and is_of_row(source):
        return KeyColumn(source, "timestamp", every, zone)
    return replace(field(source, type="timestamp"), every=every, zone=zone)


def count(source: str | None = None, *, events: list[str] | None = None, where: Where = None) -> Column:
    """Count events, or those with a `source` that is not null; 0 for none. A rollup counts rows.

    `events` names the events to take, here and in the other columns. `where` states by source the values that they may
    have: `{"data.status": "paid"}`, `["paid", "sent"]` for one of several, None for none, `{">=": 10, "<": 100}`.
    """
    found = source and _summed_source(source)
    return Column("count", found, _type(found, None) if found else "bigint", *_selection(events, where))


def sum_(source: str, *, type: str = "bigint", events: list[str] | None = None, where: Where = None) -> Column:  # noqa: A002
    """Add up values of `bigint` or `decimal(p,s)`, exactly, to a `numeric` of any size; 0 for none.

    A rollup adds up a column of its rows.
    """
    return Column("sum", _summed_source(source), _summed_type("sum_", source, type), *_selection(events, where))


def avg(source: str, *, type: str = "decimal(28,12)", events: list[str] | None = None, where: Where = None) -> Column:  # noqa: A002
    """Take the mean, kept as exact sum and count; null for none. A rollup takes the mean of a column of its rows."""
    return Column("avg", _summed_source(source), _summed_type("avg", source, type), *_selection(events, where))


def min_(source: str, *, type: str | None = None, events: list[str] | None = None, where: Where = None) -> Column:  # noqa: A002
    """Keep the smallest value; null for none. A field of data needs `type=`; texts are compared by their bytes."""
    return Column("min", _source(source), _ordered(source, type), *_selection(events, where))


def max_(source: str, *, type: str | None = None, events: list[str] | None = None, where: Where = None) -> Column:  # noqa: A002
    """Keep the largest value; null for none. A field of data needs `type=`; texts are compared by their bytes."""
    return Column("max", _source(source), _ordered(source, type), *_selection(events, where))


def first(
    source: str,
    *,
    type: str | None = None,  # noqa: A002
    by: str | None = None,
    by_type: str | None = None,
    events: list[str] | None = None,
    where: Where = None,
) -> Column:
    """Keep the value of the first event that has one; null for none.

    The first one by offset; or, with `by`, the one with the least value of `by`, read as `by_type`, and among equal
    ones the first by offset. With `by`, events without that value do not count.
    """
    return _decided("first", source, type, by, by_type, _selection(events, where))


def last(
    source: str,
    *,
    type: str | None = None,  # noqa: A002
    by: str | None = None,
    by_type: str | None = None,
    events: list[str] | None = None,
    where: Where = None,
) -> Column:
    """Keep the value of the last event that has one; null for none.

    The last one by offset; or, with `by`, the one with the greatest value of `by`, read as `by_type`, and among equal
    ones the last by offset. With `by`, events without that value do not count.
    """
    return _decided("last", source, type, by, by_type, _selection(events, where))


def _decided(
    kind: str, source: str, type_: str | None, by: str | None, by_type: str | None, selection: _Selection
) -> Column:
    if by is None:
        if by_type is not None:
            raise InvalidColumn(f"{source!r}: by_type is {by_type!r}, the type of by=, which is left out")
        return Column(kind, _source(source), _type(source, type_), *selection)
    rank = Column("by", _source(by), _ordered(by, by_type, "by_type"), *selection)
    return RankedColumn(f"{kind}_by", _source(source), _type(source, type_), *selection, rank)


def any_(source: str, *, events: list[str] | None = None, where: Where = None) -> Column:
    """Keep whether some value is true; false for none."""
    return Column("any", _source(source), _type(source, "boolean"), *_selection(events, where))


def all_(source: str, *, events: list[str] | None = None, where: Where = None) -> Column:
    """Keep whether every value is true; true for none."""
    return Column("all", _source(source), _type(source, "boolean"), *_selection(events, where))


def set_union(source: str, *, type: str | None = None, events: list[str] | None = None, where: Where = None) -> Column:  # noqa: A002
    """Collect the distinct values, sorted, texts by their bytes; empty for none. Each change writes the whole array."""
    element = _type(source, type)
    if element == "double":
        raise InvalidColumn(f"set_union({source!r}): type is 'double', which 0 and -0 are two of; use decimal(p,s)")
    return Column("set_union", _source(source), element, *_selection(events, where))


def top(
    source: str,
    n: int,
    *,
    type: str | None = None,  # noqa: A002
    by: str | None = None,
    by_type: str | None = None,
    events: list[str] | None = None,
    where: Where = None,
) -> Column:
    """Keep the values of the n events with the greatest value of `by`, the greatest first; empty for none.

    Of several events with one value of `by`, the last by offset comes first. Without `by` the values themselves decide.
    Events that lack one of the two do not count. Each change writes the whole array.
    """
    by_word = "by_type"
    if not isinstance(n, int) or not 1 <= n <= MOST_KEPT:
        raise InvalidColumn(f"{source!r}: n is {n!r}; keep 1 to {MOST_KEPT} values")
    if by is None:
        if by_type is not None:
            raise InvalidColumn(f"{source!r}: by_type is {by_type!r}, the type of by=, which is left out")
        by, by_type, by_word = source, type, "type"
    rank = Column("by", _source(by), _ordered(by, by_type, by_word), *_selection(events, where))
    return TopColumn("top", _source(source), _type(source, type), *_selection(events, where), rank, n)


def latest(
    source: str,
    n: int,
    *,
    type: str | None = None,  # noqa: A002
    events: list[str] | None = None,
    where: Where = None,
) -> Column:
    """Keep the values of the last n events by offset, the last first; empty for none."""
    return top(source, n, type=type, by=ORDER, events=events, where=where)


def sessions(source: str, *, gap: str, events: list[str] | None = None, where: Where = None) -> Column:
    """Unite times that lie at most `gap` apart, such as `30 min`, to spans from the first to the last; empty for none.

    A late time extends a span, or unites two. A day is 24 hours. Each change writes all spans of the row.
    """
    found = _GAP.fullmatch(str(spelled(gap)))
    if found is None:
        raise InvalidColumn(
            f"sessions({source!r}): gap is {gap!r}; allowed: 'n sec', 'n min', 'n hour', 'n day', n below 100,000"
        )
    type_ = _type(source, "timestamp")
    return SessionsColumn(
        "sessions", _source(source), type_, *_selection(events, where), int(found[1]) * _SECONDS[found[2]]
    )


def is_of_row(source: str) -> bool:
    """Return whether a source can only be a column of a read model's rows, for a rollup."""
    return source not in COLUMNS and _COLUMN.fullmatch(source) is not None


def _summed_source(source: str) -> str:
    return source if is_of_row(source) else _source(source)


def require_of_events(*columns: Column | KeyColumn) -> None:
    """Refuse columns over a column of rows, which a rollup may have.

    Raises:
        InvalidColumn: The text names the alternatives.
    """
    for column in columns:
        if column.source and is_of_row(column.source):
            _source(column.source)


def _source(source: str) -> str:
    path = data_path(source) or item_path(source)
    if (path is None and source not in COLUMNS) or (path is not None and "" in path):
        raise InvalidColumn(
            f"{source!r} is neither a column of the event ({', '.join(COLUMNS)}) nor a field data.<key>[.<key>…], nor"
            " item[.<key>…] beside each=; over rows, a rollup has count, sum_ and avg"
        )
    return source


def _summed_type(word: str, source: str, type_: str) -> str:
    if type_ != "bigint" and not type_.startswith("decimal"):
        raise InvalidColumn(
            f"{word}({source!r}): type is {type_!r}; sums are bigint or decimal(p,s), which add up exactly"
        )
    type_ = _type(source, type_)
    if type_ != "bigint" and not is_of_row(source) and int(type_[len("decimal(") :].split(",")[0]) > MOST_SUMMED_DIGITS:
        raise InvalidColumn(
            f"{word}({source!r}): type is {type_!r}; what is added up has at most {MOST_SUMMED_DIGITS} digits:"
            f" decimal({MOST_SUMMED_DIGITS},s)"
        )
    return type_


def _type(source: str, type_: str | None) -> str:
    if not is_field(source) and not is_of_row(source):
        column_type = COLUMNS[source][0]
        if type_ not in {None, column_type}:
            raise InvalidColumn(f"{source!r} has type {column_type}, not {type_}")
        return column_type
    type_ = (type_ or "string").replace(" ", "")
    if not is_type(type_):
        raise InvalidColumn(f"{source!r}: type is {type_!r}; allowed: {ALLOWED_TYPES}")
    return type_


def _ordered(source: str, type_: str | None, word: str = "type") -> str:
    if type_ is None and is_field(source):
        raise InvalidColumn(
            f"{source!r}: {word}= is missing. A field of data is text, and of texts '9' is more than '10': name the type"
            f" whose order counts, such as {word}='decimal(18,2)'; {word}='string' compares bytes"
        )
    ordered = _type(source, type_)
    if ordered == "boolean":
        raise InvalidColumn(f"{source!r}: a boolean has no order; use any_ and all_")
    return ordered


def _selection(events: list[str] | None, where: Where) -> _Selection:
    """Return the events that a column takes, and the conditions that they must meet."""
    parsed = conditions(where, lambda source: None if is_field(_source(source)) else COLUMNS[source][0])
    if events is None:
        return None, parsed
    # a text would be taken for a list of its letters, and never match
    if isinstance(events, str) or not events:
        raise InvalidColumn(f"events= is {events!r}: name at least one event in a list, or leave it out for all")
    return tuple(sorted(set(events))), parsed
