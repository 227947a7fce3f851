"""The times of foreign logs: read in one way only, or refused."""

import pytest

from millrace.resources.importer.times import iso_time


@pytest.mark.parametrize(
    ("text", "iso"),
    [
        ("2011-10-11 13:45:40.276000+02:00", "2011-10-11T13:45:40.276000+02:00"),
        ("2011-10-11T13:45:40Z", "2011-10-11T13:45:40+00:00"),
        ("2011-10-11T13:45:40", "2011-10-11T13:45:40+00:00"),
        ("2011-10-11T10:00:00.123456789Z", "2011-10-11T10:00:00.123456789+00:00"),
        ("2011-10-11", "2011-10-11T00:00:00+00:00"),
        ("20111011", "2011-10-11T00:00:00+00:00"),
        ("2011/10/11 13:45", "2011-10-11T13:45:00+00:00"),
        ("25.10.2011 10:00", "2011-10-25T10:00:00+00:00"),
        ("10/25/2011 1:45 PM", "2011-10-25T13:45:00+00:00"),
        ("Tue, 11 Oct 2011 10:00:00 GMT", "2011-10-11T10:00:00+00:00"),
        ("11 Oct 2011 10:00 +0200", "2011-10-11T10:00:00+02:00"),
        (" 2011-10-11 ", "2011-10-11T00:00:00+00:00"),
    ],
)
def test_a_time_becomes_iso_8601_with_its_offset(text: str, iso: str) -> None:
    assert iso_time(text) == iso


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "there is none"),
        ("", "there is none"),
        (1762041600, "is not text"),
        ("1762041600", "is a bare number"),
        ("1762041600123", "is a bare number"),
        ("1762041600.5", "is a bare number"),
        ("11.10.2011 10:00", "leaves open which day"),
        ("10/11/2011", "leaves open which day"),
        ("Oct 2011", "leaves open which day"),
        ("10:30", "leaves open which day"),
        ("Monday", "leaves open which day"),
        ("2011-10-11T10:00:00 CET", "is not a time"),
        ("2011-13-11", "is not a time"),
        ("2011-10-11T25:00", "is not a time"),
        ("nonsense", "is not a time"),
        ("9" * 200, "is too long"),
    ],
)
def test_a_time_that_is_not_clear_is_refused(value: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        iso_time(value)
