"""The annotations of a source's transaction, written by `pg_logical_emit_message`, as JSON that an event may hold.

If no event may hold an annotation, a substitute takes its place: no change is held back.
"""

import json
import re
from decimal import Decimal
from itertools import accumulate

from millrace.capture.decoding.values import Undecodable, embedded, quoted

ANNOTATIONS = "millrace.annotations"

# half of what an event's data may have, as jsonb writes it: the other half is for the row
_MOST_BYTES = 524_288
# the limits of all data; the annotation is nested in the data, and its values are nested in the annotation
_MOST_DIGITS, _MOST_LEVELS = 900, 198
_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*+"')
_LEVELS = {"[": 1, "{": 1, "]": -1, "}": -1}


def annotations_json(content: bytes) -> str | None:
    """Return an annotation as JSON, a text if it is not JSON, a sentence if it is too large; None if it is empty."""
    try:
        text = content.decode().strip(" \t\r\n")
        if text in {"", "null"}:
            return None
        fault = _fault(embedded(text))
    except (Undecodable, UnicodeDecodeError):
        text = quoted(content.decode(errors="backslashreplace").replace("\0", "\\x00"))
        fault = _fault(text)
    return text if fault is None else quoted(f"Millrace left out an annotation that {fault}")


def _fault(document: str) -> str | None:
    """Return why JSON is more than an event may hold beside a row; None if it is not."""
    digits = [0]

    def count(text: str) -> None:
        number = Decimal(text)
        exponent = number.as_tuple().exponent
        assert isinstance(exponent, int)
        digits.append(max(number.adjusted() + 1, 1) + max(-exponent, 0))

    if len(document) <= _MOST_BYTES:
        json.loads(document, parse_float=count, parse_int=count)
    structure = _STRINGS.sub("", document)
    size = len(document.encode()) + structure.count(",") + structure.count(":") + sum(digits)
    if size > _MOST_BYTES:
        return f"has {size} bytes; at most {_MOST_BYTES} are allowed"
    if max(digits) > _MOST_DIGITS:
        return f"has a number of {max(digits)} digits; at most {_MOST_DIGITS} are allowed"
    if max(accumulate(_LEVELS.get(each, 0) for each in structure), default=0) > _MOST_LEVELS:
        return f"is nested deeper than {_MOST_LEVELS} levels"
    return None
