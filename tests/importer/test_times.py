"""The times of foreign logs: read unambiguously, or refused with the option that helps.

Not here: ISO 8601 is the same moment for every reader (`tests/read_models/test_one_text.py`).
"""

from typing import Any

import pytest

from millrace.errors import ImportRefused
from millrace.importer.times import TimeForm
from tests.support.factories import ARABIC, FULL_WIDTH

READ: list[tuple[object, dict[str, Any], str]] = [
    ("2011-10-11 13:45:40.276000+02:00", {}, "2011-10-11T13:45:40.276000+02:00"),
    ("2011-10-11T10:00:00.123456789Z", {}, "2011-10-11T10:00:00.123456789+00:00"),
    (" 2011-10-11 ", {}, "2011-10-11"),
    ("20111011", {}, "2011-10-11"),
    ("20111011T134540Z", {}, "2011-10-11T13:45:40+00:00"),
    ("2011/10/11 13:45", {}, "2011-10-11T13:45:00+00:00"),
    ("2011-10-11 10:00:00,123", {}, "2011-10-11T10:00:00.123000+00:00"),
    ("25.10.2011 10:00", {}, "2011-10-25T10:00:00+00:00"),
    ("10/25/2011 1:45 PM", {}, "2011-10-25T13:45:00+00:00"),
    ("10/25/2011 12:05 a.m.", {}, "2011-10-25T00:05:00+00:00"),
    ("05-05-2011", {}, "2011-05-05"),
    ("Tue, 11 Oct 2011 10:00:00 GMT", {}, "2011-10-11T10:00:00+00:00"),
    ("11 Oct 2011 10:00 +0200", {}, "2011-10-11T10:00:00+02:00"),
    ("11/Oct/2011:13:45:40 +0200", {}, "2011-10-11T13:45:40+02:00"),
    ("11. October 2011", {}, "2011-10-11"),
    ("Sept 11, 2011", {}, "2011-09-11"),
    ("Tue Oct 11 13:45:40 2011", {}, "2011-10-11T13:45:40+00:00"),
    ("Tuesday Oct 11 13:45:40 UTC 2011", {}, "2011-10-11T13:45:40+00:00"),
    # east of Greenwich, as people write it
    ("Tue Oct 11 2011 13:45:40 GMT+0100", {}, "2011-10-11T13:45:40+01:00"),
    ("2011-10-11 13:45 UTC+3", {}, "2011-10-11T13:45:00+03:00"),
    ("2011-10-11 13:45 UTC-03:30", {}, "2011-10-11T13:45:00-03:30"),
    ("11.10.2011 10:00", {"day_first": True}, "2011-10-11T10:00:00+00:00"),
    ("10.11.2011", {"format": "%m.%d.%Y"}, "2011-10-11"),
    ("17/06/09 20:10:40", {"format": "%y/%m/%d %H:%M:%S"}, "2017-06-09T20:10:40+00:00"),
    ("20240229123456", {"format": "%Y%m%d%H%M%S"}, "2024-02-29T12:34:56+00:00"),
    ("Fri 09 Jun 2017, 01:00:00.5 PM -0200", {"format": "%a %d %b %Y, %I:%M:%S.%f %p %z"}, "2017-06-09T13:00:00.500000-02:00"),
    (1762041600, {"unit": "s"}, "2025-11-02T00:00:00+00:00"),
    ("1762041600.5", {"unit": "s"}, "2025-11-02T00:00:00.500000+00:00"),
    (-0.25, {"unit": "s"}, "1969-12-31T23:59:59.750000+00:00"),
    (f"-0.{'0' * 40}1", {"unit": "s"}, f"1969-12-31T23:59:59.{'9' * 41}+00:00"),
    (1762041600123, {"unit": "ms"}, "2025-11-02T00:00:00.123000+00:00"),
    ("1762041600123456", {"unit": "us"}, "2025-11-02T00:00:00.123456+00:00"),
    (1762041600123456789, {"unit": "ns"}, "2025-11-02T00:00:00.123456789+00:00"),
    (1.7620416e18, {"unit": "ns"}, "2025-11-02T00:00:00+00:00"),
]  # fmt: skip


def test_a_time_becomes_iso_8601_with_its_offset_and_a_day_stays_a_day() -> None:
    assert [(value, form, TimeForm(**form).iso(value)) for value, form, _ in READ] == READ


REFUSED: list[tuple[object, dict[str, Any], str]] = [
    (None, {}, "there is none"),
    ("", {"unit": "s"}, "there is none"),
    (1762041600, {}, "--time-unit"),
    *((number, {}, "--time-unit") for number in ("1762041600", "1762041600123", "1762041600.5", "17", "1e9")),
    ("11.10.2011 10:00", {}, "--day-first"),
    ("10/11/2011", {}, "--day-first"),
    ("10/25/2011", {"day_first": True}, "no such day"),
    *((short, {}, "--time-format") for short in ("17/06/09 20:10:40", "10-11-12", "1.2.03")),
    *((other, {}, "--time-format") for other in ("Oct 2011", "10:30", "Monday", "now", "nonsense", "2011-W41-2")),
    *((outside, {}, "--time-format") for outside in ("10000-01-01", "11 October 12011", "2011-10-11T25:00")),
    *((digits, {}, "--time-format") for digits in ("2011-10-11".translate(ARABIC), "25.10.2011".translate(FULL_WIDTH))),
    *((none, {}, "no such day") for none in ("2011-02-29", "0000-01-01", "01 Jan 0000", "31 Sept 2011", "11 Okt 2011")),
    *((none, {}, "no such day") for none in ("2011-10-11 13:00 PM", "2011-10-11 0:30 am", "9999-12-31 23:00 UTC-3")),
    *((f"2011-10-11 10:00 {zone}", {}, "zone of letters") for zone in ("CET", "BST", "EST", "utc", "Europe/Berlin")),
    *((f"2011-10-11 10:00{zone}", {}, "--time-format") for zone in ("+16:00", "-17", "+02:60")),
    ("Mon, 11 Oct 2011 10:00:00 GMT", {}, "weekday"),
    ("Son 11 Oct 2011", {}, "weekday"),
    ("9" * 200, {}, "too long"),
    ("Thu 09 Jun 2017", {"format": "%a %d %b %Y"}, "weekday"),
    ("2017-06-09", {"format": "%d.%m.%Y"}, "form %d.%m.%Y"),
    ("1112011", {"format": "%d%m%Y"}, "form %d%m%Y"),
    ("17/06/09".translate(ARABIC), {"format": "%y/%m/%d"}, "form %y/%m/%d"),
    ("2011-10-11 10:00 -18:00", {"format": "%Y-%m-%d %H:%M %z"}, "form"),
    *((other, {"unit": "s"}, "is no number") for other in (True, "2011-10-11", "1_000", "9" * 101)),
    ("2".translate(ARABIC), {"unit": "s"}, "is no number"),
    *((number, {"unit": "s"}, "say another --time-unit") for number in (1762041600123, "9" * 100, "-1e99")),
]


def test_a_time_that_is_not_clear_is_refused_with_the_option_that_helps() -> None:
    wrong = [(value, form, said) for value, form, reason in REFUSED if reason not in (said := refusal(value, form))]
    assert wrong == []


def refusal(value: object, form: dict[str, Any]) -> str:
    """Return why a value is no time; if it is read as a time, return only that time."""
    try:
        return f"read as {TimeForm(**form).iso(value)}"
    except ValueError as error:
        return str(error)


FORMS: list[tuple[dict[str, Any], str]] = [
    *(({"format": text}, "a directive other than") for text in ("%Y-%m-%d %Z", "%c", "%s", "%Y%m%d%", "%j %Y")),
    *(({"format": text}, "no year, month or day") for text in ("%H:%M", "%d.%m.", "%d %M %Y", "")),
    *(({"format": text}, "a part twice") for text in ("%Y-%Y-%m-%d", "%y %Y-%m-%d", "%d %b (%m) %Y")),
    *(({"format": f"%Y-%m-%d {hour}"}, "without the other") for hour in ("%I:%M", "%H:%M %p")),
    ({"format": "%Y-%m-%d %M"}, "without the hour"),
    ({"format": "%Y-%m-%d", "day_first": True}, "Only one of"),
    ({"unit": "s", "day_first": True}, "Only one of"),
]


def test_a_form_that_leaves_a_moment_open_is_refused_before_the_first_row() -> None:
    for form, fault in FORMS:
        with pytest.raises(ImportRefused, match=fault):
            TimeForm(**form)
