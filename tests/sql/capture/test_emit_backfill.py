"""A backfill: the rows that a table had, beside its log, which may overtake them between reading and storing."""

import re
from typing import Any
from uuid import UUID

from millrace.resources.capture.decoding.change import Change
from millrace.resources.capture.decoding.pgoutput import Lsn
from millrace.resources.capture.store import EmittedRows, TableRegistration
from millrace.resources.errors import Malformed
from millrace.resources.event_store import EventStore
from tests.support.capturing.captures import (
    PUBLISHED,
    Source,
    T,
    append_foreign,
    decider_id,
    deleted,
    events,
    faulty,
    held,
    inserted,
    progress_of,
    stream,
    table,
    truncated,
    updated,
    with_data,
)
from tests.support.factories import refusal, rows, value

ID = "0b5c1d9e-0000-4000-8000-0000000000ff"


def test_rows_become_events_chunk_by_chunk_and_the_backfill_ends(source: Source) -> None:
    assert source.backfill(1, 2, done=False) == EmittedRows("stored", 2, 0, 0)
    assert progress_of(source) == ("[2]", 2, False, None)
    refusal(Malformed, source.finish)
    # given again, it appends only what is missing
    assert source.backfill(1, 2, 3, done=False) == EmittedRows("stored", 1, 2, 0)
    assert source.backfill() == EmittedRows("stored", 0, 0, 0)
    assert progress_of(source)[0::2] == ("[3]", True)
    assert progress_of(source)[3] == 1
    assert events(source.store) == [("[1]", "backfilled"), ("[2]", "backfilled"), ("[3]", "backfilled")]
    assert source.finish() == 1
    assert source.backfill(4).appended == 0


def test_a_chunk_waits_until_the_log_is_emitted_up_to_where_its_snapshot_sees(source: Source) -> None:
    source.commit(inserted(1))
    assert source.backfill(1, 2).status == "behind"
    source.emit()
    assert source.backfill(1, 2, high_lsn=Lsn(source.lsn + 1)).status == "behind"
    assert progress_of(source) == (None, 0, False, None)
    assert source.backfill(1, 2).status == "stored"


def test_a_snapshot_from_before_the_publication_is_not_taken(source: Source) -> None:
    before = f"{PUBLISHED - 1}:{PUBLISHED + 5}:{PUBLISHED - 1}"
    assert source.backfill(1, snapshot=before).status == "unpublished"
    assert source.backfill(1, snapshot=f"{PUBLISHED}:{PUBLISHED + 5}:").status == "stored"


def test_a_row_that_is_too_large_or_grew_so_by_what_changed_since_is_quarantined_with_its_fault(source: Source) -> None:
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
    assert held(source.store)[3:] == [
        ("[2]", "backfilled", False),
        ("[1]", "deleted", False),
        ("[3]", "deleted", False),
    ]


def test_a_row_whose_event_id_somebody_else_used_is_quarantined_and_not_ended(source: Source) -> None:
    source.backfill(1, 3)
    source.finish()
    source.begin()
    (captured,) = source.store.captured_tables("c")
    for key in (1, 3):
        taken = source._row(key, "t", None, captured.backfill_offset).event_id
        append_foreign(source.store, "updated", key + 10, UUID(taken))
    assert source.backfill(1, 2, done=False, value="new") == EmittedRows("stored", 1, 0, 1)
    assert source.backfill(1, 2, done=False, value="new") == EmittedRows("stored", 0, 2, 0)
    assert source.backfill(3).appended == 0  # it is as it was
    source.finish()
    assert [stream(source.store, key)[-1] for key in (1, 2, 3)] == [
        ("backfilled", "read"),
        ("backfilled", "new"),
        ("backfilled", "read"),
    ]
    (change,) = source.store.quarantined_changes("c")
    assert change.decider_id == "[1]"
    assert re.fullmatch("event_id .* is stored with other content", str(change.fault))


def now(source: Source) -> str:
    """Return a snapshot of the source that sees all that happened in it."""
    return f"{source.xid}:{source.xid}:"


def toasted(source: Source, key: int, **record: object) -> Change:
    """Make an update in the source's log that has all but the value of v, which did not change."""
    (change,) = source.changes(updated(key))
    return with_data(change, record={"id": key} | record, unavailable=["v"])


def last(source: Source, key: int) -> tuple[str, Any]:
    """Return the newest event of a row: name and record."""
    event = EventStore(source.store.connection).get_events(decider_id(key), T)[-1]
    return event.event, event.data["record"]


# a TRUNCATE


def test_rows_that_a_truncate_removed_since_they_were_read_are_left_out(source: Source) -> None:
    snapshot = now(source)
    # also by one that waits in the quarantine
    with source.store.connection.transaction(force_rollback=True):
        source.commit(faulty((), action="truncated"))
        source.emit_all()
        assert held(source.store) == [("[]", "truncated", True)]
        assert source.backfill(1, snapshot=snapshot) == EmittedRows("stored", 0, 1, 0)
    source.commit(truncated())
    source.commit(inserted(3, "new"))
    source.emit_all()
    assert source.backfill(1, 2, 3, snapshot=snapshot, done=False) == EmittedRows("stored", 0, 3, 0)
    # one from before, which the snapshot sees or which the slot before gave, leaves none out
    assert source.backfill(3, 4, done=False) == EmittedRows("stored", 2, 0, 0)
    assert [key for key, _ in events(source.store)] == ["[]", "[3]", "[3]", "[4]"]
    source.begin(published_xid=700)
    assert source.backfill(1, 2, snapshot=snapshot) == EmittedRows("stored", 2, 0, 0)


# values that the log does not hold


def test_a_row_whose_newer_changes_lack_a_value_is_appended_as_it_is_now(source: Source) -> None:
    source.save([toasted(source, 5, n=1)])
    snapshot = now(source)
    for number in (1, 2):
        source.save([toasted(source, 1, n=number)])
    source.save([toasted(source, 2, n=3)])
    source.commit(updated(3, "whole"))
    source.emit()
    assert source.backfill(1, 2, 3, 4, 5, snapshot=snapshot) == EmittedRows("stored", 4, 1, 0)
    # what the snapshot sees is followed by the row as it was read
    assert last(source, 5) == ("backfilled", {"id": 5, "v": "read"})
    assert last(source, 1) == ("backfilled", {"id": 1, "v": "read", "n": 2})
    assert last(source, 2) == ("backfilled", {"id": 2, "v": "read", "n": 3})
    assert last(source, 3) == ("updated", {"id": 3, "v": "whole"})


def test_a_value_that_changed_since_it_was_read_and_is_lacking_after_that_is_the_changed_one(source: Source) -> None:
    source.commit(updated(1, "seen"))
    snapshot = now(source)
    source.commit(updated(1, "changed"))
    source.save([toasted(source, 1, n=1)])
    source.emit()
    assert source.backfill(1, snapshot=snapshot).appended == 1
    assert last(source, 1) == ("backfilled", {"id": 1, "v": "changed", "n": 1})


def test_a_row_is_left_out_where_it_was_another_one_or_is_gone_or_waits(source: Source) -> None:
    snapshot = now(source)
    source.commit(deleted(1), inserted(1), deleted(2))
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


# begun anew


def test_a_table_that_is_taken_out_and_put_back_is_read_anew_under_other_ids(source: Source) -> None:
    store = source.store
    both = [table("t"), table("u")]
    store.register_capture("c", "slot_c", "pub_c", both)
    store.publish_tables("c", source.token, source.xid)
    source.backfill(1, 2, 3, name="u")
    source.finish("u")
    store.register_capture("c", "slot_c", "pub_c", both[:1])
    # unseen: 1 is changed, 2 is deleted
    store.register_capture("c", "slot_c", "pub_c", both)
    store.publish_tables("c", source.token, source.xid)
    assert source.backfill(1, 3, name="u", value="changed") == EmittedRows("stored", 2, 0, 0)
    source.finish("u")
    decider = "table:public.u"
    assert stream(store, 1, decider) == [("backfilled", "read"), ("backfilled", "changed")]
    assert stream(store, 2, decider) == [("backfilled", "read"), ("deleted", None)]
    assert stream(store, 3, decider)[-1] == ("backfilled", "changed")
    # and once more: what it ends has other ids, too
    store.register_capture("c", "slot_c", "pub_c", both[:1])
    store.register_capture("c", "slot_c", "pub_c", both)
    store.publish_tables("c", source.token, source.xid)
    source.backfill(2, name="u", value="back", done=False)
    source.backfill(name="u")
    source.finish("u")
    assert [name for name, _ in stream(store, 2, decider)] == ["backfilled", "deleted", "backfilled"]
    assert [name for name, _ in stream(store, 1, decider)] == ["backfilled", "backfilled", "deleted"]


def test_a_table_whose_decider_is_renamed_and_renamed_back_is_read_each_time(source: Source) -> None:
    for decider in (T, "x", T, "x"):
        source.store.register_capture("c", "slot_c", "pub_c", [TableRegistration("public", "t", decider, None, "1")])
        source.store.publish_tables("c", source.token, source.xid)
        # what happened while it had the other decider, nobody saw
        assert (
            source.backfill(1, value=f"{decider} again" if stream(source.store, 1, decider) else "read").appended == 1
        )
        source.finish()
    assert rows(source.store.connection, 'select decider from event_store.events order by "offset"') == [
        (T,),
        ("x",),
        (T,),
        ("x",),
    ]
