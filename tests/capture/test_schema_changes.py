"""Changes of columns and partitions: the history says them, and the rows that it leaves are the source's."""

import json
from contextlib import suppress
from typing import Any, LiteralString

import pytest

from millrace.resources.capture import backfill as backfilling
from millrace.resources.capture import drain as draining
from millrace.resources.capture.backfill import Backfill
from millrace.resources.capture.declaration import Capture, CapturedTable
from millrace.resources.capture.drain import CaptureReport
from millrace.resources.capture.schema_changes import SchemaStore
from millrace.resources.capture.source.chunks import read_chunk
from millrace.resources.capture.store import CaptureStore
from tests.support.capturing.captured import Captured, Killed, captured, dying, new_source
from tests.support.factories import rows, value

__all__ = ["captured", "new_source"]

# what changes the values of rows, or the names of their columns, without a change of a row
REWRITES: dict[str, LiteralString] = {
    "a type": "alter table items alter amount type text using 'was ' || amount",
    "a precision": "alter table items alter amount type numeric(12, 4)",
    "a default": "alter table items add extra int default 7",
    "another default for each row": "alter table items add extra uuid default gen_random_uuid()",
    "an identity": "alter table items add extra int generated always as identity",
    "no default": "alter table items add extra int",
    "a column less": "alter table items drop name",
    "another name": "alter table items rename name to title",
    "two names exchanged": "alter table items rename name to other; alter table items rename note to name;"
    " alter table items rename other to note",
}


@pytest.fixture
def both(captured: Captured) -> Captured:
    """Capture items, of which some rows were read and one came later, and another table."""
    captured.source.run(
        "create table others (id int primary key); alter table items add note text default 'noted'",
        "insert into items select n, 'read', 1.5 from generate_series(1, 10) n",
        "insert into others select generate_series(1, 10)",
    )
    tables = (CapturedTable("items"), CapturedTable("others"))
    made = Captured(captured.source, Capture("shop", captured.capture.source, tables), captured.dsn, captured.store)
    made.drain()
    made.source.run("insert into items values (11, 'came', 2.5, true, 'noted')")
    made.drain()
    return made


def written(row: dict[str, Any]) -> str:
    return json.dumps(row, sort_keys=True)


def assert_left(captured: Captured, *names: LiteralString) -> None:
    """Look that the rows that the history leaves are the source's."""
    rows_left: dict[tuple[str, str], dict[str, Any]] = {}
    for decider, key, action, data in rows(
        captured.store, 'select decider, decider_id, event, data from event_store.events order by "offset"'
    ):
        if action == "deleted":
            rows_left.pop((decider, key), None)
        elif data["record"] is not None:
            # a row has the columns that its last change says, whatever it had before
            before = rows_left.get((decider, key), {})
            rows_left[decider, key] = {c: before[c] for c in data.get("unavailable", ())} | data["record"]
    found = [row for name in names or ("items", "others") for row in captured.table(name)]
    assert sorted(rows_left.values(), key=written) == sorted(found, key=written)


def told(captured: Captured) -> list[dict[str, Any]]:
    """Return what the log says of the columns of items."""
    found = rows(
        captured.store,
        "select data from event_store.events where event = 'schema_changed' and decider = 'table:public.items'"
        " and decider_id = 'schema' order by \"offset\"",
    )
    return [data for (data,) in found]


def names(schema: dict[str, Any]) -> list[str]:
    return [column["name"] for column in schema["columns"]]


def events(captured: Captured, table: str = "items") -> int:
    return int(
        value(captured.store, "select count(*) from event_store.events where decider = %s", f"table:public.{table}")
    )


@pytest.mark.parametrize("change", REWRITES)
def test_a_change_of_the_columns_is_told_before_the_first_row_that_has_them_and_the_table_alone_is_read_anew(
    both: Captured, change: str
) -> None:
    with both.process() as process:
        process.drain(budget_s=60, idle_s=0)
        both.source.run(REWRITES[change], "insert into items (id) values (12)", "insert into items (id) values (13)")
        process.drain(budget_s=60, idle_s=0)
        assert_left(both)
    actions = [c["action"] for c in both.changes() if c["action"] != "backfilled"]
    assert actions == ["inserted", "schema_changed", "inserted", "inserted"]
    (data,) = told(both)
    assert data["record"] is None
    assert names(data["old"]) == ["id", "name", "amount", "ok", "note"]
    assert sorted(names(data["new"])) == sorted(both.table()[0])
    assert data["old"] != data["new"]
    assert events(both, "others") == 10
    before = events(both)
    assert both.drain().backfilled == 0
    assert events(both) == before
    assert_left(both)


@pytest.mark.parametrize("change", REWRITES)
def test_a_change_of_the_columns_that_no_change_of_a_row_follows_is_found_by_the_next_run(
    both: Captured, change: str
) -> None:
    both.source.run(REWRITES[change])
    both.drain()
    assert_left(both)
    before = events(both)
    both.drain()
    assert events(both) == before
    both.source.run("insert into items (id) values (12)")
    both.drain()
    # it is told nevertheless, and nothing is read twice
    assert events(both) == before + 2
    assert len(told(both)) == 1
    assert_left(both)
    assert events(both, "others") == 10


def test_another_replica_identity_is_told_and_reads_nothing(both: Captured) -> None:
    both.source.run("alter table items replica identity full", "update items set name = 'b' where id = 1")
    assert both.drain().backfilled == 0
    (data,) = told(both)
    assert (data["old"]["identity"], data["new"]["identity"]) == ("default", "full")
    assert [column["key"] for column in data["old"]["columns"]] == [True, False, False, False, False]
    assert [column["key"] for column in data["new"]["columns"]] == [True, True, True, True, True]
    assert events(both) == 13
    assert_left(both)


def test_types_are_named_with_their_precision(both: Captured) -> None:
    both.source.run("create type mood as enum ('calm')")
    both.source.run(
        "alter table items add a numeric(10, 2), add b varchar(20), add c char(3), add d text[], add e mood,"
        " add f timestamptz, add g numeric(5, 0)",
        "insert into items (id) values (12)",
    )
    both.drain()
    (data,) = told(both)
    assert [column["type"] for column in data["new"]["columns"][5:]] == [
        "numeric(10,2)", "character varying(20)", "character(3)", "text[]", "public.mood", "timestamp with time zone",
        "numeric(5,0)",
    ]  # fmt: skip


# within one transaction and over several, back and forth
WAYS: tuple[LiteralString, ...] = (
    "begin; insert into items (id) values (20); alter table items add a int default 1; insert into items (id) values (21);"
    " alter table items drop a; insert into items (id) values (22); commit",
    "alter table items add b int default 2",
    "update items set b = 3 where id = 20",
    "alter table items rename b to c",
    "begin; update items set c = 4 where id = 21; truncate items; insert into items (id) values (30); commit",
    "alter table items drop c",
    "insert into items select n from generate_series(31, 40) n",
)
ORDER = [
    "inserted", "schema_changed", "inserted", "schema_changed", "inserted", "schema_changed", "updated",
    "schema_changed", "updated", "truncated",
]  # fmt: skip

# where a run is killed: before or after which call
STEPS: dict[str, tuple[object, str, bool]] = {
    "before the columns are kept": (SchemaStore, "keep_schemas", False),
    "after the columns were kept": (SchemaStore, "keep_schemas", True),
    "before the commit": (CaptureStore, "store_changes", True),
    "after the commit": (draining, "advance", False),
    "after the slot was moved": (draining, "advance", True),
    "before the table may be read": (CaptureStore, "publish_tables", False),
    "after the table may be read": (CaptureStore, "publish_tables", True),
    "before it is looked for": (Backfill, "look_again", False),
    "before changes are events": (CaptureStore, "emit_changes", False),
    "after a chunk was read": (backfilling, "read_chunk", True),
    "after a chunk became events": (CaptureStore, "emit_backfill", True),
    "before the end": (CaptureStore, "finish_backfill", False),
}


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_step_each_change_of_the_columns_is_told_once_and_the_rows_are_the_source_s(
    both: Captured, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr(draining, "MOST_CHANGES", 6)
    monkeypatch.setattr(backfilling, "FIRST_CHUNK", 4)
    place, name, after = STEPS[step]
    original = getattr(place, name)
    with both.process() as process:
        both.source.run(*WAYS)
        monkeypatch.setattr(place, name, dying(original, 1, after=after))
        with pytest.raises(Killed):
            process.drain(budget_s=60, idle_s=0)
    monkeypatch.setattr(place, name, dying(original, 2, after=after))
    with suppress(Killed):
        both.drain()
    monkeypatch.setattr(place, name, original)
    both.drain()
    assert_all_is_told(both)


def assert_all_is_told(both: Captured) -> None:
    changes = [c for c in both.changes() if c["source_table_name"] == "items" and c["action"] != "backfilled"]
    streamed = [c for c in changes if c["commit_lsn"] is not None and c["action"] != "deleted"]
    assert [c["action"] for c in streamed[1:]] == [*ORDER, "inserted", "schema_changed", *["inserted"] * 10]
    schemas = told(both)
    assert [before["new"] for before in schemas[:-1]] == [after["old"] for after in schemas[1:]]
    assert [names(data["new"])[5:] for data in schemas] == [["a"], [], ["b"], ["c"], []]
    assert_left(both)
    assert events(both, "others") == 10


def test_a_slot_that_gives_changes_again_gives_the_same_changes_of_columns(both: Captured) -> None:
    name = value(both.store, "select slot from event_store.captures")
    # a copy of the slot stays where it was
    both.source.connection.execute("select pg_copy_logical_replication_slot(%s, 'rewound_ddl')", (name,))
    both.source.run(*WAYS)
    both.drain()
    before = both.changes()
    both.source.connection.execute("select pg_drop_replication_slot(%s)", (name,))
    both.source.connection.execute("select pg_copy_logical_replication_slot('rewound_ddl', %s)", (name,))
    both.source.connection.execute("select pg_drop_replication_slot('rewound_ddl')")
    report = both.drain()
    assert (report.stored, report.backfilled) == (0, 0)
    assert report.replayed > len(ORDER)
    assert both.changes() == before
    assert_all_is_told(both)


def test_a_change_of_the_columns_while_a_table_is_read_has_it_read_anew(
    both: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfilling, "FIRST_CHUNK", 4)
    original = read_chunk
    reads = 0

    def reading(*args: Any, **named: Any) -> object:  # noqa: ANN401 - passed on
        nonlocal reads
        chunk = original(*args, **named)
        reads += 1
        if reads == 1:
            both.source.run("alter table items add b int default 2", "insert into items (id) values (50)")
        return chunk

    look_again = Backfill.look_again
    waiting: list[tuple[bool, bool]] = []

    def looking(self: Backfill) -> None:
        before = self.waits_for_changes
        look_again(self)
        waiting.append((before, self.waits_for_changes))

    monkeypatch.setattr(backfilling, "read_chunk", reading)
    monkeypatch.setattr(Backfill, "look_again", looking)
    both.source.run("alter table items add a int default 1", "insert into items (id) values (40)")
    both.drain()
    assert_left(both)
    # what was read before the change is read again
    assert waiting == [(True, False)]
    assert [names(data["new"])[5:] for data in told(both)] == [["a"], ["a", "b"]]


@pytest.fixture
def parts(captured: Captured) -> Captured:
    """Capture a partitioned table with a partition and rows in it."""
    captured.source.run(
        "create table parts (id int primary key, name text) partition by range (id)",
        "create table parts_1 partition of parts for values from (0) to (100)",
        "insert into parts select n, 'read' from generate_series(1, 10) n",
    )
    made = Captured(
        captured.source,
        Capture("shop", captured.capture.source, (CapturedTable("parts"),)),
        captured.dsn,
        captured.store,
    )
    made.drain()
    return made


def test_a_new_partition_without_rows_reads_nothing(parts: Captured) -> None:
    parts.source.run("create table parts_2 partition of parts for values from (100) to (200)")
    assert parts.drain() == CaptureReport()
    number = value(parts.store, "select backfill_offset from event_store.captured_tables")
    parts.source.run("insert into parts values (100, 'came')")
    parts.drain()
    assert parts.drain().backfilled == 0
    assert value(parts.store, "select backfill_offset from event_store.captured_tables") == number
    assert_left(parts, "parts")
    assert events(parts, "parts") == 11


def test_partitions_that_come_and_go_with_their_rows_bring_and_take_these_alone(parts: Captured) -> None:
    parts.source.run(
        "create table parts_2 (id int primary key, name text); insert into parts_2 values (100, 'came along')",
        "alter table parts attach partition parts_2 for values from (100) to (200)",
        "insert into parts values (101, 'came')",
    )
    parts.drain()
    assert_left(parts, "parts")
    assert events(parts, "parts") == 12
    parts.source.run("alter table parts detach partition parts_2")
    parts.drain()
    assert_left(parts, "parts")
    assert [(c["action"], c["record_pk"]) for c in parts.changes()][-2:] == [("deleted", "[100]"), ("deleted", "[101]")]
    assert events(parts, "parts") == 14
    parts.source.run("create table parts_3 partition of parts for values from (200) to (300)", "drop table parts_1")
    parts.drain()
    assert parts.replayed() == []
    assert told(parts) == []


def test_a_column_of_a_partitioned_table_is_told_once(parts: Captured) -> None:
    parts.source.run(
        "create table parts_2 partition of parts for values from (100) to (200)",
        "alter table parts add extra int default 7",
        "insert into parts values (20, 'one'), (120, 'other')",
        "alter table parts rename name to title",
        "update parts set title = 'x' where id in (1, 120)",
    )
    parts.drain()
    assert_left(parts, "parts")
    changes = [c["action"] for c in parts.changes() if c["action"] != "backfilled"]
    assert changes == ["schema_changed", "inserted", "inserted", "schema_changed", "updated", "updated"]
