"""A table that is read anew: what is as its streams say makes no event, and is not taken for gone."""

from dataclasses import replace

import pytest

from millrace.resources.capture.store import EmittedRows
from tests.support.capturing.captures import (
    Row,
    Source,
    append_foreign,
    as_read,
    decider_id,
    deleted,
    events,
    inserted,
    source,
    stream,
    table,
    updated,
    with_data,
)
from tests.support.factories import rows, value

__all__ = ["source"]


def read(source: Source, row: Row, record: str) -> EmittedRows:
    """Read a row with this JSON as its record."""
    (registered,) = source.store.captured_tables("c")
    made = source._row(row.key, "t", None, registered.backfill_offset)
    now = f"{source.xid}:{source.xid}:"
    made = made._replace(data=f'{{"record": {record}}}')
    return source.store.emit_backfill(
        "c", source.token, "public", "t", now, source.lsn, as_read([made]), decider_id(row.key), done=True
    )


def found(source: Source) -> list[tuple[int, str]]:
    """Return what backfills that are under way found unchanged."""
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
    assert sorted(events(source.store)[len(before) :]) == [
        ("[2]", "backfilled"),
        ("[3]", "deleted"),
        ("[4]", "backfilled"),
        ("[6]", "backfilled"),
    ]
    assert counted(source) == (5, 2, 1)
    assert found(source) == []
    # and once more: now nothing differs
    source.begin()
    assert source.backfill(1, 5, value="as it is", done=False).unchanged == 2
    assert source.backfill(2, 6, value="read", done=False).unchanged == 2
    assert source.backfill(4, value="back").unchanged == 1
    source.finish()
    assert len(events(source.store)) == len(before) + 4
    assert counted(source) == (5, 5, 0)


def test_values_are_compared_to_their_last_digit(source: Source) -> None:
    assert read(source, Row(1), '{"id": 1, "n": 1.0}').appended == 1
    for record, appended in (
        ('{"n": 1.0, "id": 1}', 0),
        ('{"id": 1, "n": 1.00}', 1),
        ('{"id": 1, "n": "1.00"}', 1),
        ('{"id": 1}', 1),
        ('{"id": 1, "n": null}', 1),
        ('{"id": 1, "n": null, "more": {"a": [1, {}]}}', 1),
        ('{"more": {"a": [1, {}]}, "id": 1, "n": null}', 0),
    ):
        source.begin()
        assert (record, read(source, Row(1), record).appended) == (record, appended)


def test_values_that_the_last_change_lacks_are_those_before_it(source: Source) -> None:
    source.commit(inserted(1, "far back"))
    for number in (1, 2):
        (change,) = source.changes(updated(1))
        source.save([with_data(change, record={"id": 1, "n": number}, unavailable=["v"])])
    source.emit()
    source.begin()
    assert read(source, Row(1), '{"id": 1, "n": 2, "v": "far back"}').unchanged == 1
    source.begin()
    assert read(source, Row(1), '{"id": 1, "n": 1, "v": "far back"}').unchanged == 0
    source.begin()
    (change,) = source.changes(updated(1))
    source.save([with_data(change, record={"id": 1}, unavailable=["v", "n"])])
    source.emit()
    assert read(source, Row(1), '{"id": 1, "n": 1, "v": "far back"}').unchanged == 1


@pytest.mark.parametrize("before", ["another row", "moved here", "not an update", "no record", "nothing"])
def test_values_that_no_event_of_the_row_holds_make_an_event(source: Source, before: str) -> None:
    if before != "nothing":
        source.commit(inserted(1, "kept"))
    (lacking,) = source.changes(updated(1))
    lacking = with_data(lacking, record={"id": 1}, unavailable=["v"])
    if before == "another row":
        source.commit(deleted(1))
    elif before == "moved here":
        lacking = with_data(lacking, old_key=[2])
    elif before == "not an update":
        (bad,) = source.changes(inserted(1))
        source.save([with_data(bad, record={"id": 1}, unavailable=["v"])])
    elif before == "no record":
        source.emit()
        append_foreign(source.store, "updated", 1)
    lacking = replace(lacking, commit_lsn=source.lsn)
    source.save([lacking], type(source.lsn)(source.lsn + 1))
    source.emit()
    source.lsn = type(source.lsn)(source.lsn + 0x100)
    source.begin()
    assert source.backfill(1, value="kept") == EmittedRows("stored", 1, 0, 0, 0)


def test_a_row_that_changes_after_it_was_read_is_as_the_log_says(source: Source) -> None:
    source.commit(*[inserted(n, "read") for n in (1, 2, 3)])
    source.emit()
    source.begin()
    snapshot = f"{source.xid}:{source.xid}:"
    assert source.backfill(1, 2, 3, snapshot=snapshot).unchanged == 3
    source.commit(updated(2, "later"), deleted(3))
    source.emit()
    source.finish()
    assert [stream(source.store, n)[-1] for n in (1, 2, 3)] == [
        ("inserted", "read"),
        ("updated", "later"),
        ("deleted", None),
    ]
    # what the snapshot did not see is newer, also where it is equal
    source.begin()
    snapshot = f"{source.xid}:{source.xid}:"
    source.commit(updated(1, "read"))
    source.emit()
    assert source.backfill(1, snapshot=snapshot) == EmittedRows("stored", 0, 1, 0, 0)


def test_a_chunk_that_is_given_again_finds_the_same(source: Source) -> None:
    source.commit(inserted(1, "read"))
    source.emit()
    source.begin()
    for _ in range(2):
        assert source.backfill(1, done=False).unchanged == 1
    assert len(found(source)) == 1


@pytest.mark.parametrize("anew", ["a new slot", "another declaration", "taken out and put back"])
def test_what_a_reading_found_that_never_ended_counts_no_more(source: Source, anew: str) -> None:
    source.commit(inserted(1, "read"), inserted(2, "read"))
    source.emit()
    source.begin()
    source.backfill(1, 2)
    assert len(found(source)) == 2
    if anew == "a new slot":
        source.begin()
    else:
        if anew == "taken out and put back":
            source.store.register_capture("c", "slot_c", "pub_c", [table("u")])
        source.store.register_capture("c", "slot_c", "pub_c", [table(fingerprint="2")])
        source.store.publish_tables("c", source.token, source.xid)
    assert found(source) == []
    # 2 went meanwhile, and nobody saw it
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


def test_a_plan_that_was_made_for_an_empty_store_looks_at_the_events_of_the_rows_only(source: Source) -> None:
    connection = source.store.connection
    connection.execute("vacuum analyze")
    source.backfill()
    source.finish()
    source.begin()
    source.backfill(*range(1000), done=False)
    with connection.transaction():
        assert source.backfill(0, 1000, 1001, done=False).appended == 2
        fetched = value(connection, "select idx_tup_fetch from pg_stat_xact_user_tables where relname = 'events'")
    assert fetched < 50
    source.backfill(2000)
    with connection.transaction():
        source.finish(limit=10)
        fetched = value(connection, "select idx_tup_fetch from pg_stat_xact_user_tables where relname = 'events'")
    assert fetched < 10 * 1000
