"""Moving a view to another position: targets, refusals, removed locks, and never beside a consumer."""

from functools import partial
from typing import LiteralString
from uuid import UUID

import pytest

from millrace.archive.store import ArchiveStore
from millrace.errors import PositionOutOfRange, ViewInUse
from millrace.event_store import Seek
from millrace.event_store.platform import PlatformStore
from tests.support import factories
from tests.support.views.failing_streams import finish


@pytest.fixture
def log(bulk: PlatformStore) -> PlatformStore:
    """Fill positions 3 to 9 of log partition 0, an event a minute; set the bulk view `v` and the rows view `r` to 5."""
    streams = factories.ids_of_one_partition(bulk.connection, 2)
    for minute in range(10):
        factories.set_clock(bulk.connection, f"2030-01-01 00:{minute:02}:00+00")
        factories.append_to(bulk, streams[minute % 2])
    bulk.sequence_events()
    bulk.register_view("r", "-infinity")
    for view in ("v", "r"):
        bulk.seek_view(view, "RESET_TO_OFFSET", 5, partition=0)
    ArchiveStore(bulk.connection).mark_archived(0, 3)
    ArchiveStore(bulk.connection).raise_low_water_mark(0, 3)
    factories.set_clock(bulk.connection, "2030-01-01 01:00:00+00")
    return bulk


def placed(store: PlatformStore) -> list[UUID]:
    """Return all events in their order."""
    return [
        row[0] for row in factories.rows(store.connection, 'select event_id from event_store.events order by "offset"')
    ]


def position(store: PlatformStore, view: str) -> int:
    at: LiteralString = "select position from event_store.checkpoints where view = %s and partition = 0"
    return int(factories.value(store.connection, at, view))


PLACES = [
    ("EXACT_OFFSET", 3, None, 3), ("EXACT_OFFSET", 9, None, 9),
    ("RESET_TO_OFFSET", 3, None, 3), ("RESET_TO_OFFSET", 10, None, 10), ("RESET_TO_OFFSET", 25, None, 25),
    ("RESET_TO_EARLIEST", None, None, 3), ("RESET_TO_LATEST", None, None, 10),
    ("RESUME_OR_EARLIEST", None, None, 5), ("RESUME_OR_LATEST", None, None, 5),
    ("EXACT_TIMESTAMP", None, "-infinity", 3), ("EXACT_TIMESTAMP", None, "2030-01-01 00:01:00+00", 3),
    ("EXACT_TIMESTAMP", None, "2030-01-01 00:05:59+00", 6), ("EXACT_TIMESTAMP", None, "2030-01-01 00:06:00+00", 6),
    ("EXACT_TIMESTAMP", None, "2030-01-01 01:06:00+01", 6), ("EXACT_TIMESTAMP", None, "2030-01-01 00:09:01+00", 10),
    ("EXACT_TIMESTAMP", None, "infinity", 10),
]  # fmt: skip
REFUSED: list[tuple[str, int, str]] = [
    ("EXACT_OFFSET", -1, "-1 is negative"),
    ("EXACT_OFFSET", 2, "2 lies below the earliest position; earliest position 3, high-water mark 10"),
    ("EXACT_OFFSET", 10, "there is no event at 10 yet; earliest position 3, high-water mark 10"),
    ("EXACT_OFFSET", 2**62, "there is no event at"),
    ("RESET_TO_OFFSET", -1, "-1 is negative"),
    ("RESET_TO_OFFSET", -(2**63), "is negative"),
    ("RESET_TO_OFFSET", 0, "0 lies below the earliest position; earliest position 3"),
]


def test_each_kind_moves_to_its_place_and_a_dry_run_only_says_so(log: PlatformStore) -> None:
    before = factories.everything(log)
    for view in ("v", "r"):
        for kind, offset, timestamp, to_position in PLACES:
            note = "waits beyond the high-water mark" if to_position > 10 else None
            expected = [Seek(0, 5, to_position, 3, 10, 0, 0, note)]
            assert log.seek_view(view, kind, offset, timestamp, 0, dry_run=True) == expected
            with log.connection.transaction(force_rollback=True):
                assert log.seek_view(view, kind, offset, timestamp, 0) == expected
                assert position(log, view) == to_position
        assert factories.everything(log) == before


def test_a_place_that_the_log_does_not_hold_is_refused(log: PlatformStore) -> None:
    before = factories.everything(log)
    for kind, offset, detail in REFUSED:
        for dry_run in (False, True):
            seek = partial(log.seek_view, "v", kind, offset, partition=0, dry_run=dry_run)
            refused = factories.refusal(PositionOutOfRange, seek)
            assert detail in str(refused.detail)
            assert "available_offset_range" in str(refused.hint)
    assert factories.everything(log) == before


def test_beyond_the_mark_the_view_waits_and_then_goes_on(log: PlatformStore) -> None:
    (stream, *_) = factories.ids_of_one_partition(log.connection, 1)
    for view in ("v", "r"):
        log.seek_view(view, "RESET_TO_OFFSET", 12, partition=0)
    factories.append_to(log, stream, stream)
    assert log.claim_batch("v", "me") == []
    factories.pump(log, "r")
    assert log.stream_events("r") == []
    assert [log.view_lag(view)[0].behind for view in ("v", "r")] == [0, 0]
    third = factories.append_to(log, stream)
    (lease,) = log.claim_batch("v", "me")
    assert (lease.from_position, lease.to_position) == (12, 13)
    factories.pump(log, "r")
    assert [event.event_id for event in log.stream_events("r")] == [third[0].event_id]


def test_a_saved_position_that_is_not_kept_any_more_is_reported(log: PlatformStore) -> None:
    for kind, to_position in (("RESUME_OR_EARLIEST", 3), ("RESUME_OR_LATEST", 10)):
        log.connection.execute("update event_store.checkpoints set position = 1 where view = 'v' and partition = 0")
        note = "the position 1 lies below the earliest position"
        assert log.seek_view("v", kind, partition=0) == [Seek(0, 1, to_position, 3, 10, 0, 0, note)]
        assert log.seek_view("v", kind, partition=0)[0].note is None


def test_locks_and_dead_letters_go_and_are_counted(log: PlatformStore) -> None:
    streams = factories.ids_of_one_partition(log.connection, 2)
    finish(log, log.claim_batch("v", "me"), streams)
    log.register_view("v", mode="bulk", max_attempts=2)
    factories.set_clock(log.connection, "2030-01-01 02:00:00+00")
    finish(log, log.claim_batch("v", "me"), streams[:1])
    factories.append_to(log, streams[1])
    log.register_view("v", mode="bulk")
    finish(log, log.claim_batch("v", "me"), streams[1:])
    plan = log.seek_view("v", "RESET_TO_EARLIEST", partition=0, dry_run=True)
    assert (plan[0].locks_removed, plan[0].dead_letters_removed) == (2, 1)
    assert len(log.dead_letters()) == 1
    # staying at its position keeps them
    assert log.seek_view("v", "RESUME_OR_EARLIEST", partition=0)[0].locks_removed == 0
    assert len(log.dead_letters()) == 1
    assert log.seek_view("v", "RESET_TO_EARLIEST", partition=0) == plan
    assert factories.value(log.connection, "select count(*) from event_store.stream_locks where view = 'v'") == 0
    (lease,) = log.claim_batch("v", "me")
    delivered = [event.event_id for event in log.read_batch("v", lease)]
    assert delivered == placed(log)[3:]


def test_the_latest_skips_what_waits_also_where_the_checkpoint_is_there(log: PlatformStore) -> None:
    factories.pump(log, "r")
    assert position(log, "r") == 10
    (seek,) = log.seek_view("r", "RESET_TO_LATEST", partition=0)
    assert (seek.from_position, seek.to_position, seek.locks_removed) == (10, 10, 2)
    assert log.stream_events("r", 10) == []


def test_a_seek_and_consumers_at_once_never_lose_an_event(log: PlatformStore, connect: factories.Connect) -> None:
    """In any order, after the last seek to the earliest position everything is delivered."""
    factories.set_clock(log.connection, "")

    def drain() -> int:
        store, taken = PlatformStore(connect()), 0
        for _ in range(30):
            if leases := store.claim_batch("v", "me"):
                store.commit_batch("v", leases)
                taken += len(leases)
        return taken

    def seek() -> int:
        store, moved = PlatformStore(connect()), 0
        for n in range(30):
            try:
                store.seek_view("v", ("RESET_TO_EARLIEST", "RESET_TO_LATEST")[n % 2], partition=0)
                moved += 1
            except ViewInUse:
                pass
        return moved

    for result in factories.at_once([drain, drain, seek, seek]):
        result.result()
    log.seek_view("v", "RESET_TO_EARLIEST")
    (lease,) = log.claim_batch("v", "me")
    assert [e.event_id for e in log.read_batch("v", lease)] == placed(log)[3:]
