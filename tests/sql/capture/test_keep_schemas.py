"""`keep_schemas`: the columns of captured tables, and the tables that they cause to be read again."""

from collections.abc import Sequence
from typing import Any

import pytest

from millrace.capture.decoding.pgoutput import Lsn
from millrace.capture.schema_changes import SchemaStore
from millrace.capture.store import RegisteredTable
from tests.support.capturing.captures import START, Source, inserted, later

ID = {"name": "id", "type_oid": 23, "type_modifier": -1, "type": "integer", "key": True}
V = {"name": "v", "type_oid": 25, "type_modifier": -1, "type": "text", "key": False}


def said(*columns: dict[str, Any], lsn: int | None = None, table: str = "t", **more: object) -> dict[str, Any]:
    """Return the columns as the catalog has them, or, with a position, the log."""
    position = {} if lsn is None else {"commit_lsn": str(Lsn(lsn)), "commit_idx": 0}
    return {"schema": "public", "table": table, "identity": "default", "columns": list(columns), **position, **more}


def keep(source: Source, *schemas: dict[str, Any], read_lsn: int = 0) -> int:
    return SchemaStore(source.store.connection).keep_schemas(source.capture, source.token, Lsn(read_lsn), schemas)


def registered(source: Source) -> RegisteredTable:
    (table,) = source.store.captured_tables(source.capture)
    return table


def kept(source: Source) -> Sequence[tuple[int, Lsn, int]]:
    found = SchemaStore(source.store.connection).captured_schemas(source.capture)
    return [(each.at.generation, each.at.commit_lsn, len(each.schema.columns)) for each in found]


@pytest.fixture
def read(source: Source) -> Source:
    """Make a capture of a table: its schema was read at 0x1000, and its backfill has ended."""
    keep(source, said(ID, V, leaves=[1]), read_lsn=START)
    source.backfill(1)
    source.finish()
    return source


def test_columns_begin_where_a_table_is_looked_at_before_it_is_read(source: Source) -> None:
    before = registered(source)
    assert keep(source, said(ID, leaves=[]), read_lsn=START) == 0
    assert kept(source) == [(1, START, 1)]
    assert registered(source).backfill_offset == before.backfill_offset
    # the read rows have the newest columns; the log will show where they came
    assert keep(source, said(ID, V, leaves=[]), read_lsn=START) == 0
    assert kept(source) == [(1, START, 1)]
    source.backfill(1)
    assert keep(source, said(ID, V, leaves=[]), read_lsn=START) == 0


def test_other_names_or_types_have_the_table_read_anew(read: Source) -> None:
    before = registered(read)
    for lsn in (None, START + 1):
        for column in (V | {"name": "w"}, V | {"type_oid": 23}, V | {"type_modifier": 24}, None):
            columns = [ID, column] if column else [ID]
            with read.store.connection.transaction(force_rollback=True):
                assert keep(read, said(*columns, lsn=lsn), read_lsn=START + 2) == 1
                after = registered(read)
                assert (after.published_xid, after.backfill_key, after.rows_read) == (None, None, False)
                assert (after.backfilled_rows, after.backfill_generation) == (0, None)
                assert after.backfill_offset > before.backfill_offset
                # counted once
                assert keep(read, said(*columns, lsn=lsn and lsn + 5), read_lsn=START + 3) == 0
    # a change and its undoing in one read of the log: counted once too
    with read.store.connection.transaction(force_rollback=True):
        assert keep(read, said(ID, lsn=START + 1), said(ID, V, lsn=START + 2), read_lsn=START + 3) == 1
        assert not registered(read).rows_read
        read.store.publish_tables("c", read.token, read.xid)
        read.backfill(1)
        assert keep(read, said(ID, V), read_lsn=START + 4) == 0
    # columns that exchange their names
    second = V | {"name": "w"}
    assert keep(read, said(ID, V, second, lsn=START + 1), read_lsn=START + 1) == 1
    assert keep(read, said(ID, second, V, lsn=START + 2), read_lsn=START + 2) == 1


def test_another_key_or_identity_reads_nothing(read: Source) -> None:
    other = said(ID | {"key": False}, V | {"key": True, "type": "a name"}, lsn=START + 1)
    assert keep(read, {**other, "identity": "full"}, read_lsn=START + 1) == 0
    assert registered(read).rows_read
    assert len(kept(read)) == 2


def test_what_the_log_says_of_before_the_backfill_began_reads_nothing(read: Source) -> None:
    # the catalog has the new columns, and the log reaches them later
    assert keep(read, said(ID, V, V | {"name": "w"}), read_lsn=START + 100) == 1
    read.store.publish_tables("c", read.token, read.xid)
    read.backfill(1)
    wide = [ID, V, V | {"name": "w"}]
    assert keep(read, said(ID, lsn=START + 50), said(*wide, lsn=START + 99), read_lsn=START + 200) == 0
    assert keep(read, said(*wide), read_lsn=START + 200) == 0
    assert keep(read, said(ID, lsn=START + 100), read_lsn=START + 200) == 1


def test_a_table_of_an_older_version_is_compared_with_the_log(read: Source) -> None:
    unknown = "update event_store.captured_tables set read_columns = null, read_lsn = null, columns_lsn = null"
    read.store.connection.execute(unknown)
    assert keep(read, said(ID), read_lsn=START) == 0
    assert keep(read, said(ID, V, lsn=START + 1), read_lsn=START + 1) == 0
    assert keep(read, said(ID, lsn=START + 2), read_lsn=START + 2) == 1


def test_partitions_that_go_or_come_with_rows_have_the_table_read_anew(read: Source) -> None:
    for leaves, filled, rereads in (("1", "", 0), ("12", "", 0), ("12", "2", 1), ("2", "", 1), ("", "", 1)):
        with read.store.connection.transaction(force_rollback=True):
            schema = said(ID, V, leaves=[*map(int, leaves)], filled=[*map(int, filled)])
            assert keep(read, schema, read_lsn=START) == rereads
            assert registered(read).leaves == [*map(int, leaves)]


def test_schemas_that_no_replay_reaches_are_left_out(read: Source) -> None:
    for number in range(3):
        keep(read, said(ID, V | {"name": f"v{number}"}, lsn=read.lsn), read_lsn=read.lsn)
        read.commit(inserted(number))
    changed = [lsn for _, lsn, _ in kept(read)]
    read.emit_all()
    read.store.purge_wal_events("c", later(10**9), 2)
    keep(read, said(ID, lsn=read.lsn), read_lsn=read.lsn)
    # the second change was the last one purged: the schema that it is compared with is left
    assert [lsn for _, lsn, _ in kept(read)] == [*changed[1:], read.lsn]
    read.commit(inserted(9))
    read.emit_all()
    read.begin()
    keep(read, said(ID, V, lsn=read.lsn), read_lsn=read.lsn)
    assert [(generation, columns) for generation, _, columns in kept(read)] == [(1, 1), (2, 2)]
