"""Existing rows: read chunk by chunk, in the text form of messages, with the snapshot of each read."""

import json
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import Connection

from millrace.capture import backfilled_rows as backfilling
from millrace.capture.backfilled_rows import backfilled_rows
from millrace.capture.declaration import CapturedTable
from millrace.capture.decoding.changes import ChangeDecoder
from millrace.capture.decoding.pgoutput import Lsn, Relation, WholeRow
from millrace.capture.source.chunks import Chunk, TableMissing, TableUnreadable, _query, read_chunk
from millrace.capture.source.connection import connect_source, flush_lsn, next_xid
from millrace.capture.source.ordering import key_parts
from millrace.capture.source.slot import create_slot
from millrace.capture.source.tables import find_table, with_key
from tests.support.capturing.captures import ReadRow, of_read
from tests.support.capturing.given import given
from tests.support.capturing.odd_types import CASELESS
from tests.support.capturing.sources import Source
from tests.support.factories import rows as query
from tests.support.factories import start, value, wait_blocked
from tests.support.patience import patience

T = CapturedTable("t")


@pytest.fixture
def reading(source: Source) -> Iterator[Connection]:
    with connect_source(source.dsn) as connection:
        yield connection


def read_all(connection: Connection, table: CapturedTable = T, limit: int = 3) -> list[WholeRow]:
    """Read a table to its end; assert that no chunk is larger than necessary."""
    found: list[WholeRow] = []
    chunk = None
    while chunk is None or not chunk.is_last:
        chunk = read_chunk(connection, table, None if chunk is None else chunk.last_key, limit)
        assert len(chunk.rows) <= limit
        found.extend(chunk.rows)
    return found


def backfilled(chunk: Chunk, generation: int = 1, offset: int = 1, before: int = 0) -> list[ReadRow]:
    return of_read(backfilled_rows(chunk, T, "shop", generation, offset, before))


def sees(connection: Connection, chunk: Chunk, xid: str) -> bool:
    """Return whether the snapshot of the chunk sees this transaction."""
    query = "select pg_visible_in_snapshot(%s::text::xid8, %s::text::pg_snapshot)"
    return bool(value(connection, query, xid, chunk.snapshot))


def test_every_row_is_read_once_in_the_order_of_the_key(reading: Connection, source: Source) -> None:
    source.run("create table t (id int primary key, note text)")
    for number in (0, 1, 2, 3, 6, 7):
        source.run("truncate t")
        source.connection.execute("insert into t select n * 10, n from generate_series(%s, 1, -1) n", (number,))
        assert read_all(reading) == [(f"{n * 10}".encode(), f"{n}".encode()) for n in range(1, number + 1)]
        whole = read_chunk(reading, T, None, 7)
        assert (len(whole.rows), whole.is_last) == (number, number < 7)
        assert whole.last_key == ((f"{number * 10}",) if number else None)
    last = read_chunk(reading, T, ("70",), 7)
    assert (last.rows, last.last_key, last.is_last) == ([], ("70",), True)


def test_a_key_of_several_columns_is_read_in_its_index_order(reading: Connection, source: Source) -> None:
    source.run(
        "create table t (n int, note text, at date, primary key (at, note))",
        "insert into t values (1, 'b', '2024-01-01'), (2, E'a\\t\\\\\\n''\"', '2024-01-01'), (3, '', '2024-01-02'), (4, 'a', '2023-01-01')",
    )
    assert [values[0] for values in read_all(reading, limit=1)] == [b"4", b"2", b"1", b"3"]
    assert read_chunk(reading, T, None, 2).last_key == ("2024-01-01", "a\t\\\n'\"")


@pytest.mark.parametrize("second", ["text", "extensions.caseless"])
def test_the_next_chunk_is_found_by_the_index_of_the_key(reading: Connection, source: Source, second: str) -> None:
    source.run(*CASELESS)
    source.run(f"create table t (n int, note {second}, at date, primary key (at, note))")
    source.run("insert into t select n, n::text, '2025-01-01' from generate_series(1, 10000) n", "analyze t")
    found = find_table(reading, "public", "t")
    assert found is not None
    asked = _query(found, T, key_parts(reading, found.oid, ("at", "note")), ("2025-01-01", "5000"), 10, None)
    inner = asked.as_string(reading).removeprefix("copy (").removesuffix(") to stdout")
    explained = [line for (line,) in query(reading, f"explain {inner}")]
    scans = [line for line in explained if "Scan" in line and "Subquery" not in line]
    assert [line for line in scans if "using t_pkey" not in line] == []
    # one scan for each schema of operators; only the results of these scans are sorted
    assert len(scans) == (1 if second == "text" else 2)
    assert len([line for line in explained if "Sort" in line and "Sort Key" not in line]) <= len(scans) - 1


def test_rows_that_share_a_declared_key_come_together(reading: Connection, source: Source) -> None:
    source.run(
        "create table t (k int not null, n int)",
        "alter table t replica identity full",
        "insert into t select n / 4, n from generate_series(0, 9) n",
    )
    table = CapturedTable("t", key=("k",))
    first = read_chunk(reading, table, None, 1)
    assert ([values[0] for values in first.rows], first.last_key, first.is_last) == ([b"0"] * 4, ("0",), False)
    second = read_chunk(reading, table, first.last_key, 5)
    assert [values[0] for values in second.rows] == [b"1"] * 4 + [b"2"] * 2


def test_the_filter_and_the_columns_are_the_declared_ones(reading: Connection, source: Source) -> None:
    source.run(
        "create table t (id int primary key, n int, secret text, twice int generated always as (n * 2) stored, gone int)",
        "alter table t drop gone",
        "insert into t values (1, 1, 'a'), (2, 2, 'b'), (3, null, 'c')",
    )
    chunk = read_chunk(reading, CapturedTable("t", columns=("n", "id"), where="n > 1 or n is null"), None, 10)
    assert chunk.rows == [(b"2", b"2"), (b"3", None)]
    assert [column.name for column in chunk.relation.columns] == ["id", "n"]
    # a generated column is captured if the server publishes it
    generated = ["twice"] if source.connection.info.server_version >= 180000 else []
    all_columns = read_chunk(reading, T, None, 10).relation.columns
    assert [column.name for column in all_columns] == ["id", "n", "secret", *generated]


def test_tables_are_named_oddly(reading: Connection, source: Source) -> None:
    source.run(
        'create schema "a ""b"',
        'create table "a ""b"."T.t{}" ("I d%s" int primary key)',
        'insert into "a ""b"."T.t{}" values (1)',
    )
    table = CapturedTable("T.t{}", 'a "b', where='"I d%s" % 2 = 1')
    assert read_all(reading, table) == [(b"1",)]


def test_partitions_are_read_as_one_table_and_heirs_are_not(reading: Connection, source: Source) -> None:
    source.run(
        "create table t (id int primary key) partition by range (id)",
        "create table t1 partition of t for values from (0) to (10)",
        "create table t2 partition of t for values from (10) to (20)", "insert into t values (15), (5)",
        "create table parent (id int primary key)", "create table child () inherits (parent)",
        "insert into parent values (1)", "insert into child values (2)",
    )  # fmt: skip
    assert read_all(reading) == [(b"5",), (b"15",)]
    assert read_all(reading, CapturedTable("parent")) == [(b"1",)]


def test_the_position_is_behind_every_commit_that_was_seen(source: Source) -> None:
    source.run("create table t (id int primary key)")
    source.listen()
    with connect_source(source.dsn) as reading:
        for n in range(20):
            # an asynchronous commit, visible before it is on disk, and then a rollback
            source.run("set synchronous_commit = off")
            source.connection.execute("insert into t values (%s)", (n,))
            source.run("begin; insert into t values (100); rollback")
            chunk = read_chunk(reading, T, None, 100)
            assert len(chunk.rows) == n + 1
            assert flush_lsn(reading)[0] >= chunk.high_lsn
    ends = [change for change in source.messages() if hasattr(change, "end_lsn")]
    assert max(getattr(change, "end_lsn", Lsn(0)) for change in ends) <= flush_lsn(source.connection)[0]


def test_a_chunk_says_what_it_saw_and_waits_for_who_has_the_table(source: Source) -> None:
    cases: tuple[tuple[str, list[WholeRow]], ...] = (
        ("insert into t values (2, 'b')", [(b"1", b"a")]), ("truncate t", []),
        ("alter table t alter id type text", [(b"1", b"a")]), ("alter table t drop note", [(b"1",)]),
        ("alter table t add n int not null default 0", [(b"1", b"a", b"0")]),
    )  # fmt: skip
    for change, found in cases:
        source.run("drop table if exists t", "create table t (id int primary key, note text)")
        source.run("insert into t values (1, 'a')")
        alone = not change.startswith("insert")
        with psycopg.connect(source.dsn) as other, connect_source(source.dsn) as reading:
            other.execute(change.encode())
            xid = value(other, "select pg_current_xact_id()::text")
            if alone:
                with pytest.raises(psycopg.errors.LockNotAvailable):
                    read_chunk(reading, T, None, 10, 0.05)
            call = start(lambda reading=reading: read_chunk(reading, T, None, 10))  # type: ignore[misc]
            if alone:
                wait_blocked(source.connection, reading.info.backend_pid)
                other.commit()
            chunk = call.result(patience())
            other.commit()
            # an empty chunk would look like a table without rows
            assert [tuple(row) for row in chunk.rows] == found
            assert sees(reading, chunk, xid) is alone
            later = read_chunk(reading, T, None, 10)
            assert sees(reading, later, xid)
            assert len(later.rows) == len(found) + (not alone)
            assert chunk.high_lsn < later.high_lsn or alone
            assert (later.read_at - chunk.read_at).total_seconds() > 0


def test_a_table_that_is_not_there_or_has_no_key_is_refused(reading: Connection, source: Source) -> None:
    source.run("create table t (id int)")
    for table, detail in (
        (CapturedTable("nothing"), "does not exist"), (CapturedTable("t", "nowhere"), "does not exist"),
        (CapturedTable("t"), "names its rows"),
    ):  # fmt: skip
        with pytest.raises(TableMissing, match=detail):
            read_chunk(reading, table, None, 10)


def test_rows_that_a_policy_hides_are_an_error(source: Source) -> None:
    source.run(
        "create table t (id int primary key)", "insert into t values (1)", "alter table t enable row level security",
        "create role reader login", "grant select on t to reader",
    )  # fmt: skip
    try:
        with connect_source(source.dsn) as reading:
            reading.execute("set role reader")
            with pytest.raises(TableUnreadable, match="row-level security"):
                read_chunk(reading, T, None, 10)
    finally:
        source.run("drop owned by reader", "drop role reader")


def test_a_backfilled_row_is_as_its_insert_would_be(source: Source) -> None:
    source.run("create table t (a text, b int, n numeric, primary key (b, a))")
    with connect_source(source.dsn) as reading:
        reading.execute(f"create publication {source.slot} for table t".encode())
        create_slot(reading, source.slot)
        source.run("insert into t values ('x,\"y', 7, 1.50)")
        to_changes = ChangeDecoder([T], "shop", 1, next_xid(reading))
        (change,) = [change for raw in given(reading, source.slot) for change in to_changes.feed(raw)]
        chunk = read_chunk(reading, T, None, 10)
    (row,) = backfilled(chunk)
    assert row.decider_id == change.decider_id == '["x,\\"y",7]'
    inserted, read = json.loads(change.data or ""), json.loads(row.data or "")
    assert read["record"] == inserted["record"]
    assert read["source"] == inserted["source"]
    assert (read["snapshot"], read["committed_at"][-1]) == (chunk.snapshot, "Z")
    assert read.keys() - inserted.keys() == {"snapshot"}


def test_a_row_s_ids_are_those_of_its_backfill(reading: Connection, source: Source) -> None:
    source.run("create table t (id int primary key)", "insert into t values (1), (2)")
    chunk = read_chunk(reading, T, None, 10)
    first, second = backfilled(chunk)
    assert first.event_id < second.event_id
    source.run("insert into t values (3)")
    # read again by the same reader, as after a kill
    assert [row.event_id for row in backfilled(read_chunk(reading, T, None, 2))] == [first.event_id, second.event_id]
    assert next(row.event_id for row in backfilled(chunk, before=1)) == second.event_id
    others = [*backfilled(chunk, generation=2), *backfilled(chunk, offset=2), *backfilled(chunk, before=2)]
    assert len({row.event_id for row in others} - {first.event_id, second.event_id}) == 6


def test_an_unfit_row_says_so_alone(reading: Connection, source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    source.run(
        "create table t (id int primary key, doc json)",
        """insert into t values (1, '"\\u0000"'), (2, '1'), (3, to_json(repeat('x', 500))), (4, '4')""",
    )
    monkeypatch.setattr(backfilling, "MAX_DATA_CHARACTERS", 500)
    rows = backfilled(read_chunk(reading, T, None, 10))
    assert [(row.decider_id, row.data is None) for row in rows] == [
        ("[1]", True), ("[2]", False), ("[3]", True), ("[4]", False),
    ]  # fmt: skip
    bad, first, large, last = (row.fault for row in rows)
    assert bad == "column doc is JSON with a NUL character, which jsonb does not hold"
    assert "characters; at most" in str(large)
    assert (first, last) == (None, None)


def test_the_key_is_of_the_replica_identity_or_declared_or_primary(source: Source) -> None:
    source.run(
        "create table d (id int primary key, code text not null unique)", "create table i (like d including all)",
        "create table f (like d including all)", "create table n (id int, code text)",
        "alter table i replica identity using index i_code_key", "alter table f replica identity full",
    )  # fmt: skip
    found = {name: with_key(source.connection, CapturedTable(name)).key for name in ("d", "i", "f", "n", "none")}
    assert found == {"d": ("id",), "i": ("code",), "f": ("id",), "n": None, "none": None}
    assert with_key(source.connection, CapturedTable("f", key=("code",))).key == ("code",)


def test_the_described_table_is_as_the_stream_describes_it(reading: Connection, source: Source) -> None:
    source.run(
        "create table d (b varchar(10), a numeric(10,2), primary key (b))",
        "create table f (like d including all)",
        "alter table f replica identity full",
    )
    source.listen()
    source.run("insert into d values ('b', 1)", "insert into f values ('b', 1)")
    described = [message for message in source.messages() if isinstance(message, Relation)]
    assert [read_chunk(reading, CapturedTable(name), None, 1).relation for name in ("d", "f")] == described
