"""The times and days of data: the forms that Python, Spark and Postgres read as the same moment.

| part | forms                                                                                   |
|------|-----------------------------------------------------------------------------------------|
| day  | 2024-02-29; month and day may have one digit; years 0001 to 9999                        |
| time | behind T or a space: 9:30, 09:30:15, 09:30:15.25; none is midnight                      |
| zone | Z, UTC, GMT, +02, +0200, +02:00, up to 15:59, also behind a space; none is UTC          |

A moment is in the years 1 to 9999 of UTC: Python knows no other.
"""

import re
from datetime import UTC, date, datetime

_DAY = r"(?!0000)([0-9]{4})-(0?[1-9]|1[0-2])-(0?[1-9]|[12][0-9]|3[01])"
_CLOCK = r"([01]?[0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9])(?:[.]([0-9]+))?)?"
OFFSET = r"[+-](?:0[0-9]|1[0-5])(?::?[0-5][0-9])?"
# not `$`, which also matches before a line break, as `\Z` does in Java
END = r" *(?![\s\S])"
DAY_FORM = f"^ *{_DAY}{END}"
TIME_FORM = f"^ *{_DAY}(?:[T ]{_CLOCK}(?: ?(?:Z|UTC|GMT|({OFFSET})))?)?{END}"
ACCEPTED_FORMS = "2024-02-29, 2024-02-29 09:30 or 2024-02-29T09:30:15.25+02:00, in UTC if it names no zone"
FIRST, LAST = "0001-01-01 00:00:00Z", "9999-12-31 23:59:59.999999Z"

_FORM = re.compile(TIME_FORM)


def iso_text(text: str) -> str | None:
    """Return a time as ISO 8601 with its offset and all digits of the second, or a day; None for other texts."""
    parts = _FORM.match(text)
    return parts and written(*parts.groups(""))


def written(
    year: str, month: str, day: str, hour: str, minute: str, second: str, fraction: str, offset: str
) -> str | None:
    """Return the result of `iso_text` for the parts of a match, "" for a missing part; None if there is no such day."""
    days = f"{year}-{month.zfill(2)}-{day.zfill(2)}"
    if not hour:
        return days if _is(days) else None
    zone = f"{offset[:3]}:{offset[3:][-2:] or '00'}" if offset.strip("+-0:") else "+00:00"
    seconds = f"{days}T{hour.zfill(2)}:{minute}:{second or '00'}"
    if not _is(f"{seconds}{zone}"):
        return None
    # like isoformat: no zero fraction, and at least six digits
    return f"{seconds}.{fraction.ljust(6, '0')}{zone}" if fraction.strip("0") else f"{seconds}{zone}"


def moment(text: str) -> datetime | None:
    """Return the time of a text, cut to the microsecond; for a day its midnight in UTC."""
    iso = iso_text(text)
    if iso is None:
        return None
    found = datetime.fromisoformat(iso)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def bound(text: str) -> datetime | str | None:
    """Return the moment of a text, or an infinity of Postgres unchanged; None for other texts."""
    return text if text in {"-infinity", "infinity"} else moment(text)


def day(text: str) -> date | None:
    """Return the day of a text without a time; None for other texts."""
    iso = iso_text(text) if re.match(DAY_FORM, text) else None
    return None if iso is None else date.fromisoformat(iso)


def _is(iso: str) -> bool:
    try:
        found = datetime.fromisoformat(iso)
        # an offset may move the time out of these years
        if found.year in {1, 9999} and found.tzinfo:
            found.astimezone(UTC)
    except (ValueError, OverflowError):
        return False
    return True
