"""A backfill: existing rows of a table beside its log, which may overtake them between reading and storing."""

import re
from typing import Any
from uuid import UUID

from millrace.capture.decoding.change import Change
from millrace.capture.decoding.pgoutput import Lsn
from millrace.capture.store import EmittedRows, TableRegistration
from millrace.errors import Malformed
from millrace.event_store.platform import PlatformStore
from tests.support.capturing import captures
from tests.support.capturing.captures import PUBLISHED, Source, T, faulty, held, inserted, progress_of, stream, updated
from tests.support.factories import refusal, rows, value
from tests.support.sql_calls import get_events


def test_rows_become_events_chunk_by_chunk_and_the_backfill_ends(source: Source) -> None:
    assert source.backfill(1, 2, done=False) == EmittedRows("stored", 2, 0, 0)
    assert progress_of(source) == ("[2]", 2, False, None)
    refusal(Malformed, source.finish)
    # a repeated chunk appends only the missing rows
    assert source.backfill(1, 2, 3, done=False) == EmittedRows("stored", 1, 2, 0)
    assert source.backfill() == EmittedRows("stored", 0, 0, 0)
    assert progress_of(source)[0::2] == ("[3]", True)
    assert progress_of(source)[3] == 1
    assert captures.events(source.store) == [("[1]", "backfilled"), ("[2]", "backfilled"), ("[3]", "backfilled")]
    assert source.finish() == 1
    assert source.backfill(4).appended == 0


def test_a_chunk_waits_for_what_its_snapshot_sees_and_for_the_publication(source: Source) -> None:
    before = f"{PUBLISHED - 1}:{PUBLISHED + 5}:{PUBLISHED - 1}"
    assert source.backfill(1, snapshot=before).status == "unpublished"
    source.commit(inserted(1))
    assert source.backfill(1, 2).status == "behind"
    source.emit()
    assert source.backfill(1, 2, high_lsn=Lsn(source.lsn + 1)).status == "behind"
    assert progress_of(source) == (None, 0, False, None)
    assert source.backfill(1, 2, snapshot=f"{PUBLISHED}:{PUBLISHED + 5}:").status == "stored"


def test_a_row_that_is_too_large_or_grew_so_since_is_quarantined(source: Source) -> None:
    source.store.connection.execute("set event_store.max_data_bytes = 1000")
    snapshot = now(source)
    source.save([toasted(source, 2, n="x" * 600)])
    source.emit()
    assert source.backfill(1, value="x" * 1000, done=False) == EmittedRows("stored", 0, 0, 1)
    assert source.backfill(2, value="y" * 600, snapshot=snapshot, done=False) == EmittedRows("stored", 0, 0, 1)
    assert held(source.store) == [("[1]", "backfilled", True), ("[2]", "backfilled", True)]
    assert source.backfill(1, value="x" * 1000) == EmittedRows("stored", 0, 1, 0)


def test_what_waits_in_the_quarantine_of_a_lost_slot_ends_behind_it(source: Source) -> None:
    source.commit(inserted(1), faulty(1), faulty(2, action="inserted"), faulty(3, action="inserted"))
    source.emit()
    source.begin()
    source.backfill(2)
    source.finish()
    behind = [("[2]", "backfilled", False), ("[1]", "deleted", False), ("[3]", "deleted", False)]
    assert held(source.store)[3:] == behind


def test_a_row_whose_event_id_somebody_used_is_quarantined_and_not_ended(source: Source) -> None:
    source.backfill(1, 3)
    source.finish()
    source.begin()
    (captured,) = source.store.captured_tables("c")
    for key in (1, 3):
        taken = source._row(key, "t", None, captured.backfill_offset).event_id
        captures.append_foreign(source.store, "updated", key + 10, UUID(taken))
    assert source.backfill(1, 2, done=False, value="new") == EmittedRows("stored", 1, 0, 1)
    assert source.backfill(1, 2, done=False, value="new") == EmittedRows("stored", 0, 2, 0)
    assert source.backfill(3).appended == 0  # the row is unchanged
    source.finish()
    newest = [stream(source.store, key)[-1] for key in (1, 2, 3)]
    assert newest == [("backfilled", "read"), ("backfilled", "new"), ("backfilled", "read")]
    (change,) = source.store.quarantined_changes("c")
    assert change.decider_id == "[1]"
    assert re.fullmatch("event_id .* is stored with other content", str(change.fault))


def now(source: Source) -> str:
    """Return a snapshot of the source that sees all its transactions."""
    return f"{source.xid}:{source.xid}:"


def toasted(source: Source, key: int, **record: object) -> Change:
    """Make an update in the source's log without the unchanged value of v."""
    (change,) = source.changes(updated(key))
    return captures.with_data(change, record={"id": key} | record, unavailable=["v"])


def last(source: Source, key: int) -> tuple[str, Any]:
    """Return the newest event of a row: name and record."""
    event = get_events(PlatformStore(source.store.connection), captures.decider_id(key), T)[-1]
    return event.event, event.data["record"]


def test_rows_that_a_truncate_removed_since_they_were_read_are_left_out(source: Source) -> None:
    snapshot = now(source)
    # also by a truncation that waits in the quarantine
    with source.store.connection.transaction(force_rollback=True):
        source.commit(faulty((), action="truncated"))
        source.emit_all()
        assert held(source.store) == [("[]", "truncated", True)]
        assert source.backfill(1, snapshot=snapshot) == EmittedRows("stored", 0, 1, 0)
    source.commit(captures.truncated())
    source.commit(inserted(3, "new"))
    source.emit_all()
    assert source.backfill(1, 2, 3, snapshot=snapshot, done=False) == EmittedRows("stored", 0, 3, 0)
    # an earlier truncation, seen by the snapshot or given by the previous slot, leaves no row out
    assert source.backfill(3, 4, done=False) == EmittedRows("stored", 2, 0, 0)
    assert [key for key, _ in captures.events(source.store)] == ["[]", "[3]", "[3]", "[4]"]
    source.begin(published_xid=700)
    assert source.backfill(1, 2, snapshot=snapshot) == EmittedRows("stored", 2, 0, 0)


def test_a_row_whose_newer_changes_lack_a_value_is_appended_as_it_is_now(source: Source) -> None:
    source.commit(updated(6, "seen"))
    source.save([toasted(source, 5, n=1)])
    snapshot = now(source)
    source.commit(updated(6, "changed"))
    source.save([toasted(source, 6, n=1)])
    for number in (1, 2):
        source.save([toasted(source, 1, n=number)])
    source.save([toasted(source, 2, n=3)])
    source.commit(updated(3, "whole"))
    source.emit()
    assert source.backfill(1, 2, 3, 4, 5, 6, snapshot=snapshot) == EmittedRows("stored", 5, 1, 0)
    # a change that the snapshot sees is followed by the row as read
    assert last(source, 5) == ("backfilled", {"id": 5, "v": "read"})
    assert last(source, 1) == ("backfilled", {"id": 1, "v": "read", "n": 2})
    assert last(source, 2) == ("backfilled", {"id": 2, "v": "read", "n": 3})
    assert last(source, 3) == ("updated", {"id": 3, "v": "whole"})
    # the value that the update lacks had changed since the row was read
    assert last(source, 6) == ("backfilled", {"id": 6, "v": "changed", "n": 1})


def test_a_row_is_left_out_where_it_was_another_one_or_is_gone_or_waits(source: Source) -> None:
    snapshot = now(source)
    source.commit(captures.deleted(1), inserted(1), captures.deleted(2))
    source.save([toasted(source, 1, n=1), toasted(source, 3, n=1)])
    source.commit(faulty(3))
    source.emit()
    assert source.backfill(1, 2, 3, snapshot=snapshot) == EmittedRows("stored", 0, 3, 0)


def test_only_a_stream_that_lacks_a_value_is_read(source: Source) -> None:
    snapshot = now(source)
    source.commit(*[updated(n % 3, n) for n in range(3000)])
    source.emit()
    connection = source.store.connection
    with connection.transaction():
        assert source.backfill(0, 1, 2, snapshot=snapshot).left_out == 3
        looked_at = value(connection, "select idx_tup_fetch from pg_stat_xact_user_tables where relname = 'events'")
    assert looked_at < 20


def test_a_table_that_is_taken_out_and_put_back_is_read_anew_by_other_ids(source: Source) -> None:
    store, u = source.store, "table:public.u"

    def put_back() -> None:
        for tables in ([captures.table("t")], [captures.table("t"), captures.table("u")]):
            store.register_capture("c", "slot_c", "pub_c", tables)
        store.publish_tables("c", source.token, source.xid)

    put_back()
    source.backfill(1, 2, 3, name="u")
    source.finish("u")
    put_back()  # unseen by the capture: 1 is changed, 2 is deleted
    assert source.backfill(1, 3, name="u", value="changed") == EmittedRows("stored", 2, 0, 0)
    source.finish("u")
    assert stream(store, 1, u) == [("backfilled", "read"), ("backfilled", "changed")]
    assert stream(store, 2, u) == [("backfilled", "read"), ("deleted", None)]
    assert stream(store, 3, u)[-1] == ("backfilled", "changed")
    put_back()  # the events that end rows have other ids too
    source.backfill(2, name="u", value="back")
    source.finish("u")
    assert [name for name, _ in stream(store, 2, u)] == ["backfilled", "deleted", "backfilled"]
    assert [name for name, _ in stream(store, 1, u)] == ["backfilled", "backfilled", "deleted"]


def test_a_table_whose_decider_is_renamed_and_back_is_read_each_time(source: Source) -> None:
    names = (T, "x", T, "x")
    for time, decider in enumerate(names):
        source.store.register_capture("c", "slot_c", "pub_c", [TableRegistration("public", "t", decider, None, "1")])
        source.store.publish_tables("c", source.token, source.xid)
        # the capture saw no change while the table had the other decider
        assert source.backfill(1, value=time).appended == 1
        source.finish()
    stored = rows(source.store.connection, 'select decider from event_store.events order by "offset"')
    assert stored == [(decider,) for decider in names]
