"""Changes of columns and partitions: the history records them, and the rows that it leaves are the source's."""

from typing import Any, LiteralString

import pytest

from millrace.capture import backfill as backfilling
from millrace.capture.backfill import Backfill
from millrace.capture.declaration import CapturedTable
from millrace.capture.drain import CaptureReport
from millrace.capture.source.chunks import read_chunk
from tests.support.capturing.captured import Captured, assert_left, declared, schemas_told
from tests.support.patience import patience

# DDL that changes values of a table's rows, or names of its columns, without a change of a row
REWRITES: dict[str, LiteralString] = {
    "type": "alter table {} alter amount type text using 'was ' || amount",
    "precision": "alter table {} alter amount type numeric(12, 4)",
    "constant": "alter table {} add extra int default 7",
    "volatile": "alter table {} add extra uuid default gen_random_uuid()",
    "identity": "alter table {} add extra int generated always as identity",
    "no_default": "alter table {} add extra int",
    "less": "alter table {} drop name",
    "renamed": "alter table {} rename name to title",
    "exchanged": "alter table {} rename name to other; alter table {} rename note to name;"
    " alter table {} rename other to note",
}
OTHERS = CapturedTable("others")


def run(captured: Captured, statement: str) -> None:
    captured.run(statement)


@pytest.fixture
def both(captured: Captured) -> Captured:
    """Capture another table and items, with rows from its backfill and a later one."""
    return filled(captured, "items")


@pytest.fixture
def many(captured: Captured) -> Captured:
    """Capture a table like items for each kind of change."""
    for name in REWRITES:
        run(captured, f"create table {name} (like items including all)")
    return filled(captured, *REWRITES)


def filled(captured: Captured, *names: str) -> Captured:
    captured.run("create table others (id int primary key)", "insert into others select generate_series(1, 10)")
    for name in names:
        run(captured, f"alter table {name} add note text default 'noted'")
        run(captured, f"insert into {name} select n, 'read', 1.5 from generate_series(1, 10) n")
    made = declared(captured, OTHERS, *map(CapturedTable, names))
    made.drain()
    for name in names:
        run(captured, f"insert into {name} values (11, 'came', 2.5, true, 'noted')")
    made.drain()
    return made


def names(schema: dict[str, Any]) -> list[str]:
    return [column["name"] for column in schema["columns"]]


def events(captured: Captured, table: str = "items") -> int:
    return int(captured.value("select count(*) from event_store.events where decider = %s", f"table:public.{table}"))


def all_events(captured: Captured) -> int:
    return int(captured.value("select count(*) from event_store.events"))


def test_new_columns_are_told_before_rows_and_their_table_is_read_anew(many: Captured) -> None:
    with many.process() as process:
        process.drain(budget_s=patience(), idle_s=0)
        for name, change in REWRITES.items():
            for statement in (change, "insert into {} (id) values (12)", "insert into {} (id) values (13)"):
                run(many, statement.replace("{}", name))
        process.drain(budget_s=patience(), idle_s=0)
    assert_left(many, "others", *REWRITES)
    for name in REWRITES:
        of_it = [c["action"] for c in many.changes() if c["source_table_name"] == name]
        changes = [action for action in of_it if action != "backfilled"]
        assert changes == ["inserted", "schema_changed", "inserted", "inserted"], name
        (data,) = schemas_told(many, name)
        assert data["record"] is None
        assert names(data["old"]) == ["id", "name", "amount", "ok", "note"]
        columns = f"select json_object_keys(row_to_json(t)) from {name} t where id = 12"
        assert names(data["new"]) == [column for (column,) in many.source.connection.execute(columns.encode())]
        assert data["old"] != data["new"]
    assert events(many, "others") == 10
    before = all_events(many)
    assert many.drain().backfilled == 0
    assert all_events(many) == before


def test_new_columns_that_no_row_follows_are_found_by_the_next_run(many: Captured) -> None:
    for name, change in REWRITES.items():
        run(many, change.replace("{}", name))
    many.drain()
    assert_left(many, "others", *REWRITES)
    before = all_events(many)
    many.drain()
    assert all_events(many) == before
    for name in REWRITES:
        run(many, f"insert into {name} (id) values (12)")
    many.drain()
    # each change is recorded nevertheless, and no row is read twice
    assert all_events(many) == before + 2 * len(REWRITES)
    assert [name for name in REWRITES if len(schemas_told(many, name)) != 1] == []
    assert_left(many, "others", *REWRITES)
    assert events(many, "others") == 10


def test_another_replica_identity_is_told_and_reads_nothing(both: Captured) -> None:
    both.run("alter table items replica identity full", "update items set name = 'b' where id = 1")
    assert both.drain().backfilled == 0
    (data,) = schemas_told(both)
    assert (data["old"]["identity"], data["new"]["identity"]) == ("default", "full")
    assert [column["key"] for column in data["old"]["columns"]] == [True, False, False, False, False]
    assert [column["key"] for column in data["new"]["columns"]] == [True, True, True, True, True]
    assert events(both) == 13
    assert_left(both, "items", "others")


def test_types_are_named_with_their_precision(both: Captured) -> None:
    both.run("create type mood as enum ('calm')")
    both.run(
        "alter table items add a numeric(10, 2), add b varchar(20), add c char(3), add d text[], add e mood,"
        " add f timestamptz, add g numeric(5, 0)",
        "insert into items (id) values (12)",
    )
    both.drain()
    (data,) = schemas_told(both)
    assert [column["type"] for column in data["new"]["columns"][5:]] == [
        "numeric(10,2)", "character varying(20)", "character(3)", "text[]", "public.mood", "timestamp with time zone",
        "numeric(5,0)",
    ]  # fmt: skip


def test_new_columns_while_a_table_is_read_have_it_read_anew(both: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfilling, "FIRST_CHUNK", 4)
    original = read_chunk
    reads = 0

    def reading(*args: Any, **named: Any) -> object:  # noqa: ANN401 - passed on
        nonlocal reads
        chunk = original(*args, **named)
        reads += 1
        if reads == 1:
            both.run("alter table items add b int default 2", "insert into items (id) values (50)")
        return chunk

    refresh = Backfill.refresh
    waiting: list[tuple[bool, bool]] = []

    def refreshing(self: Backfill) -> None:
        before = self.waits_for_changes
        refresh(self)
        waiting.append((before, self.waits_for_changes))

    monkeypatch.setattr(backfilling, "read_chunk", reading)
    monkeypatch.setattr(Backfill, "refresh", refreshing)
    both.run("alter table items add a int default 1", "insert into items (id) values (40)")
    both.drain()
    assert_left(both, "items", "others")
    # rows read before the change are read again
    assert waiting == [(True, False)]
    assert [names(data["new"])[5:] for data in schemas_told(both)] == [["a"], ["a", "b"]]


@pytest.fixture
def parts(captured: Captured) -> Captured:
    """Capture a partitioned table with a partition and rows in it."""
    captured.run(
        "create table parts (id int primary key, name text) partition by range (id)",
        "create table parts_1 partition of parts for values from (0) to (100)",
        "insert into parts select n, 'read' from generate_series(1, 10) n",
    )
    made = declared(captured, CapturedTable("parts"))
    made.drain()
    return made


def test_a_new_partition_without_rows_reads_nothing(parts: Captured) -> None:
    parts.run("create table parts_2 partition of parts for values from (100) to (200)")
    assert parts.drain() == CaptureReport()
    number = parts.value("select backfill_offset from event_store.captured_tables")
    parts.run("insert into parts values (100, 'came')")
    parts.drain()
    assert parts.drain().backfilled == 0
    assert parts.value("select backfill_offset from event_store.captured_tables") == number
    assert_left(parts, "parts")
    assert events(parts, "parts") == 11


def test_partitions_that_come_and_go_bring_and_take_their_rows_alone(parts: Captured) -> None:
    parts.run(
        "create table parts_2 (id int primary key, name text); insert into parts_2 values (100, 'came along')",
        "alter table parts attach partition parts_2 for values from (100) to (200)",
        "insert into parts values (101, 'came')",
    )
    parts.drain()
    assert_left(parts, "parts")
    assert events(parts, "parts") == 12
    parts.run("alter table parts detach partition parts_2")
    parts.drain()
    assert_left(parts, "parts")
    assert [(c["action"], c["record_pk"]) for c in parts.changes()][-2:] == [("deleted", "[100]"), ("deleted", "[101]")]
    assert events(parts, "parts") == 14
    parts.run("create table parts_3 partition of parts for values from (200) to (300)", "drop table parts_1")
    parts.drain()
    assert parts.replayed() == []
    assert schemas_told(parts) == []


def test_a_column_of_a_partitioned_table_is_told_once(parts: Captured) -> None:
    parts.run(
        "create table parts_2 partition of parts for values from (100) to (200)",
        "alter table parts add extra int default 7", "insert into parts values (20, 'one'), (120, 'other')",
        "alter table parts rename name to title", "update parts set title = 'x' where id in (1, 120)",
    )  # fmt: skip
    parts.drain()
    assert_left(parts, "parts")
    changes = [c["action"] for c in parts.changes() if c["action"] != "backfilled"]
    assert changes == ["schema_changed", "inserted", "inserted", "schema_changed", "updated", "updated"]
