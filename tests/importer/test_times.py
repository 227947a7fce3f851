"""The times of foreign logs: read in one way only, or refused."""

from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

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


DIGITS = st.sampled_from(
    ["00", "01", "02", "09", "10", "12", "19", "23", "24", "28", "29", "30", "31", "59", "60", "61"]
)
FORM = st.builds(
    "{}-{}-{}{}{}:{}:{}{}{}".format,
    st.sampled_from(["0000", "0001", "1900", "2000", "2024", "9999"]),
    DIGITS,
    DIGITS,
    st.sampled_from(" T"),
    DIGITS,
    DIGITS,
    DIGITS,
    st.sampled_from(["", ".0", ".000000", ".5", ".050", ".123456", ".100000"]),
    st.sampled_from(["", "+00:00", "-00:00", "+02:00", "-23:59", "+24:00", "+05:30"]),
)


@given(FORM)
@example("2024-02-29 10:00:00.000000-00:00")
def test_a_time_of_the_usual_form_is_read_as_python_reads_it(text: str) -> None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        with pytest.raises(ValueError, match=r"is not a time|leaves open"):
            iso_time(text)
        return
    assert iso_time(text) == (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat()
