"""Rows that no event tells of become events as they are; a table's first backfill ends without a look at streams."""

import json
from collections.abc import Sequence
from dataclasses import replace
from uuid import uuid4

import psycopg
import pytest

from millrace.resources.capture.store import CaptureStore, EmittedRows
from tests.support.capturing.captures import (
    ReadRow,
    Source,
    as_read,
    deleted,
    events,
    faulty,
    inserted,
    progress_of,
    source,
    table,
    truncated,
)
from tests.support.factories import (
    Connect,
    rows,
    value,
)

__all__ = ["source"]


def test_a_table_that_events_told_of_before_is_ended_by_a_look_at_its_streams(source: Source) -> None:
    source.backfill(1, 2)
    assert source.begin() == 2
    source.backfill(2, done=False)
    source.backfill()
    assert progress_of(source) == ("[2]", 1, True, None)
    assert source.finish() == 1
    assert progress_of(source) == ("[2]", 1, True, 2)
    assert events(source.store)[-1] == ("[1]", "deleted")


def is_new(source: Source) -> bool:
    return bool(value(source.store.connection, "select is_new from event_store.captured_tables"))


def test_a_table_is_new_until_it_is_read_anew(source: Source) -> None:
    assert is_new(source)
    source.store.register_capture("c", "slot_c", "pub_c", [table()])
    assert is_new(source)
    source.store.register_capture("c", "slot_c", "pub_c", [table(fingerprint="2")])
    assert not is_new(source)


def test_a_table_that_was_never_published_stays_new(connect: Connect) -> None:
    source = Source(CaptureStore(connect()))
    source.store.register_capture("c", "slot_c", "pub_c", [table(fingerprint="2")])
    assert is_new(source)
    source.begin()
    assert is_new(source)
    source.begin()
    assert not is_new(source)


def test_a_table_that_is_added_to_a_capture_is_not_new_for_its_slot_may_lack_changes(source: Source) -> None:
    source.store.register_capture("c", "slot_c", "pub_c", [table(), table("u")])
    source.store.publish_tables("c", source.token, source.xid)
    query = "select table_name, is_new from event_store.captured_tables order by 1"
    assert rows(source.store.connection, query) == [("t", True), ("u", False)]


def test_a_table_that_was_captured_before_is_not_new(source: Source) -> None:
    source.forget_lease()
    source.store.release_capture("c", source.token)
    source.store.unregister_capture("c")
    again = Source(source.store)
    again.begin()
    assert not is_new(again)
    assert again.backfill(1).appended == 1
    assert progress_of(again)[3] is None


# append_new_rows as if each row had to be compared with its stream
NONE_NEW = """
    create or replace function event_store_private.append_new_rows(
      v_table event_store.captured_tables, v_decider_ids text[], v_event_ids uuid[], v_command_id uuid, v_data text[], v_faults text[]
    )
    returns uuid[] language sql as $$ select '{}'::uuid[] $$
"""


def both_ways(source: Source, read: Sequence[ReadRow], snapshot: str | None = None) -> EmittedRows:
    """Append rows by what compares each with its stream alone, and as ever; return what became of them, the same."""
    connection = source.store.connection
    outcomes = []
    for compares_all in (True, False):
        with connection.transaction():
            if compares_all:
                connection.execute(NONE_NEW)
            stored = source.store.emit_backfill(
                "c",
                source.token,
                "public",
                "t",
                snapshot or f"{source.xid}:{source.xid}:",
                source.lsn,
                as_read(read),
                None,
                done=False,
            )
            told = rows(
                connection,
                "select event, event_id, event_version, decider, decider_id, data, command_id, previous_id, final, version, metadata"
                " from event_store.events order by decider_id, version",
            )
            quarantined = rows(
                connection,
                "select decider_id, action, event_id, command_id, data::text, fault from event_store.quarantined_changes"
                " order by event_id",
            )
            kept = rows(connection, "select decider_id from event_store.unchanged_rows order by 1")
            progressed = progress_of(source)
            outcomes.append((stored, told, quarantined, kept, progressed))
            raise psycopg.Rollback
    compared, appended = outcomes
    assert compared == appended
    return compared[0]


def test_rows_become_the_same_events_whichever_way_they_take(source: Source) -> None:
    source.commit(inserted(1, "read"), inserted(2, "other"), inserted(3), deleted(3), faulty(4))
    source.emit_all()
    one = source._row(5, "t", "read", 1)
    large = one._replace(decider_id="[6]", event_id=str(uuid4()), data=json.dumps({"record": "x" * 2_000_000}))
    digits = one._replace(decider_id="[7]", event_id=str(uuid4()), data='{"record": 1e1000}')
    doubtful = one._replace(decider_id="[10]", event_id=str(uuid4()), fault="column v: not UTF-8")
    unreadable = one._replace(decider_id="[8]", event_id=str(uuid4()), data=None, fault="column v: not UTF-8")
    nameless = unreadable._replace(decider_id=None, event_id=str(uuid4()))
    noted = one._replace(decider_id="[9]", event_id=str(uuid4()), data='{"record": {}, "annotations": {"user": "me"}}')
    known = [source._row(key, "t", "read", 1) for key in (1, 2, 3, 4)]
    assert both_ways(source, [one, noted]) == EmittedRows("stored", 2, 0, 0, 0)
    found = both_ways(source, [one, large, digits, doubtful, unreadable, nameless, noted, *known])
    # 2 and 3 are other than their streams say, and 4 waits behind its fault
    assert (found.appended, found.held, found.unchanged) == (4, 6, 1)


def test_new_rows_of_one_stream_are_refused_or_taken_as_ever(source: Source) -> None:
    one = source._row(5, "t", "read", 1)
    again = one._replace(event_id=str(uuid4()))
    assert both_ways(source, [one, again]).appended == 2


@pytest.mark.parametrize("waits", [False, True])
def test_rows_that_a_truncation_removed_since_they_were_read_are_left_out(source: Source, waits: bool) -> None:
    before = f"{source.xid}:{source.xid}:"
    if waits:
        source.commit(replace(truncated(), fault="it waits"))
    else:
        source.commit(truncated())
    source.emit_all()
    assert both_ways(source, [source._row(1, "t", "read", 1)], before) == EmittedRows("stored", 0, 1, 0)
    assert both_ways(source, [source._row(1, "t", "read", 1)]).appended == 1


def test_a_new_row_whose_stream_was_purged_follows_it(source: Source) -> None:
    source.store.connection.execute(
        "insert into event_store.purged_streams (decider, decider_id, last_event_id, last_offset, version, final)"
        " values ('table:public.t', '[1]', gen_random_uuid(), 1, 3, false)"
    )
    assert both_ways(source, [source._row(1, "t", "read", 1), source._row(2, "t", "read", 1)]).appended == 2


def test_new_rows_are_taken_at_any_isolation(source: Source) -> None:
    source.store.connection.execute("set default_transaction_isolation = serializable")
    assert both_ways(source, [source._row(1, "t", "read", 1)]).appended == 1
