"""Readings: a table beside its streams, to verify or to repair, and what they do with the quarantine."""

from collections.abc import Iterable

import pytest

from millrace.resources.capture.backfilled_rows import BackfilledRows
from millrace.resources.capture.decoding.pgoutput import Lsn
from millrace.resources.capture.rereads.store import ComparedRows, EndedReading, ReadingStore
from millrace.resources.errors import ChangesWaiting, Malformed, ReadingOver, UnknownCapture
from tests.support.capturing.captures import (
    Source,
    as_read,
    deleted,
    events,
    faulty,
    held,
    inserted,
    stream,
    table,
    updated,
)
from tests.support.factories import refusal, rows, value


class Reading:
    """A reading of the table t."""

    def __init__(self, source: Source, repairs: str | None = None) -> None:
        self.source = source
        self.store = ReadingStore(source.store.connection)
        self.number = self.store.begin_reading("c", "public", "t", source.xid, repairs, repairs=repairs is not None)

    def compare(
        self, *keys: object, value: object = "read", snapshot: str | None = None, high_lsn: Lsn | None = None
    ) -> ComparedRows:
        """Compare rows as the source has them now."""
        source = self.source
        now = snapshot or f"{source.xid}:{source.xid}:"
        return self.store.compare_rows(self.number, now, high_lsn or source.lsn, self.rows(keys, value))

    def rows(self, keys: Iterable[object], value: object) -> BackfilledRows:
        return as_read([self.source._row(key, "t", value, self.number) for key in keys])

    def end(self, *, whole: bool = True, limit: int = 5000) -> EndedReading:
        return self.store.end_reading(self.number, whole=whole, limit=limit)


@pytest.fixture
def read(source: Source) -> Source:
    """Make a table whose backfill has ended: rows 1 to 3."""
    source.backfill(1, 2, 3)
    source.finish()
    return source


def audited(source: Source) -> list[tuple[str, str | None]]:
    return rows(
        source.store.connection,
        "select operation, reason from event_store.audit_log where operation in ('begin_reading', 'supersede_changes') order by audit_id",
    )


def left(source: Source) -> int:
    """Return what is left of readings."""
    return int(
        value(
            source.store.connection,
            "select (select count(*) from event_store.readings) + (select count(*) from event_store.unchanged_rows)",
        )
    )


def test_verifying_counts_and_appends_nothing_and_of_some_rows_none_is_taken_for_gone(read: Source) -> None:
    before = events(read.store)
    some = Reading(read)
    some.compare(1)
    assert some.end(whole=False) == EndedReading(done=True, gone=0, quarantined=0, examples=None)
    reading = Reading(read)
    assert reading.compare(1) == ComparedRows("stored", 0, 0, 1, 0, 0, None)
    assert reading.compare(2, 9, value="other") == ComparedRows("stored", 2, 1, 0, 0, 0, ["[2]", "[9]"])
    assert reading.end() == EndedReading(done=True, gone=1, quarantined=0, examples=["[3]"])
    assert (events(read.store), audited(read), left(read)) == (before, [], 0)


def test_a_repair_appends_what_differs(read: Source) -> None:
    before = events(read.store)
    reading = Reading(read, "it differs")
    assert reading.compare(2, 9, value="other") == ComparedRows("stored", 2, 1, 0, 0, 0, ["[2]", "[9]"])
    assert reading.compare(1) == ComparedRows("stored", 0, 0, 1, 0, 0, None)
    calls = [reading.end(limit=2)]
    while not calls[-1].done:
        calls.append(reading.end(limit=2))
    assert [call.gone for call in calls] == [0, 1, 0]
    assert events(read.store)[len(before) :] == [("[2]", "backfilled"), ("[9]", "backfilled"), ("[3]", "deleted")]
    assert (audited(read), left(read)) == ([("begin_reading", "it differs")], 0)


def test_rows_wait_until_all_that_their_snapshot_sees_is_emitted(read: Source) -> None:
    reading = Reading(read)
    read.commit(updated(1, "read"))
    assert reading.compare(1).status == "behind"
    read.emit()
    assert reading.compare(1, high_lsn=Lsn(read.lsn + 1)).status == "behind"
    assert reading.compare(1, snapshot=f"{read.xid - 2}:{read.xid}:{read.xid - 2}").status == "unpublished"
    assert reading.compare(1).unchanged == 1


def test_what_changed_since_it_was_read_is_left_to_the_capture(read: Source) -> None:
    reading = Reading(read, "it differs")
    snapshot = f"{read.xid}:{read.xid}:"
    read.commit(updated(1, "newer"), deleted(2), inserted(4))
    read.emit()
    assert reading.compare(1, 2, value="older", snapshot=snapshot).left_out == 2
    reading.compare(3)
    assert reading.end().gone == 0
    assert [stream(read.store, n)[-1][0] for n in (1, 2, 3, 4)] == ["updated", "deleted", "backfilled", "inserted"]


# the quarantine


@pytest.fixture
def waiting(read: Source) -> Source:
    """Row 1 with a change at fault and one behind it, 3 gone at fault, 5 new at fault, a row without a key."""
    read.commit(
        faulty(1), updated(1, "behind"), faulty(3, action="deleted"), faulty(5, action="inserted"), faulty(None)
    )
    read.emit()
    return read


def test_a_row_that_is_read_again_takes_the_place_of_its_quarantined_changes(waiting: Source) -> None:
    verified = Reading(waiting)
    assert verified.compare(1, 2, 5).held == 2
    ended = verified.end()
    assert (ended.gone, ended.quarantined) == (0, 5)  # the change that waits says that 3 is deleted
    assert len(held(waiting.store)) == 5
    # a row that is as its last event says needs no event
    with waiting.store.connection.transaction(force_rollback=True):
        before = events(waiting.store)
        assert Reading(waiting, "again").compare(1).unchanged == 1
        assert [key for key, *_ in held(waiting.store)] == ["[3]", "[5]", None]
        assert events(waiting.store) == before
    reading = Reading(waiting, "read it again")
    assert reading.compare(1, value="behind") == ComparedRows("stored", 1, 0, 0, 0, 0, ["[1]"])
    assert reading.compare(2, 5) == ComparedRows("stored", 1, 1, 1, 0, 0, ["[5]"])
    assert [key for key, *_ in held(waiting.store)] == ["[3]", None]
    reading.end()
    assert held(waiting.store) == []
    assert stream(waiting.store, 1)[-1] == ("backfilled", "behind")
    assert stream(waiting.store, 3)[-1] == ("deleted", None)
    assert stream(waiting.store, 5) == [("backfilled", "read")]
    assert [operation for operation, _ in audited(waiting)].count("supersede_changes") == 3
    assert (
        value(
            waiting.store.connection,
            "select sum((detail ->> 'number')::int) from event_store.audit_log where operation = 'supersede_changes'",
        )
        == 5
    )
    # and from now on its changes flow
    waiting.commit(updated(1, "flows"))
    waiting.emit()
    assert stream(waiting.store, 1)[-1] == ("updated", "flows")


def test_newer_changes_in_the_quarantine_stay_with_all_before_them(waiting: Source) -> None:
    reading = Reading(waiting, "again")
    snapshot = f"{waiting.xid}:{waiting.xid}:"
    waiting.commit(faulty(1), faulty(None), faulty((), action="truncated"))
    waiting.emit()
    waiting.commit()
    assert reading.compare(1, 2, snapshot=snapshot).left_out == 2  # the truncation is newer, too
    reading.end()
    # the truncation ends 1 and 5, behind what waits
    assert [(key, action) for key, action, _ in held(waiting.store)] == [
        ("[1]", "updated"), ("[1]", "updated"), ("[5]", "inserted"), ("[1]", "updated"), (None, "updated"),
        ("[]", "truncated"), ("[1]", "deleted"), ("[5]", "deleted"),
    ]  # fmt: skip


def test_what_waits_since_another_slot_is_older_whatever_its_transaction(waiting: Source) -> None:
    waiting.begin()
    waiting.backfill(1, 2, 5)
    waiting.finish()
    waiting.xid = 1  # a source of its own
    reading = Reading(waiting, "again")
    reading.compare(1, 2, 5, snapshot="1000:1000:")
    reading.end()
    assert held(waiting.store) == []


def test_a_row_that_cannot_be_an_event_stays_behind_its_changes_and_is_not_added_each_time(waiting: Source) -> None:
    waiting.store.connection.execute("set event_store.max_data_bytes = 1000")
    before = held(waiting.store)
    for _ in range(2):
        assert Reading(waiting, "again").compare(1, value="x" * 1000).held == 1
        assert held(waiting.store) == before
    for _ in range(2):
        assert Reading(waiting, "again").compare(2, value="x" * 1000).held == 1
    assert held(waiting.store)[len(before) :] == [("[2]", "backfilled", True)]


def test_a_row_that_could_not_take_its_place_keeps_its_changes_however_many_calls_the_end_takes(
    waiting: Source,
) -> None:
    waiting.store.connection.execute("set event_store.max_data_bytes = 1000")
    reading = Reading(waiting, "again")
    reading.compare(1, value="x" * 1000)
    reading.compare(2, 5)
    while not reading.end(limit=1).done:
        pass
    assert held(waiting.store) == [("[1]", "updated", True), ("[1]", "updated", False)]


def test_a_truncation_at_fault_is_superseded_by_the_whole_table_only(read: Source) -> None:
    read.commit(faulty((), action="truncated"))
    read.emit()
    for whole, left_over in ((False, 1), (True, 0)):
        reading = Reading(read, "again")
        reading.compare(1, 2, 3)
        reading.end(whole=whole)
        assert len(held(read.store)) == left_over


# refusals


def test_a_reading_is_over_when_another_one_begins_or_the_table_is_read_anew(read: Source) -> None:
    first = Reading(read)
    first.compare(1)
    second = Reading(read)
    refusal(ReadingOver, lambda: first.compare(2))
    refusal(ReadingOver, first.end)
    second.compare(1)
    read.begin()
    refusal(ReadingOver, lambda: second.compare(2))
    refusal(ChangesWaiting, lambda: Reading(read))
    read.backfill(1, 2, 3)
    read.finish()
    third = Reading(read)
    read.store.register_capture("c", "slot_c", "pub_c", [table(fingerprint="2")])
    refusal(ReadingOver, third.end)


def test_what_is_missing_or_unknown_is_refused(read: Source) -> None:
    store = ReadingStore(read.store.connection)
    refusal(UnknownCapture, lambda: store.begin_reading("x", "public", "t", 1, None, repairs=False))
    refusal(Malformed, lambda: store.begin_reading("c", "public", "x", 1, None, repairs=False))
    refusal(Malformed, lambda: store.begin_reading("c", "public", "t", 1, None, repairs=True))
    refusal(ReadingOver, lambda: store.end_reading(0, whole=True))
    refusal(Malformed, lambda: store.end_reading(0, whole=True, limit=0))
    read.store.record_gap("c", None, None, "lost")
    refusal(ChangesWaiting, lambda: Reading(read))
