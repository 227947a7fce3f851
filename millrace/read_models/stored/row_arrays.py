"""Arrow rows as arrays, one for each column: so few rows reach Postgres in one prepared statement, without staging.

Values that Python cannot hold exactly travel as numbers: Python's times end in the year 9999. An array, which `unnest`
would take apart, travels as the text of an array.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from millrace.read_models.declared.column_types import postgres_type

_US_PER_DAY = 86_400_000_000
_TRAVELS_AS = {"timestamp": "bigint", "date": "int"}
_ARROW = {"timestamp": pa.int64(), "date": pa.int32()}
_BACK = {
    # by days and microseconds: as an interval of seconds alone, a distant time would lose some
    "timestamp": (
        f"(timestamp 'epoch' + make_interval(days => ({{0}} / {_US_PER_DAY})::int, secs => mod({{0}}, {_US_PER_DAY}) / 1e6))"
        " at time zone 'UTC'"
    ),
    "date": "date 'epoch' + {0}",
}


def travelling(values: pa.ChunkedArray, type_: str) -> list[Any]:
    """Return the values of a column of a Spark type in the form in which they travel."""
    if type_.startswith("array<"):
        # as Postgres writes arrays
        flat = values.combine_chunks()
        elements = flat.values
        if pa.types.is_string(elements.type):
            elements = pc.replace_substring_regex(elements, r'(["\\\\])', r"\\\1")
            elements = pc.binary_join_element_wise('"', elements, '"', "")
        arrays = pa.ListArray.from_arrays(flat.offsets, elements.cast(pa.string()))
        values = pc.binary_join_element_wise("{", pc.binary_join(arrays, ","), "}", "")
    elif type_ in _ARROW:
        values = values.cast(_ARROW[type_])
    travelled: list[Any] = values.to_pylist()
    return travelled


def unnested(schema: Mapping[str, str], stored: Mapping[str, str]) -> sql.Composed:
    """Return a SELECT of the rows; its parameters are the arrays of the columns in order.

    Args:
        schema: The columns with their Spark types.
        stored: The columns with the Postgres types that the SELECT returns.
    """
    arrays, columns = [], []
    for name, type_ in schema.items():
        as_text = type_.startswith("array<")
        travels_as = "text" if as_text else _TRAVELS_AS.get(type_, postgres_type(type_).split(" collate ")[0])
        arrays.append(sql.SQL("%s::{}[]").format(sql.SQL(travels_as)))
        value = sql.SQL(_BACK.get(type_, "{}")).format(sql.Identifier("t", name))
        columns.append(sql.SQL("({})::{} as {}").format(value, sql.SQL(stored[name]), sql.Identifier(name)))
    names = sql.SQL(", ").join(map(sql.Identifier, schema))
    comma = sql.SQL(", ")
    return sql.SQL("select {} from unnest({}) t({})").format(comma.join(columns), comma.join(arrays), names)
