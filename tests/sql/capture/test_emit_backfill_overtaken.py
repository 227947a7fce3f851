"""A backfill that changes of the source overtake between its reading and its storing, and one that is begun anew."""

from typing import Any

import pytest

from millrace.resources.capture.decoding.change import Change
from millrace.resources.capture.store import EmittedRows, TableRegistration
from millrace.resources.event_store import EventStore
from tests.support.capturing.captures import (
    Source,
    T,
    decider_id,
    deleted,
    events,
    faulty,
    held,
    inserted,
    source,
    stream,
    table,
    truncated,
    updated,
    with_data,
)
from tests.support.factories import rows, value

__all__ = ["source"]


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
    source.commit(truncated())
    source.commit(inserted(3, "new"))
    source.emit_all()
    assert source.backfill(1, 2, 3, snapshot=snapshot, done=False) == EmittedRows("stored", 0, 3, 0)
    assert source.backfill(3) == EmittedRows("stored", 1, 0, 0)
    assert [key for key, _ in events(source.store)] == ["[]", "[3]", "[3]"]


@pytest.mark.parametrize("sees", ["the snapshot", "the slot before"])
def test_a_truncate_from_before_leaves_no_row_out(source: Source, sees: str) -> None:
    snapshot = now(source)
    source.commit(truncated())
    source.emit_all()
    if sees == "the slot before":
        source.begin(published_xid=700)
    else:
        snapshot = now(source)
    assert source.backfill(1, 2, snapshot=snapshot) == EmittedRows("stored", 2, 0, 0)


def test_a_truncate_in_the_quarantine_leaves_the_rows_out_too(source: Source) -> None:
    snapshot = now(source)
    source.commit(faulty((), action="truncated"))
    source.emit_all()
    assert held(source.store) == [("[]", "truncated", True)]
    assert source.backfill(1, snapshot=snapshot) == EmittedRows("stored", 0, 1, 0)
    assert source.backfill(2) == EmittedRows("stored", 0, 0, 0)


# values that the log does not hold


def test_a_row_whose_newer_changes_lack_a_value_is_appended_as_it_is_now(source: Source) -> None:
    snapshot = now(source)
    for number in (1, 2):
        source.save([toasted(source, 1, n=number)])
    source.save([toasted(source, 2, n=3)])
    source.commit(updated(3, "whole"))
    source.emit()
    assert source.backfill(1, 2, 3, 4, snapshot=snapshot) == EmittedRows("stored", 3, 1, 0)
    assert last(source, 1) == ("backfilled", {"id": 1, "v": "read", "n": 2})
    assert last(source, 2) == ("backfilled", {"id": 2, "v": "read", "n": 3})
    assert last(source, 3) == ("updated", {"id": 3, "v": "whole"})
    source.finish()
    assert last(source, 1)[0] == "backfilled"


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


def test_a_change_that_lacks_a_value_and_that_the_snapshot_sees_is_followed_by_the_row_as_it_was_read(
    source: Source,
) -> None:
    source.save([toasted(source, 1, n=1)])
    source.emit()
    assert source.backfill(1).appended == 1
    assert last(source, 1) == ("backfilled", {"id": 1, "v": "read"})


def test_a_row_that_grows_too_large_by_what_changed_since_is_quarantined(source: Source) -> None:
    source.store.connection.execute("set event_store.max_data_bytes = 1000")
    snapshot = now(source)
    source.save([toasted(source, 1, n="x" * 600)])
    source.emit()
    assert source.backfill(1, value="y" * 600, snapshot=snapshot) == EmittedRows("stored", 0, 0, 1)
    assert held(source.store) == [("[1]", "backfilled", True)]


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


def test_the_ids_of_deletions_are_of_their_backfill(source: Source) -> None:
    for _ in range(3):
        source.store.register_capture("c", "slot_c", "pub_c", [table("u")])
        source.store.register_capture("c", "slot_c", "pub_c", [table("t")])
        source.store.publish_tables("c", source.token, source.xid)
        source.backfill(1)
        source.finish()
        source.store.register_capture("c", "slot_c", "pub_c", [table("u")])
        source.store.register_capture("c", "slot_c", "pub_c", [table("t")])
        source.store.publish_tables("c", source.token, source.xid)
        source.backfill()
        source.finish()
    assert [name for name, _ in stream(source.store, 1)] == ["backfilled", "deleted"] * 3


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
