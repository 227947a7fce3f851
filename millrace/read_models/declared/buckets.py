"""Buckets of time: the day, the hour, … that a moment is in, by the clocks of a zone, in Spark and in Postgres.

Hours and minutes are those of the moment's own offset, so that an hour that the clocks repeat is two buckets.
"""

import re
from functools import cache
from typing import TYPE_CHECKING
from zoneinfo import available_timezones

from psycopg import sql

from millrace import times
from millrace.read_models.declared.column_types import InvalidColumn

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn

_EVERY = re.compile(r"([1-9][0-9]?) (min|hour|day|week|month|year)")
# a length of time as SQL, people and options of commands write it: `5 minutes`, `1h`
_LENGTH = re.compile(r"([0-9]+) ?([a-z]+)")
_UNITS = {"s": "sec", "second": "sec", "m": "min", "minute": "min", "h": "hour", "d": "day", "w": "week"}
# the number that a length must divide, and the unit's seconds
_PARTS = {"min": (60, 60), "hour": (24, 3600)}
# Spark would fail at them
_UNKNOWN_TO_JAVA = {"America/Coyhaique"}
ALLOWED = (
    "'1 day', '1 week' (from Monday on), '1 month', '1 year', 'n hour' where n divides 24, 'n min' where n divides 60"
)


def spelled(length: str) -> str:
    """Return a length of time as declarations have it, such as `5 min`; return anything else unchanged."""
    found = _LENGTH.fullmatch(str(length))
    if found is None:
        return length
    unit = found[2] if found[2] in _UNITS else found[2].removesuffix("s")
    return f"{found[1]} {_UNITS.get(unit, unit)}"


def require_bucket(label: str, every: str, zone: str) -> None:
    """Refuse a length or a zone that does not exist.

    Raises:
        InvalidColumn: It names the allowed ones.
    """
    found = _EVERY.fullmatch(str(every))
    whole = _PARTS.get(found[2], (1, 0))[0] if found else 0
    if found is None or whole % int(found[1]):
        raise InvalidColumn(f"{label}: every is {every!r}; allowed: {ALLOWED}")
    if zone not in _zones():
        raise InvalidColumn(f"{label}: there is no zone {zone!r}; name a city's, such as 'Europe/Berlin', or 'UTC'")


@cache
def _zones() -> frozenset[str]:
    return frozenset({"UTC", *(name for name in available_timezones() if "/" in name)} - _UNKNOWN_TO_JAVA)


def beginning(moment: "SparkColumn", every: str, zone: str) -> "SparkColumn":
    """Return the beginning of a moment's bucket."""
    from pyspark.sql import functions as f

    number, unit = every.split(" ")
    local = f.from_utc_timestamp(moment, zone)
    seconds = int(number) * _PARTS[unit][1] if unit in _PARTS else 0
    passed = f.pmod(f.unix_micros(local), f.lit(seconds * 1_000_000))
    if 0 < seconds <= 3600:
        begin = f.timestamp_micros(f.unix_micros(moment) - passed)
    elif seconds:
        begin = f.to_utc_timestamp(f.timestamp_micros(f.unix_micros(local) - passed), zone)
    else:
        begin = f.to_utc_timestamp(f.date_trunc(unit, local), zone)
    # the very first day may begin in a year that Python does not know
    return f.greatest(begin, f.lit(times.FIRST).cast("timestamp"))


def beginning_in_sql(moment: sql.Composable, every: str, zone: str) -> sql.Composed:
    """Return the SQL expression of the beginning of a moment's bucket.

    It is the same moment as in Spark if Postgres and Spark's Java have the same rules for the zone.
    """
    _, unit = every.split(" ")
    parts = {"moment": moment, "zone": sql.Literal(zone), "every": sql.Literal(every), "unit": sql.Literal(unit)}
    local = sql.SQL("({moment} at time zone {zone})").format(**parts)
    begin = "date_bin({every}, {local}, '0001-01-01')" if unit in _PARTS else "date_trunc({unit}, {local})"
    parts["begin"] = sql.SQL(begin).format(local=local, **parts)
    if unit == "min" or every == "1 hour":
        query = sql.SQL("{moment} - ({local} - {begin})").format(local=local, **parts)
    else:
        # If the clocks repeat a time, Postgres takes the later moment. By the clocks of the day before it is the
        # earlier one, if that moment has this time
        query = sql.SQL(
            "(select least(b at time zone {zone}, case when earlier at time zone {zone} = b then earlier end)"
            " from (select {begin} as b) b,"
            " lateral (select (b - interval '24 h') at time zone {zone} + interval '24 h' as earlier) e)"
        ).format(**parts)
    # null has no bucket, but `greatest` would ignore the null
    return sql.SQL("case when {moment} is not null then greatest({query}, {first}::timestamptz) end").format(
        moment=moment, query=query, first=sql.Literal(times.FIRST)
    )
