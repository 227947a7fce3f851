"""Rows of Arrow as arrays, one for each column: how few rows reach Postgres in one prepared statement.

Belongs here: how each type travels. Not here: what becomes of the rows (`merge`).

`unnest` gives the rows back. Nothing is staged, so nothing is to be cleaned up, and Postgres plans once. What Python
cannot hold exactly travels as a number: its times end in the year 9999. What `unnest` would take apart, an array,
travels as JSON.
"""

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from psycopg import sql

from millrace.resources.read_models.declared.column_types import postgres_type

_US_PER_DAY = 86_400_000_000
_TRAVELS_AS = {"timestamp": "bigint", "date": "int"}
_ARROW = {"timestamp": pa.int64(), "date": pa.int32()}
_BACK = {
    # by days and microseconds: as an interval of seconds alone, a time far away would lose some
    "timestamp": (
        f"(timestamp 'epoch' + make_interval(days => ({{0}} / {_US_PER_DAY})::int, secs => mod({{0}}, {_US_PER_DAY}) / 1e6))"
        " at time zone 'UTC'"
    ),
    "date": "date 'epoch' + {0}",
}


def travelling(values: pa.ChunkedArray, type_: str) -> list[Any]:
    """Return the values of a column of a Spark type as they travel."""
    if type_.startswith("array<"):
        element = _element(type_)
        return [None if one is None else json.dumps(one) for one in _texts(values, element)]
    if type_ in _ARROW:
        values = values.cast(_ARROW[type_])
    travelled: list[Any] = values.to_pylist()
    return travelled


def unnested(schema: Mapping[str, str], stored: Mapping[str, str]) -> sql.Composed:
    """Return a SELECT of the rows, whose parameters are the arrays of the columns in order.

    Args:
        schema: The columns with their Spark types.
        stored: The columns with their Postgres types, which the SELECT returns.
    """
    arrays = sql.SQL(", ").join(sql.SQL("%s::{}[]").format(sql.SQL(_travels_as(type_))) for type_ in schema.values())
    columns = sql.SQL(", ").join(
        sql.SQL("({})::{} as {}").format(
            _back(sql.Identifier("t", name), type_), sql.SQL(stored[name]), sql.Identifier(name)
        )
        for name, type_ in schema.items()
    )
    names = sql.SQL(", ").join(map(sql.Identifier, schema))
    return sql.SQL("select {} from unnest({}) t({})").format(columns, arrays, names)


def _texts(values: pa.ChunkedArray, element: str) -> list[list[str] | None]:
    """Return the elements of arrays as they travel, as texts."""
    flat = values.combine_chunks()
    texts = [str(one) for one in travelling(pa.chunked_array([flat.values]), element)]
    offsets = flat.offsets.to_pylist()
    valid = flat.is_valid().to_pylist()
    return [texts[first:end] if there else None for first, end, there in zip(offsets, offsets[1:], valid, strict=False)]


def _back(value: sql.Composable, type_: str) -> sql.Composable:
    """Return the expression of a value of a Spark type, from how it travels."""
    if type_.startswith("array<"):
        element = _element(type_)
        one = _back(sql.SQL("v.v::{}").format(sql.SQL(_travels_as(element))), element)
        return sql.SQL(
            "case when {value} is not null then array(select {one} from json_array_elements_text({value}::json) v(v)) end"
        ).format(value=value, one=one)
    return sql.SQL(_BACK[type_]).format(value) if type_ in _BACK else value


def _travels_as(type_: str) -> str:
    if type_.startswith("array<"):
        return "text"
    return _TRAVELS_AS.get(type_, postgres_type(type_).split(" collate ")[0])


def _element(type_: str) -> str:
    return type_.removeprefix("array<").removesuffix(">")
