"""A source that another server took over: what is stored stays true of it, or nothing is changed."""

from datetime import UTC, datetime

import pytest

from millrace.resources.capture.decoding.pgoutput import Lsn
from millrace.resources.capture.store import CaptureStore
from millrace.resources.errors import LeaseLost, Malformed
from tests.support.capturing.captures import START, Source, inserted, source, table
from tests.support.factories import Connect, refusal, rows

__all__ = ["source"]


def stands(source: Source) -> tuple[str | None, Lsn | None]:
    (info,) = source.store.capture_info("c")
    return info.timelines, info.stored_lsn


def followed(source: Source, timelines: str, common: Lsn | None) -> Lsn | None:
    return source.store.follow_timelines("c", source.token, timelines, common)


def test_where_all_that_is_stored_is_in_the_new_one_only_the_timelines_change(source: Source) -> None:
    source.commit(inserted(1))
    assert followed(source, f"1 {source.lsn}, 2", source.lsn) == source.lsn
    assert stands(source) == (f"1 {source.lsn}, 2", source.lsn)
    assert source.store.claim_capture("c", "me").timelines == f"1 {source.lsn}, 2"


def test_what_nothing_is_stored_of_is_taken_back(source: Source) -> None:
    (change,) = source.commit(inserted(1))
    common = source.lsn
    source.save([], Lsn(common + 500))
    assert followed(source, f"1 {common}, 2", common) == common
    assert stands(source)[1] == common
    # what comes there is new
    source.lsn = common
    source.commit(inserted(2))
    assert source.emit().emitted == 2
    assert change.commit_lsn < common


@pytest.mark.parametrize("purged", [False, True])
def test_where_something_is_stored_that_the_new_one_lacks_nothing_changes(source: Source, purged: bool) -> None:
    (change,) = source.commit(inserted(1))
    source.emit()
    if purged:
        assert source.store.purge_wal_events("c", datetime(2200, 1, 1, tzinfo=UTC)) == 1
    before = stands(source)
    assert followed(source, f"1 {change.commit_lsn}, 2", change.commit_lsn) is None
    assert stands(source) == before == ("1", source.lsn)


def test_a_slot_that_is_younger_than_the_switch_gave_changes_of_the_former_source_only(source: Source) -> None:
    source.save([], Lsn(source.lsn + 500))
    assert followed(source, "1 0/100, 2", Lsn(START - 1)) is None
    assert followed(source, f"1 {START}, 2", START) == START


def test_without_a_known_history_the_present_one_is_taken(source: Source) -> None:
    refusal(Malformed, lambda: followed(source, "2", None))
    source.store.connection.execute("update event_store.captures set timelines = null")
    assert followed(source, "1 0/100, 2", None) == source.lsn
    assert stands(source) == ("1 0/100, 2", source.lsn)


@pytest.mark.parametrize("timelines", ["", "x", "0", "1 0/1", "1 0/1,2", "1 0/1, 2\n", "1 0/1, 2, "])
def test_what_is_no_history_is_refused(source: Source, timelines: str) -> None:
    refusal(Malformed, lambda: followed(source, timelines, START))


def test_only_the_lease_s_owner_follows_and_only_with_a_slot(source: Source, connect: Connect) -> None:
    refusal(LeaseLost, lambda: source.store.follow_timelines("c", source.token + 1, "2", START))
    slotless = Source(CaptureStore(connect()), "d", table("w"))
    refusal(Malformed, lambda: slotless.store.follow_timelines("d", slotless.token, "2", START))
    assert rows(source.store.connection, "select timelines from event_store.captures order by capture") == [
        ("1",),
        (None,),
    ]
