"""Reads the times of foreign event logs as ISO 8601, from the known forms or from a stated one.

A time is never guessed. The known forms are those of `millrace.times` and these, followed by any time and zone:

| day                       | why it is no other day                                       |
|---------------------------|--------------------------------------------------------------|
| 2011/10/31, 2011.10.31    | the year comes first                                         |
| 20111031                  | alone, or with T and a time of 4 or 6 digits                 |
| 31.10.2011, 10/31/2011    | one number is above 12, both are the same, or `--day-first`  |
| 31 Oct 2011, 31/Oct/2011  | the month has its English name                               |
| Oct 31, 2011              | the same                                                     |
| Mon Oct 31 13:45:00 2011  | the same                                                     |

A weekday must be that of the day. A time may have AM or PM. A zone may be UTC+2 or GMT+0200, two hours east of
Greenwich.
"""

import math
import re
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal, localcontext
from typing import Literal

from millrace.errors import ImportRefused
from millrace.times import OFFSET, iso_text, written

Unit = Literal["s", "ms", "us", "ns"]

LONGEST = 100
_MONTHS = [
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
]  # fmt: skip
_WEEKDAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_EPOCH = datetime(1970, 1, 1)
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]{1,2})?")
_SHORT_YEAR = re.compile(r"[0-9]{1,2}([-/.])[0-9]{1,2}\1[0-9]{1,2}(?![0-9])")
_DIGIT_OF_OTHERS = re.compile(r"[^\D0-9]")
_ALLOWED = "YymbBdHIpMSfzaA%"
_DIRECTIVES = re.compile("%(.)")
_SIDE_BY_SIDE = re.compile("%[YymdHIMSf]%[YymdHIMSf]")

_WEEKDAY = r"(?:(?P<weekday>[A-Za-z]{3,9}),? +)?"
_NAME = r"(?P<name>[A-Za-z]{3,9})"
_YEAR = r"(?P<year>[0-9]{4})"
_DAY = r"(?P<day>[0-9]{1,2})"
_ZONE = rf" ?(?:(?P<letters>[A-Za-z]+(?:/[A-Za-z_]+)?)|(?:UTC|GMT)?(?P<offset>{OFFSET}|[+-][0-9]))"
_CLOCK = r"(?P<hour>[01]?[0-9]|2[0-3]):(?P<minute>[0-5][0-9])(?::(?P<second>[0-5][0-9])(?:[.,](?P<fraction>[0-9]+))?)?"
_TIME = rf"{_CLOCK}(?: ?(?P<half>[AaPp])\.?[Mm]\.?)?(?:{_ZONE})?"
_BEHIND = rf"(?:(?:[T:]|,? +){_TIME})?"
_FORMS = [
    re.compile(_WEEKDAY + form)
    for form in (
        rf"{_YEAR}(?P<sep>[-/.])(?P<month>[0-9]{{1,2}})(?P=sep){_DAY}{_BEHIND}",
        rf"(?P<one>[0-9]{{1,2}})(?P<sep>[-/.])(?P<two>[0-9]{{1,2}})(?P=sep){_YEAR}{_BEHIND}",
        rf"{_DAY}(?:[-/]|\.? +){_NAME}(?:[-/]|\.?,? +){_YEAR}{_BEHIND}",
        rf"{_NAME}\.? +{_DAY},? +{_YEAR}{_BEHIND}",
        rf"{_NAME} +{_DAY} +{_TIME} +{_YEAR}",
        r"(?P<year>[0-9]{4})(?P<month>[0-9]{2})(?P<day>[0-9]{2})"
        rf"(?:T(?P<hour>[0-9]{{2}})(?P<minute>[0-9]{{2}})(?P<second>[0-9]{{2}})?(?:{_ZONE})?)?",
    )
]


@dataclass(frozen=True)
class TimeForm:
    """How the times of a log are written.

    Attributes:
        format: A format of Python's `strptime`; with it, no other text is a time.
        unit: The unit of numbers that count from 1970; with it, only a number is a time.
        day_first: Whether the first of two numbers before a year is the day.

    Raises:
        ImportRefused: More than one is given, or the format makes a text ambiguous.
    """

    format: str | None = None
    unit: Unit | None = None
    day_first: bool = False

    def __post_init__(self) -> None:
        """Refuse options that make a time ambiguous."""
        if (self.format is not None) + (self.unit is not None) + self.day_first > 1:
            raise ImportRefused("Only one of --time-format, --time-unit and --day-first can say how times are written.")
        if self.format is None:
            return
        used = _DIRECTIVES.findall(self.format)
        directives = set(used)
        year, month, hour = (directives & set(names) for names in ("Yy", "mbB", "HI"))
        for fault, applies in (
            (
                f"has a directive other than %{', %'.join(_ALLOWED)}",
                "%" in _DIRECTIVES.sub("", self.format) or directives - set(_ALLOWED),
            ),
            ("has no year, month or day", not (year and month and "d" in directives)),
            ("says a part twice", len(used) > len(directives) or len(year) + len(month) > 2 or len(hour) > 1),
            ("has one of %I and %p without the other", len(directives & set("Ip")) == 1),
            ("has a part of an hour without the hour", directives & set("MSfp") and not hour),
        ):
            if applies:
                raise ImportRefused(
                    f"The time format {self.format!r} {fault}.",
                    hint="Write it as in Python's strptime, such as --time-format '%d.%m.%Y %H:%M:%S'.",
                )

    def iso(self, value: object) -> str:
        """Return a time as ISO 8601 with its offset, `+00:00` if it has none, and every digit; a day stays a day.

        Raises:
            ValueError: The value can be read in no way, or in more than one way; the message says why.
        """
        if value is None or value == "":
            raise ValueError("there is none")
        if self.unit:
            return _from_number(value, _DIGITS[self.unit])
        if not isinstance(value, str):
            raise ValueError(f"{str(value)[:40]!r} is no text: say what it counts with --time-unit")
        text = value.strip()
        if len(text) > LONGEST:
            raise ValueError(f"{text[:40]!r}… is too long")
        if self.format is not None:
            return _from_format(text, self.format)
        # nearly all texts are ISO 8601
        if iso := iso_text(text):
            return iso
        for form in _FORMS:
            parts = form.fullmatch(text)
            if parts:
                return self._from_parts(text, parts.groupdict(""))
        if _NUMBER.fullmatch(text):
            raise ValueError(f"{text!r} is a bare number: say what it counts with --time-unit")
        if _SHORT_YEAR.match(text):
            raise ValueError(f"{text!r} has a year of two digits: say its form with --time-format, such as %y/%m/%d")
        raise ValueError(f"{text!r} is not a time of a known form: say its form with --time-format")

    def _from_parts(self, text: str, parts: dict[str, str]) -> str:
        month, day = parts.get("month", ""), parts.get("day", "")
        if "name" in parts:
            month = str(_place(parts["name"], _MONTHS) + 1)
        elif "one" in parts:
            month, day = parts["one"], parts["two"]
            if self.day_first or int(month) > 12:
                month, day = day, month
            elif int(day) <= 12 and int(month) != int(day):
                raise ValueError(
                    f"{text!r} leaves open which day it is: say --day-first, or its form with --time-format"
                )
        letters, offset = parts.get("letters", ""), parts.get("offset", "")
        if letters not in {"", "Z", "UTC", "GMT"}:
            raise ValueError(f"{text!r} has a zone of letters: only an offset such as +01:00 is clear")
        if len(offset) == len("+2"):
            offset = f"{offset[0]}0{offset[1]}"
        hour = parts.get("hour", "")
        if parts.get("half"):
            # with AM or PM, an hour outside 1 to 12 makes the time invalid
            hour = str(int(hour) % 12 + 12 * (parts["half"] in "pP")) if 1 <= int(hour) <= 12 else "24"
        minute, second, fraction = (parts.get(name, "") for name in ("minute", "second", "fraction"))
        iso = written(parts["year"], month, day, hour, minute, second, fraction, offset)
        if iso is None:
            raise ValueError(f"{text!r} is not a time: there is no such day or hour")
        weekday = parts.get("weekday")
        if weekday and _place(weekday, _WEEKDAYS) != date.fromisoformat(iso[:10]).weekday():
            raise ValueError(f"{text!r} has a weekday that is not that of its day")
        return iso


def _place(name: str, names: list[str]) -> int:
    """Return the index of a name that may be cut after three letters; -1 if it is unknown."""
    return next((place for place, full in enumerate(names) if full.startswith(name.lower())), -1)


def _from_number(value: object, digits: int) -> str:
    """Return the time of a number that counts from 1970 in seconds, with `digits` digits after the point."""
    text = value.strip() if isinstance(value, str) else str(value)
    if isinstance(value, bool) or not _NUMBER.fullmatch(text) or len(text) > LONGEST:
        raise ValueError(f"{text[:40]!r} is no number, as --time-unit says")
    # by default Decimal would round to 28 digits
    with localcontext(prec=4 * LONGEST):
        number = Decimal(text).scaleb(-digits)
        seconds = math.floor(number)
        fraction = f"{number - seconds:f}".partition(".")[2].rstrip("0")
    try:
        whole = (_EPOCH + timedelta(seconds=seconds)).isoformat()
    except OverflowError:
        raise ValueError(f"{text!r} is beyond the years 1 to 9999: say another --time-unit") from None
    return f"{whole}{fraction and f'.{fraction:0<6}'}+00:00"


def _from_format(text: str, form: str) -> str:
    misfit = f"{text!r} is not a time of the form {form}"
    try:
        parsed = datetime.strptime(text, form)
    except ValueError:
        raise ValueError(misfit) from None
    iso = iso_text(parsed.isoformat() if re.search("%[HI]", form) else parsed.date().isoformat())
    # strptime accepts digits of other scripts, cuts 1112011 somewhere, and ignores a weekday
    cut = _SIDE_BY_SIDE.search(form) and parsed.strftime(form).lower() != text.lower()
    if iso is None or cut or _DIGIT_OF_OTHERS.search(text):
        raise ValueError(misfit)
    if re.search("%[aA]", form) and _WEEKDAYS[parsed.weekday()][:3] not in text.lower():
        raise ValueError(f"{text!r} has a weekday that is not that of its day")
    return iso
