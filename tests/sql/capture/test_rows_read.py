"""Rows that a backfill reads: a row that equals its stream's state makes no event, a new one becomes an event."""

import json
from typing import LiteralString
from uuid import uuid4

import pytest

from millrace.capture.store import CaptureStore, EmittedRows
from millrace.event_store.platform import PlatformStore
from tests.support.capturing import captures
from tests.support.capturing.captures import Source, deleted, events, inserted, progress_of, table, updated, with_data
from tests.support.factories import Connect, rows, value
from tests.support.sql_calls import get_events


def read_rows(source: Source, *read: captures.ReadRow, key: str | None = None) -> EmittedRows:
    """Store rows that were read; with a `key` they are the last ones."""
    now = f"{source.xid}:{source.xid}:"
    return source.store.emit_backfill(
        "c", source.token, "public", "t", now, source.lsn, captures.as_read(read), key, done=key is not None
    )


def read(source: Source, record: str) -> EmittedRows:
    """Read row 1 with this JSON as its record."""
    (registered,) = source.store.captured_tables("c")
    made = source._row(1, "t", None, registered.backfill_offset)
    return read_rows(source, made._replace(data=f'{{"record": {record}}}'), key="[1]")


def found(source: Source) -> list[tuple[int, str]]:
    """Return the rows that running backfills found unchanged."""
    return rows(source.store.connection, "select * from event_store.unchanged_rows order by decider_id")


def counted(source: Source) -> tuple[int, int, int]:
    """Return how many rows were read, were unchanged, and are gone."""
    return rows(
        source.store.connection, "select backfilled_rows, unchanged_rows, gone_rows from event_store.captured_tables"
    )[0]


def test_only_what_differs_makes_an_event(source: Source) -> None:
    source.commit(inserted(1, "as it is"), inserted(2, "other"), inserted(3, "gone"), inserted(4, "back"), deleted(4))
    source.commit(updated(5, "as it is"))
    source.emit()
    before = events(source.store)
    source.begin()
    assert source.backfill(1, 5, value="as it is", done=False) == EmittedRows("stored", 0, 0, 0, 2)
    assert source.backfill(2, 6, value="read", done=False) == EmittedRows("stored", 2, 0, 0, 0)
    assert source.backfill(4, value="back") == EmittedRows("stored", 1, 0, 0, 0)
    source.finish(limit=2)
    made = {"[2]": "backfilled", "[3]": "deleted", "[4]": "backfilled", "[6]": "backfilled"}
    assert sorted(events(source.store)[len(before) :]) == [*made.items()]
    assert counted(source) == (5, 2, 1)
    assert found(source) == []
    gone = get_events(PlatformStore(source.store.connection), "[3]", "table:public.t")[-1].data
    assert (gone["record"], gone["gap"]) == (None, True)
    # once more: now nothing differs
    source.begin()
    assert source.backfill(1, 5, value="as it is", done=False).unchanged == 2
    assert source.backfill(2, 6, value="read", done=False).unchanged == 2
    assert source.backfill(4, value="back").unchanged == 1
    source.finish()
    assert len(events(source.store)) == len(before) + 4
    assert counted(source) == (5, 5, 0)


def test_values_are_compared_to_their_last_digit(source: Source) -> None:
    assert read(source, '{"id": 1, "n": 1.0}').appended == 1
    for record, appended in (
        ('{"n": 1.0, "id": 1}', 0), ('{"id": 1, "n": 1.00}', 1), ('{"id": 1, "n": "1.00"}', 1), ('{"id": 1}', 1),
        ('{"id": 1, "n": null}', 1), ('{"id": 1, "n": null, "more": {"a": [1, {}]}}', 1),
        ('{"more": {"a": [1, {}]}, "id": 1, "n": null}', 0),
    ):  # fmt: skip
        source.begin()
        assert (record, read(source, record).appended) == (record, appended)


def test_values_that_the_last_change_lacks_are_those_before_it(source: Source) -> None:
    source.commit(inserted(1, "far back"))
    for number in (1, 2):
        (change,) = source.changes(updated(1))
        source.save([with_data(change, record={"id": 1, "n": number}, unavailable=["v"])])
    source.emit()
    source.begin()
    assert read(source, '{"id": 1, "n": 2, "v": "far back"}').unchanged == 1
    source.begin()
    assert read(source, '{"id": 1, "n": 1, "v": "far back"}').unchanged == 0
    source.begin()
    (change,) = source.changes(updated(1))
    source.save([with_data(change, record={"id": 1}, unavailable=["v", "n"])])
    source.emit()
    assert read(source, '{"id": 1, "n": 1, "v": "far back"}').unchanged == 1


def test_values_that_no_event_of_the_row_holds_make_an_event(source: Source) -> None:
    for key, before in enumerate(("another row", "moved here", "not an update", "no record", "nothing")):
        if before != "nothing":
            source.commit(inserted(key, "kept"))
        if before == "another row":
            source.commit(deleted(key))
        elif before == "not an update":
            (bad,) = source.changes(inserted(key))
            source.save([with_data(bad, record={"id": key}, unavailable=["v"])])
        elif before == "no record":
            source.emit()
            captures.append_foreign(source.store, "updated", key)
        (lacking,) = source.changes(updated(key))
        moved = {"old_key": [100]} if before == "moved here" else {}
        source.save([with_data(lacking, record={"id": key}, unavailable=["v"], **moved)])
    source.emit()
    source.begin()
    assert source.backfill(0, 1, 2, 3, 4, value="kept") == EmittedRows("stored", 5, 0, 0, 0)


def test_a_row_that_changes_after_it_was_read_is_as_the_log_says(source: Source) -> None:
    source.commit(*[inserted(n, "read") for n in (1, 2, 3)])
    source.emit()
    source.begin()
    snapshot = f"{source.xid}:{source.xid}:"
    assert source.backfill(1, 2, 3, snapshot=snapshot).unchanged == 3
    source.commit(updated(2, "later"), deleted(3))
    source.emit()
    source.finish()
    newest = [captures.stream(source.store, n)[-1] for n in (1, 2, 3)]
    assert newest == [("inserted", "read"), ("updated", "later"), ("deleted", None)]
    # a change that the snapshot did not see is newer, even if its row is equal
    source.begin()
    snapshot = f"{source.xid}:{source.xid}:"
    source.commit(updated(1, "read"))
    source.emit()
    assert source.backfill(1, snapshot=snapshot) == EmittedRows("stored", 0, 1, 0, 0)


@pytest.mark.parametrize("anew", ["a new slot", "another declaration", "taken out and put back"])
def test_what_a_reading_found_that_never_ended_counts_no_more(source: Source, anew: str) -> None:
    source.commit(inserted(1, "read"), inserted(2, "read"))
    source.emit()
    source.begin()
    # a repeated chunk finds the same
    assert [source.backfill(1, 2, done=done).unchanged for done in (False, True)] == [2, 2]
    assert len(found(source)) == 2
    if anew == "a new slot":
        source.begin()
    else:
        if anew == "taken out and put back":
            source.store.register_capture("c", "slot_c", "pub_c", [table("u")])
        source.store.register_capture("c", "slot_c", "pub_c", [table(fingerprint="2")])
        source.store.publish_tables("c", source.token, source.xid)
    assert found(source) == []
    # 2 was deleted meanwhile, unseen by the capture
    source.backfill(1)
    source.finish()
    assert events(source.store)[2:] == [("[2]", "deleted")]


def test_the_end_takes_bounded_calls_and_each_removes_what_it_looked_at(source: Source) -> None:
    source.commit(*[inserted(n, "read") for n in range(7)])
    source.emit()
    source.begin()
    source.backfill(0, 1, 2, 4, 5, 6)
    left = []
    while not source.store.finish_backfill("c", source.token, "public", "t", 3):
        left.append(len(found(source)))
    assert left == [3, 1]
    assert events(source.store)[7:] == [("[3]", "deleted")]
    assert value(source.store.connection, "select gone_rows from event_store.captured_tables") == 1


def test_a_plan_made_for_an_empty_store_looks_at_the_events_of_the_rows(source: Source) -> None:
    connection = source.store.connection
    looked_at: LiteralString = "select idx_tup_fetch from pg_stat_xact_user_tables where relname = 'events'"
    connection.execute("vacuum analyze")
    source.backfill()
    source.finish()
    source.begin()
    source.backfill(*range(1000), done=False)
    with connection.transaction():
        assert source.backfill(0, 1000, 1001, done=False).appended == 2
        assert value(connection, looked_at) < 50
    source.backfill(2000)
    with connection.transaction():
        source.finish(limit=10)
        assert value(connection, looked_at) < 10 * 1000


def test_a_table_that_events_told_of_is_ended_by_a_look_at_its_streams(source: Source) -> None:
    source.backfill(1, 2)
    assert source.begin() == 2
    source.backfill(2, done=False)
    source.backfill()
    assert progress_of(source) == ("[2]", 1, True, None)
    assert source.finish() == 1
    assert progress_of(source) == ("[2]", 1, True, 2)
    assert events(source.store)[-1] == ("[1]", "deleted")


def test_a_table_is_new_until_it_is_read_anew(connect: Connect) -> None:
    source = Source(CaptureStore(connect()))

    def are_new() -> list[bool]:
        found = rows(source.store.connection, "select is_new from event_store.captured_tables order by table_name")
        return [new for (new,) in found]

    # while the table was never published, with any declaration
    for fingerprint in ("2", "1"):
        source.store.register_capture("c", "slot_c", "pub_c", [table(fingerprint=fingerprint)])
        assert are_new() == [True]
    source.begin()
    assert are_new() == [True]
    # the slot of the capture may lack changes of a table that is added
    source.store.register_capture("c", "slot_c", "pub_c", [table(), table("u")])
    source.store.publish_tables("c", source.token, source.xid)
    assert are_new() == [True, False]
    source.store.register_capture("c", "slot_c", "pub_c", [table(fingerprint="2")])
    assert are_new() == [False]
    source.store.release_capture("c", source.token)
    source.store.unregister_capture("c")
    again = Source(source.store)
    again.begin()
    assert are_new() == [False]
    assert again.backfill(1).appended == 1
    assert progress_of(again)[3] is None


def test_no_stream_ends_where_a_row_was_read_whose_key_is_unknown(source: Source) -> None:
    source.commit(*[inserted(n, "read") for n in range(5)])
    source.emit()
    before = events(source.store)
    source.begin()
    (registered,) = source.store.captured_tables("c")
    known = [source._row(key, "t", "read", registered.backfill_offset) for key in (0, 1)]
    nameless = known[0]._replace(decider_id=None, event_id=str(uuid4()), data=None, fault="its key is no text")
    read_rows(source, *known, nameless, nameless._replace(event_id=str(uuid4())))
    source.backfill()
    # the mark outlasts calls that process a part of the streams
    assert source.finish(limit=2) == 3
    assert (events(source.store), counted(source), found(source)) == (before, (4, 2, 0), [])
    source.begin()
    source.backfill(0, 1, 2)
    source.finish()
    assert events(source.store)[len(before) :] == [("[3]", "deleted"), ("[4]", "deleted")]


def test_rows_that_no_event_tells_of_become_events_or_wait(source: Source) -> None:
    source.commit(inserted(1, "read"), inserted(2, "other"), inserted(3), deleted(3), captures.faulty(4))
    source.emit_all()
    one = source._row(5, "t", "read", 1)
    large = one._replace(decider_id="[6]", event_id=str(uuid4()), data=json.dumps({"record": "x" * 2_000_000}))
    digits = one._replace(decider_id="[7]", event_id=str(uuid4()), data='{"record": 1e1000}')
    doubtful = one._replace(decider_id="[10]", event_id=str(uuid4()), fault="column v: not UTF-8")
    unreadable = one._replace(decider_id="[8]", event_id=str(uuid4()), data=None, fault="column v: not UTF-8")
    nameless = unreadable._replace(decider_id=None, event_id=str(uuid4()))
    noted = one._replace(decider_id="[9]", event_id=str(uuid4()), data='{"record": {}, "annotations": {"user": "me"}}')
    known = [source._row(key, "t", "read", 1) for key in (1, 2, 3, 4)]
    found = read_rows(source, one, large, digits, doubtful, unreadable, nameless, noted, *known)
    # 2 and 3 differ from their streams, and 4 waits behind its fault
    assert found == EmittedRows("stored", 4, 0, 6, 1)
    assert sorted(key for key, name in events(source.store) if name == "backfilled") == ["[2]", "[3]", "[5]", "[9]"]
    assert {key for key, *_ in captures.held(source.store)} == {"[4]", "[6]", "[7]", "[10]", "[8]", None}
    (event,) = PlatformStore(source.store.connection).read("table:public.t", "[9]")
    assert event.metadata == {"user": "me"}


def test_new_rows_follow_what_is_before_them_in_their_stream(source: Source) -> None:
    """Behind another row of the same call, or purged events; at any isolation level."""
    connection = source.store.connection
    connection.execute("set default_transaction_isolation = serializable")
    connection.execute(
        "insert into event_store.purged_streams (decider, decider_id, last_event_id, last_offset, version, final)"
        " values ('table:public.t', '[1]', gen_random_uuid(), 1, 3, false)"
    )
    one = source._row(5, "t", "read", 1)
    again = one._replace(event_id=str(uuid4()))
    assert read_rows(source, source._row(1, "t", "read", 1), one, again).appended == 3
    versions = rows(connection, "select decider_id, version from event_store.events order by 1, 2")
    assert versions == [("[1]", 4), ("[5]", 1), ("[5]", 2)]
