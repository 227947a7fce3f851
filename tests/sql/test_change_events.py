"""The SQL view change_events: events in the shape of changes."""

import json
from typing import LiteralString

from tests.support.capturing.captures import Source, inserted, later, source, table, truncated, updated, with_data
from tests.support.factories import rows, value

__all__ = ["source"]


def test_a_change_has_its_columns(source: Source) -> None:
    (change,) = source.changes(updated(7, "new"))
    source.save([with_data(change, changes={"v": "old"}, annotations={"by": "me"})])
    source.emit()
    (row,) = rows(source.store.connection, "select to_jsonb(c) - 'inserted_at' from event_store.change_events c")
    assert row[0] == {
        "seq": value(source.store.connection, 'select "offset" from event_store.events'),
        "event_id": str(change.event_id),
        "capture": "c",
        "source_generation": 1,
        "commit_lsn": str(change.commit_lsn),
        "commit_idx": 0,
        "source_table_oid": 16384,
        "source_table_schema": "public",
        "source_table_name": "t",
        "record_pk": "[7]",
        "record": {"id": 7, "v": "new"},
        "changes": {"v": "old"},
        "action": "updated",
        "committed_at": "2026-01-05T12:00:00+00:00",
        "annotations": {"by": "me"},
    }


def test_order_by_seq_is_the_order_of_commits_and_nothing_is_missing_after_a_purge(source: Source) -> None:
    source.commit(*[inserted(n) for n in range(1000)])
    source.commit(updated(3))
    source.commit(truncated())
    source.emit_all()
    source.backfill(1)
    source.store.purge_wal_events("c", later(10**9))
    query: LiteralString = (
        "select commit_lsn, commit_idx from event_store.change_events where action <> 'deleted' order by seq"
    )
    found = [row for row in rows(source.store.connection, query) if row[0] is not None]
    assert len(found) == 1002
    assert found == sorted(found)


def test_every_column_has_a_comment(source: Source) -> None:
    query: LiteralString = """
        select attname from pg_attribute
        where attrelid = 'event_store.change_events'::regclass and attnum > 0 and col_description(attrelid, attnum) is null
    """
    assert rows(source.store.connection, query) == []


def test_only_captured_tables_are_shown(source: Source) -> None:
    source.commit(inserted(1))
    source.emit()
    source.store.register_capture("c", "slot_c", "pub_c", [table("u")])
    assert rows(source.store.connection, "select from event_store.change_events") == []


def test_the_next_changes_are_read_by_the_index_of_events(source: Source) -> None:
    source.commit(*[inserted(n) for n in range(2000)])
    source.emit_all()
    connection = source.store.connection
    connection.execute("analyze event_store.events")
    ((plan,),) = rows(
        connection,
        "explain (format json) select * from event_store.change_events where seq > 1990 order by seq limit 10",
    )
    text = json.dumps(plan)
    assert "events_pkey" in text
    assert '"Sort"' not in text
