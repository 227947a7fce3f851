"""The SQL view change_events: events in the shape of changes."""

import json
from typing import LiteralString

from tests.support.capturing.captures import Source, inserted, later, table, truncated, updated, with_data
from tests.support.factories import rows, value


def test_a_change_has_its_columns(source: Source) -> None:
    (change,) = source.changes(updated(7, "new"))
    source.save([with_data(change, changes={"v": "old"}, annotations={"by": "me"})])
    source.emit()
    (row,) = rows(source.store.connection, "select to_jsonb(c) - 'inserted_at' from event_store.change_events c")
    assert row[0] == {
        "seq": value(source.store.connection, 'select "offset" from event_store.events'), "event_id": str(change.event_id),
        "capture": "c", "source_generation": 1, "commit_lsn": str(change.commit_lsn), "commit_idx": 0,
        "source_table_oid": 16384, "source_table_schema": "public", "source_table_name": "t", "record_pk": "[7]",
        "record": {"id": 7, "v": "new"}, "changes": {"v": "old"}, "action": "updated",
        "committed_at": "2026-01-05T12:00:00+00:00", "annotations": {"by": "me"},
    }  # fmt: skip
    # only captured tables are shown
    source.store.register_capture("c", "slot_c", "pub_c", [table("u")])
    assert rows(source.store.connection, "select from event_store.change_events") == []


def test_order_by_seq_is_the_order_of_commits_also_after_a_purge(source: Source) -> None:
    source.commit(*[inserted(n) for n in range(1000)])
    source.commit(updated(3))
    source.commit(truncated())
    source.emit_all()
    source.backfill(1)
    source.store.purge_wal_events("c", later(10**9))
    shown: LiteralString = "event_store.change_events where action <> 'deleted' order by seq"
    found = [row for row in rows(source.store.connection, f"select commit_lsn, commit_idx from {shown}") if row[0]]
    assert len(found) == 1002
    assert found == sorted(found)


def test_a_time_that_no_calendar_has_is_null(source: Source) -> None:
    """The pattern rejects wrong fields, the calendar rejects wrong days; a valid time is read in every DateStyle."""
    fine = {
        "2026-01-31T00:00:00Z": "2026-01-31 00:00:00.000000",
        "2028-02-29T23:59:59.999999+14:59": "2028-02-29 09:00:59.999999",
        "2000-02-29 00:00:00-1430": "2000-02-29 14:30:00.000000",
        "0001-01-01T00:00:00Z": "0001-01-01 00:00:00.000000",
        "9999-12-31T23:59:59-14": "10000-01-01 13:59:59.000000",
    }
    forged = [
        *("2026-02-30T00:00:00Z", "2026-02-29T00:00:00Z", "1900-02-29T00:00:00Z", "2026-04-31T00:00:00Z"),
        *("2026-06-31T00:00:00Z", "2026-09-31T00:00:00Z", "2026-11-31T00:00:00Z", "2026-01-00T00:00:00Z"),
        *("2026-13-01T00:00:00Z", "0000-01-01T00:00:00Z", "294277-01-01T00:00:00Z", "999999-12-31T00:00:00Z"),
        *("2026-01-01T24:00:00Z", "2026-01-01T00:00:00+16:00", "2026-01-01", "infinity", "", "2026-01-31T00:00:00Z\n"),
    ]
    changes = source.changes(*[inserted(n) for n in range(len(fine) + len(forged))])
    source.save([with_data(change, committed_at=at) for change, at in zip(changes, [*fine, *forged], strict=True)])
    source.emit()
    connection = source.store.connection
    at: LiteralString = "to_char(committed_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS.US')"
    for style in ("ISO, MDY", "German", "SQL, DMY"):
        connection.execute("select set_config('datestyle', %s, false)", (style,))
        found = rows(connection, f"select {at} from event_store.change_events order by seq")
        assert [row[0] for row in found] == [*fine.values(), *[None] * len(forged)]


def test_the_next_changes_are_read_by_the_index_of_events(source: Source) -> None:
    source.commit(*[inserted(n) for n in range(2000)])
    source.emit_all()
    connection = source.store.connection
    connection.execute("analyze event_store.events")
    next_ones: LiteralString = "select * from event_store.change_events where seq > 1990 order by seq limit 10"
    text = json.dumps(value(connection, f"explain (format json) {next_ones}"))
    assert "events_pkey" in text
    assert '"Sort"' not in text
