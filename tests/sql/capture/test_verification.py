"""Verifications: a table compared with its streams, to verify or to repair, and their effect on the quarantine."""

from collections.abc import Iterable
from dataclasses import replace
from typing import LiteralString

import pytest

from millrace.capture.backfilled_rows import BackfilledRows
from millrace.capture.decoding.pgoutput import Lsn
from millrace.capture.store import CaptureStore, EndedVerification, VerifiedRows
from millrace.errors import ChangesWaiting, VerificationOver
from tests.support.capturing import captures
from tests.support.capturing.captures import Source, as_read, deleted, events, faulty, held, inserted, stream, updated
from tests.support.factories import refusal, rows


class Verifying:
    """A verification of the table t."""

    def __init__(self, source: Source, repairs: str | None = None) -> None:
        self.source = source
        self.store = CaptureStore(source.store.connection)
        begin = self.store.begin_verification
        self.number = begin("c", "public", "t", source.xid, repairs, repairs=repairs is not None)

    def verify(self, *keys: object, value: object = "read", snapshot: str = "", lsn: Lsn | None = None) -> VerifiedRows:
        """Compare rows as the source has them now."""
        source = self.source
        now = snapshot or f"{source.xid}:{source.xid}:"
        return self.store.verify_rows(self.number, now, lsn or source.lsn, self.rows(keys, value))

    def rows(self, keys: Iterable[object], value: object) -> BackfilledRows:
        return as_read([self.source._row(key, "t", value, self.number) for key in keys])

    def end(self, *, whole: bool = True, limit: int = 5000) -> EndedVerification:
        return self.store.end_verification(self.number, whole=whole, limit=limit)


@pytest.fixture
def read(source: Source) -> Source:
    """Make a table with an ended backfill: rows 1 to 3."""
    source.backfill(1, 2, 3)
    source.finish()
    return source


def superseded(source: Source) -> list[int]:
    """Return the number of changes that each audited repair superseded; 0 for each verification that was to repair."""
    query: LiteralString = """
        select coalesce((detail ->> 'number')::int, 0) from event_store.audit_log
        where operation in ('begin_verification', 'supersede_changes') order by audit_id
    """
    return [number for (number,) in rows(source.store.connection, query)]


def left(source: Source) -> list[tuple[object, ...]]:
    """Return the remaining rows of verifications."""
    there = "select 1 from event_store.verifications union all select 1 from event_store.unchanged_rows"
    return rows(source.store.connection, there)


def test_verifying_appends_nothing_and_of_some_rows_takes_none_for_gone(read: Source) -> None:
    before = events(read.store)
    some = Verifying(read)
    some.verify(1)
    assert some.end(whole=False) == EndedVerification(done=True, gone=0, quarantined=0, examples=None)
    found = Verifying(read)
    assert found.verify(1) == VerifiedRows("stored", 0, 0, 1, 0, 0, None)
    assert found.verify(2, 9, value="other") == VerifiedRows("stored", 2, 1, 0, 0, 0, ["[2]", "[9]"])
    assert found.end() == EndedVerification(done=True, gone=1, quarantined=0, examples=["[3]"])
    assert (events(read.store), superseded(read), left(read)) == (before, [], [])


def test_rows_wait_until_all_that_their_snapshot_sees_is_emitted(read: Source) -> None:
    found = Verifying(read)
    read.commit(updated(1, "read"))
    assert found.verify(1).status == "behind"
    read.emit()
    assert found.verify(1, lsn=Lsn(read.lsn + 1)).status == "behind"
    assert found.verify(1, snapshot=f"{read.xid - 2}:{read.xid}:{read.xid - 2}").status == "unpublished"
    assert found.verify(1).unchanged == 1


def test_what_changed_since_it_was_read_is_left_to_the_capture(read: Source) -> None:
    found = Verifying(read, "it differs")
    snapshot = f"{read.xid}:{read.xid}:"
    read.commit(updated(1, "newer"), deleted(2), inserted(4))
    read.emit()
    assert found.verify(1, 2, value="older", snapshot=snapshot).left_out == 2
    found.verify(3)
    assert found.end().gone == 0
    assert [stream(read.store, n)[-1][0] for n in (1, 2, 3, 4)] == ["updated", "deleted", "backfilled", "inserted"]


@pytest.fixture
def waiting(read: Source) -> Source:
    """Row 1 has a faulty change and one behind it; 3's delete and 5's insert are faulty; one row has no key."""
    new, gone = faulty(5, action="inserted"), faulty(3, action="deleted")
    read.commit(faulty(1), updated(1, "behind"), gone, new, faulty(None))
    read.emit()
    return read


def test_a_row_read_again_takes_the_place_of_its_quarantined_changes(waiting: Source) -> None:
    verified = Verifying(waiting)
    assert verified.verify(1, 2, 5).held == 2
    ended = verified.end()
    assert (ended.gone, ended.quarantined) == (0, 5)  # by the waiting change 3 is deleted
    assert len(held(waiting.store)) == 5
    # a row that equals its last event needs no event
    with waiting.store.connection.transaction(force_rollback=True):
        before = events(waiting.store)
        assert Verifying(waiting, "again").verify(1).unchanged == 1
        assert [key for key, *_ in held(waiting.store)] == ["[3]", "[5]", None]
        assert events(waiting.store) == before
    found = Verifying(waiting, "read it again")
    assert found.verify(1, value="behind") == VerifiedRows("stored", 1, 0, 0, 0, 0, ["[1]"])
    assert found.verify(2, 5) == VerifiedRows("stored", 1, 1, 1, 0, 0, ["[5]"])
    assert [key for key, *_ in held(waiting.store)] == ["[3]", None]
    found.end()
    assert held(waiting.store) == []
    assert stream(waiting.store, 1)[-1] == ("backfilled", "behind")
    assert stream(waiting.store, 3)[-1] == ("deleted", None)
    assert stream(waiting.store, 5) == [("backfilled", "read")]
    assert superseded(waiting) == [0, 2, 1, 2]
    # from now on its changes flow
    waiting.commit(updated(1, "flows"))
    waiting.emit()
    assert stream(waiting.store, 1)[-1] == ("updated", "flows")


def test_newer_changes_in_the_quarantine_stay_with_all_before_them(waiting: Source) -> None:
    found = Verifying(waiting, "again")
    snapshot = f"{waiting.xid}:{waiting.xid}:"
    waiting.commit(faulty(1), faulty(None), faulty((), action="truncated"))
    waiting.emit()
    waiting.commit()
    assert found.verify(1, 2, snapshot=snapshot).left_out == 2  # the truncation is newer too
    found.end()
    # the truncation ends 1 and 5, behind the waiting changes
    assert [(key, action) for key, action, _ in held(waiting.store)] == [
        ("[1]", "updated"), ("[1]", "updated"), ("[5]", "inserted"), ("[1]", "updated"), (None, "updated"),
        ("[]", "truncated"), ("[1]", "deleted"), ("[5]", "deleted"),
    ]  # fmt: skip


def test_what_waits_since_another_slot_is_older_whatever_its_transaction(waiting: Source) -> None:
    waiting.begin()
    waiting.backfill(1, 2, 5)
    waiting.finish()
    waiting.xid = 1  # a source of its own
    found = Verifying(waiting, "again")
    found.verify(1, 2, 5, snapshot="1000:1000:")
    found.end()
    assert held(waiting.store) == []


def test_a_row_that_cannot_be_an_event_stays_behind_its_changes_added_once(waiting: Source) -> None:
    waiting.store.connection.execute("set event_store.max_data_bytes = 1000")
    before = held(waiting.store)
    for _ in range(2):
        assert Verifying(waiting, "again").verify(1, value="x" * 1000).held == 1
        assert held(waiting.store) == before
    for _ in range(2):
        assert Verifying(waiting, "again").verify(2, value="x" * 1000).held == 1
    assert held(waiting.store)[len(before) :] == [("[2]", "backfilled", True)]


def test_a_row_that_cannot_be_an_event_keeps_its_changes_to_the_end(waiting: Source) -> None:
    waiting.store.connection.execute("set event_store.max_data_bytes = 1000")
    found = Verifying(waiting, "again")
    found.verify(1, value="x" * 1000)
    found.verify(2, 5)
    while not found.end(limit=1).done:
        pass
    assert held(waiting.store) == [("[1]", "updated", True), ("[1]", "updated", False)]


def test_a_truncation_at_fault_is_superseded_by_the_whole_table_only(read: Source) -> None:
    read.commit(faulty((), action="truncated"))
    read.emit()
    for whole, left_over in ((False, 1), (True, 0)):
        found = Verifying(read, "again")
        found.verify(1, 2, 3)
        found.end(whole=whole)
        assert len(held(read.store)) == left_over


def test_a_verification_ends_where_another_begins_or_a_reading(read: Source) -> None:
    first = Verifying(read)
    first.verify(1)
    second = Verifying(read)
    refusal(VerificationOver, lambda: first.verify(2))
    refusal(VerificationOver, first.end)
    second.verify(1)
    read.begin()
    refusal(VerificationOver, lambda: second.verify(2))
    refusal(ChangesWaiting, lambda: Verifying(read))
    read.backfill(1, 2, 3)
    read.finish()
    third = Verifying(read)
    read.store.register_capture("c", "slot_c", "pub_c", [captures.table(fingerprint="2")])
    refusal(VerificationOver, third.end)
    read.store.publish_tables("c", read.token, read.xid)
    read.backfill(1, 2, 3)
    read.finish()
    Verifying(read)
    read.store.record_gap("c", None, None, "lost")
    refusal(ChangesWaiting, lambda: Verifying(read))


@pytest.mark.parametrize("repairs", [None, "a test"])
def test_a_row_without_a_key_leaves_it_open_which_streams_lost_theirs(read: Source, repairs: str | None) -> None:
    before = events(read.store)
    every = Verifying(read, repairs)
    every.verify(1)
    nameless = every.rows([2], "read")
    unread = replace(nameless, decider_ids=[None], data=[None], faults=["its key is no text"])
    assert every.store.verify_rows(every.number, f"{read.xid}:{read.xid}:", read.lsn, unread).held == 1
    ends = [every.end(limit=1) for _ in range(4)]
    assert [(end.done, end.gone) for end in ends] == [(False, 0)] * 3 + [(True, 0)]
    assert (events(read.store), left(read)) == (before, [])
