"""The types of read models' values: how a text in `data` is read as a type, and which Postgres type holds it.

A field of data is text, read as the column's type exactly or not at all: a value that the type does not hold fails its
stream, which keeps its events and names the value. Nothing is rounded, cut, guessed or made null.

| type           | takes                                                                                              |
|----------------|----------------------------------------------------------------------------------------------------|
| `string`       | every value; a value other than a text as its JSON                                                 |
| `bigint`, `int`| whole numbers within its range, written without a fraction: 5, not 5.0                             |
| `decimal(p,s)` | numbers of up to p-s digits and s decimals: decimal(18,2) takes 12.5, 12.340 and 5e-2, not 12.345   |
| `double`       | finite numbers, as the nearest double; not NaN, not 1e400                                          |
| `boolean`      | true and false, and in any case the words t, y, yes, 1 and f, n, no, 0                             |
| `date`         | a day, as `millrace.times` says: 2024-02-29                                              |
| `timestamp`    | a day, or a day with a time, as it says there; UTC where no zone is given                          |
"""

import json
import math
import re
from decimal import Decimal, InvalidOperation, localcontext
from typing import TYPE_CHECKING

import pyarrow as pa

from millrace import times

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn

_POSTGRES_TYPES = {
    "string": 'text collate "C"',  # compares bytes, as Spark does
    "bigint": "bigint",
    "int": "int",
    "double": "double precision",
    "boolean": "boolean",
    "timestamp": "timestamptz",
    "date": "date",
}
ALLOWED_TYPES = f"{', '.join(sorted(_POSTGRES_TYPES))}, decimal(precision,scale)"
_DECIMAL = re.compile(r"decimal\(([0-9]{1,2}),([0-9]{1,2})\)")

_RANGES = {"int": range(-(2**31), 2**31), "bigint": range(-(2**63), 2**63)}

# no type of a column, but that of a text that `each=` found in place of an array
ARRAY = "JSON array"

# in folds and recomputes, the type of personal values as they are stored: envelopes; or other values, as texts
SEALED = "sealed"

# how many characters an error quotes of a text that its type does not hold
QUOTED = 100

# the forms of texts of a type: Spark's cast also takes other texts, and changes them
NUMBER = r"^ *[+-]?(?=[.]?[0-9])([0-9]*)(?:[.]([0-9]*))?(?:[eE]([+-]?[0-9]{1,4}))?" + times.END
_FORMS = {"decimal": NUMBER, "double": NUMBER, "date": times.DAY_FORM, "timestamp": times.TIME_FORM}


class InvalidColumn(ValueError):
    """A column is declared with something that it cannot be; the text says what is allowed."""


def exact(value: object, type_: str) -> object:
    """Return a value of a JSON document as a type. Unlike `typed`, this reads no text as a number or a boolean.

    Raises:
        ValueError: The type does not hold the value exactly.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    found: object = None
    if type_ == SEALED:
        return exact(value if isinstance(value, str) else json.dumps(value), "string")
    if type_ in _RANGES:
        found = value if isinstance(value, int) and number and value in _RANGES[type_] else None
    elif type_ == "double":
        found = float(value) if isinstance(value, int | float) and number and math.isfinite(value) else None
    elif type_ == "boolean":
        found = value if isinstance(value, bool) else None
    elif type_.startswith("decimal"):
        found = _exact_decimal(str(value), type_) if number or isinstance(value, str) else None
    elif isinstance(value, str) and "\0" not in value:  # Postgres has no text with this character
        if type_ in {"date", "timestamp"}:
            found = times.day(value) if type_ == "date" else times.moment(value)
        else:
            try:
                found = value.encode().decode()
            except ValueError:  # half a surrogate pair is no text
                found = None
    if found is None:
        raise ValueError(f"{value!r:.100} is not exactly a {type_}")
    return found


def _exact_decimal(text: str, type_: str) -> Decimal | None:
    digits = _DECIMAL.fullmatch(type_)
    assert digits is not None
    precision, scale = int(digits[1]), int(digits[2])
    # Python knows the digits of other scripts, and `1_000`
    if not re.match(NUMBER, text):
        return None
    try:
        number = Decimal(text)
        with localcontext(prec=precision + 1):
            fitted = number.quantize(Decimal(1).scaleb(-scale))
    except InvalidOperation:
        return None
    # not `abs`, which rounds to 28 digits
    return fitted if fitted == number and number.copy_abs() < Decimal(10) ** (precision - scale) else None


def postgres_type(spark_type: str) -> str:
    """Return the Postgres type that holds every value of a Spark type, also of an array of one."""
    if spark_type.startswith("array<"):
        element, *collation = postgres_type(spark_type.removeprefix("array<").removesuffix(">")).split(" collate ")
        return f"{element}[]" + "".join(f" collate {name}" for name in collation)
    if spark_type.startswith("decimal"):
        return f"numeric{spark_type.removeprefix('decimal')}"
    return _POSTGRES_TYPES[spark_type]


def typed(text: "SparkColumn", type_: str) -> "SparkColumn":
    """Read a field of data, a text, as a type, without raising; the result counts only where `misread` is not true."""
    from pyspark.sql import functions as f

    if type_ in {"string", ARRAY}:
        return text
    value = text.try_cast(type_)
    if type_ != "timestamp":
        return value
    # Spark's cast wants seconds before a zone
    with_seconds = f.regexp_replace(text, "^( *[^ T]+[ T][0-9]{1,2}:[0-9]{2})(?= ?[A-Z+-])", "$1:00")
    return f.coalesce(value, with_seconds.try_cast(type_))


def misread(text: "SparkColumn", type_: str) -> "SparkColumn | None":
    """Return whether a type fails to hold a text exactly: true, or else false or null. None: the type holds every text.

    It contains the expression of `typed` unchanged, so that Spark reads the text once for both.
    """
    from pyspark.sql import functions as f

    if type_ == "string":
        return None
    if type_ == ARRAY:
        return text.isNotNull()
    value = typed(text, type_)
    unread = text.isNotNull() & value.isNull()
    decimal = _DECIMAL.fullmatch(type_)
    form = _FORMS.get("decimal" if decimal else type_)
    if form is None:
        return unread
    # Spark's cast takes texts of other forms
    inexact = ~text.rlike(form)
    if decimal:
        finer = text.rlike(rf"[.][0-9]{{{decimal[2]}}}[0-9]*[1-9]")
        inexact |= f.when(text.rlike("[eE]"), _decimals(text) > int(decimal[2])).otherwise(finer)
    elif type_ == "timestamp":
        # an offset may lead out of the years that Python knows
        inexact |= ~value.between(f.lit(times.FIRST).cast(type_), f.lit(times.LAST).cast(type_))
    elif type_ == "double":
        inexact |= f.abs(value) == float("inf")
    return inexact | unread


def refusal(text: str, source: str, type_: str) -> str:
    """Return the error for a text, or its beginning, that a type does not hold exactly."""
    return f"{source} is '{text}', which is not exactly a {type_}"


def _decimals(text: "SparkColumn") -> "SparkColumn":
    """Return how many decimals a number with an exponent has: negative if zeros are before its point."""
    from pyspark.sql import functions as f

    before, after, exponent = (f.regexp_extract(text, NUMBER, part) for part in (1, 2, 3))
    digits = f.regexp_replace(f.concat(before, after), "0+$", "")
    needed = f.length(digits) - f.length(before) - exponent.try_cast("int")
    return f.when(digits == "", 0).otherwise(needed)


def arrow_type(spark_type: str) -> pa.DataType:
    """Return the Arrow type in which Spark gives and takes a type."""
    decimal = _DECIMAL.fullmatch(spark_type)
    if decimal:
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    return {
        "string": pa.string(),
        "bigint": pa.int64(),
        "int": pa.int32(),
        "double": pa.float64(),
        "boolean": pa.bool_(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "date": pa.date32(),
    }[spark_type]


def is_type(text: str) -> bool:
    """Return whether a value can have a type of this name."""
    digits = _DECIMAL.fullmatch(text)
    is_decimal = digits is not None and int(digits[2]) <= int(digits[1]) <= 38 and int(digits[1]) > 0
    return is_decimal or text in _POSTGRES_TYPES
