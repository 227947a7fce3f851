"""Fields of JSON by path, as Postgres' `data #>> path` gives them.

Belongs here: one value of one text. Not here: columns and Spark (`log_frame`).

Numbers are as they stand in the text: no digit is lost or added, whatever a float holds.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

# what Postgres reads as the position in an array: C's strtol
_INDEX = re.compile(r"[ \t\n\v\f\r]*[+-]?[0-9]+")


class _Number(str):
    """A number as it is written."""

    __slots__ = ()


_DECODER = json.JSONDecoder(parse_int=_Number, parse_float=_Number)


def parsed(text: str) -> Any:  # noqa: ANN401 - JSON has any shape
    """Read a JSON text as Postgres prints it."""
    return _DECODER.decode(text)


def field(value: Any, path: Sequence[str]) -> str | None:  # noqa: ANN401 - JSON has any shape
    """The value at a path: text as it is, null for a JSON null and for what is not there, anything else as its JSON text."""
    for key in path:
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, list) and _INDEX.fullmatch(key):
            index = int(key)
            value = value[index] if -len(value) <= index < len(value) else None
        else:
            return None
        if value is None:
            return None
    return str(value) if isinstance(value, str) else written(value)


def written(value: Any) -> str:  # noqa: ANN401 - JSON has any shape
    """A value as Postgres writes it."""
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{written(key)}: {written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(written, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
