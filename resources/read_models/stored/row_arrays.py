"""Rows of Arrow as arrays, one for each column: how few rows reach Postgres in one prepared statement, without staging.

What Python cannot hold exactly travels as a number: its times end in the year 9999. An array, which `unnest` would take
apart, travels as the text of an array.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
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
        return _texts(values)
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


def _texts(values: pa.ChunkedArray) -> list[Any]:
    """Return arrays as Postgres writes them."""
    flat = values.combine_chunks()
    elements = flat.values
    if pa.types.is_string(elements.type):
        elements = pc.replace_substring_regex(elements, r'(["\\\\])', r"\\\1")
        elements = pc.binary_join_element_wise('"', elements, '"', "")
    arrays = pa.ListArray.from_arrays(flat.offsets, elements.cast(pa.string()))
    texts: list[Any] = pc.binary_join_element_wise("{", pc.binary_join(arrays, ","), "}", "").to_pylist()
    return texts


def _back(value: sql.Composable, type_: str) -> sql.Composable:
    """Return the expression of a value of a Spark type, from how it travels."""
    return sql.SQL(_BACK[type_]).format(value) if type_ in _BACK else value


def _travels_as(type_: str) -> str:
    if type_.startswith("array<"):
        return "text"
    return _TRAVELS_AS.get(type_, postgres_type(type_).split(" collate ")[0])
