"""Writes values as the JSON text that the store's functions take, and refuses values without such a text."""

import json
import re
from collections.abc import Iterable
from uuid import UUID

from psycopg.types.json import Jsonb

from millrace.errors import Malformed
from millrace.event_store.rows import Json

# an escaped NUL, but not the text "u0000" after an escaped backslash
NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def jsonb(value: object) -> Jsonb:
    """Return a value as an argument of the type jsonb; the call writes it as JSON, or raises `Malformed`."""
    return Jsonb(value, dumps=written)


def written(value: object) -> str:
    """Return a value as a JSON text that Postgres takes; a UUID is a text.

    Raises:
        Malformed: The value has no such text.
    """
    try:
        text = _ENCODER.encode(value)
        if "\\ud" in text:
            json.dumps(value, default=_uuid_text, ensure_ascii=False).encode()
        if "\\u0000" in text and NUL.search(text):
            raise ValueError("a text has the character NUL")
    except (TypeError, ValueError, RecursionError) as error:
        raise Malformed(
            "The value is no JSON that Postgres takes.",
            detail=str(error),
            hint="Pass texts, finite numbers, true, false, None, lists, and objects with texts as keys; UUIDs become texts.",
        ) from error
    return text


def flat(moves: Iterable[Json]) -> list[Json]:
    """Return the moves of an upcast in one list: some constructors return several moves."""
    return [move for each in moves for move in (flat(each) if isinstance(each, list | tuple) else [each])]


def _uuid_text(value: object) -> str:
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(getattr(value, "no_json", f"an object of type {type(value).__name__} is not JSON"))


_ENCODER = json.JSONEncoder(default=_uuid_text, allow_nan=False)
