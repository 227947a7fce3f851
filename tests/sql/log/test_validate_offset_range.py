"""Checking a range before it is read."""

import pytest

from millrace.resources.errors import Malformed, PositionOutOfRange, UnknownPartition
from millrace.resources.event_store import EventStore
from tests.sql.log.test_read_log import log

__all__ = ["log"]

# B6


def test_what_the_log_holds_is_valid_also_when_it_is_empty(log: EventStore) -> None:
    for from_position, to_position in ((2, 8), (2, 2), (5, 6), (8, 8)):
        log.validate_offset_range(0, from_position, to_position)
    log.validate_offset_range(1, 0, 0)


def test_what_it_does_not_hold_is_refused(log: EventStore) -> None:
    for from_position, to_position, fault in (
        (-1, 5, "-1 is negative"),
        (1, 5, "1 lies below the earliest position"),
        (5, 4, "the range ends at 4 before it begins at 5"),
        (5, 9, "9 lies beyond the high-water mark"),
        (9, 9, "9 lies beyond the high-water mark"),
    ):
        with pytest.raises(PositionOutOfRange, match=f"{fault}; earliest position 2, high-water mark 8"):
            log.validate_offset_range(0, from_position, to_position)
    for ends in ((None, 5), (5, None)):
        with pytest.raises(Malformed, match="an end of the range is null"):
            log.validate_offset_range(0, *ends)  # type: ignore[arg-type, unused-ignore]
    with pytest.raises(UnknownPartition):
        log.validate_offset_range(16, 0, 0)
