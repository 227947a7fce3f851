"""Reads the times of foreign event logs.

Belongs here: text of any common form to ISO 8601. Not here: the column of the time (`importer`).

A time is never guessed. A time without an offset is UTC; a date means its midnight. Refused are bare numbers, which
could count seconds or milliseconds or be digits of a date; days and months that could be either; zones known by letters
only, except UTC, GMT and Z; and times without a year, a month or a day.
"""

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo

from dateutil.parser import parse  # type: ignore[import-untyped]  # it ships no types

LONGEST = 100

_DATE = re.compile(r"\d{8}")
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?")
_YEAR_FIRST = re.compile(r"\d{4}\D")
_FINER_THAN_MICROSECONDS = re.compile(r"[.,](\d{7,})")
# The form of nearly all times. fromisoformat judges it, and then the parts are those of isoformat.
_USUAL = re.compile(r"(\d{4}-\d\d-\d\d)[ T]((?:[01]\d|2[0-3]):\d\d:\d\d)(\.\d{1,6})?([+-]\d\d:\d\d)?", re.ASCII)
_UTC = ("", "+00:00", "-00:00")
# Two dates without a part in common: what a text leaves out is what differs.
_ONE, _OTHER = datetime(2000, 1, 1), datetime(2001, 2, 2)


def iso_time(value: object) -> str:
    """Return a time as ISO 8601 with its offset, `+00:00` if it has none, and with every digit of the second.

    Raises:
        ValueError: The text can be read in no way, or in more than one; the message says why.
    """
    if value is None or value == "":
        raise ValueError("there is none")
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text")
    text = value.strip()
    usual = _usual(text)
    if usual:
        return usual
    if len(text) > LONGEST:
        raise ValueError(f"{text[:40]!r}… is too long")
    # fromisoformat would take 1762041600123 for a day of the year 1762
    if _NUMBER.fullmatch(text) and not _DATE.fullmatch(text):
        raise ValueError(f"{text!r} is a bare number")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = _foreign(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    finer = _FINER_THAN_MICROSECONDS.search(text)
    if finer:
        whole = moment.replace(microsecond=0).isoformat()
        return f"{whole[:19]}.{finer[1]}{whole[19:]}"
    return moment.isoformat()


def _usual(text: str) -> str | None:
    """Return a time of the usual form as isoformat writes it, in a third of the time; None for any other text."""
    parts = _USUAL.fullmatch(text)
    if not parts:
        return None
    date, time, fraction, offset = parts.groups("")
    if not fraction.strip(".0"):
        fraction = ""  # isoformat writes none that is zero
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return None
    return f"{date}T{time}{fraction and fraction.ljust(7, '0')}{'+00:00' if offset in _UTC else offset}"


def _foreign(text: str) -> datetime:
    try:
        one: datetime = parse(text, default=_ONE, tzinfos=_zone)
        other = parse(text, default=_OTHER, tzinfos=_zone, dayfirst=_YEAR_FIRST.match(text) is None)
        same = one == other and one.utcoffset() == other.utcoffset()
    # dateutil lets some of its internals' errors through
    except (ValueError, OverflowError, ArithmeticError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"{text!r} is not a time") from error
    if not same:
        raise ValueError(f"{text!r} leaves open which day it is")
    return one


def _zone(name: str | None, offset: int | None) -> tzinfo | None:
    if offset is None and name is not None:
        raise ValueError(f"zone {name}")
    return None if offset is None else timezone(timedelta(seconds=offset))
