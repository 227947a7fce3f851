"""For every kind of key, each row is captured once, with its values in the table."""

from collections.abc import Sequence

import pytest

from millrace.capture import backfill
from millrace.capture.declaration import CapturedTable
from millrace.capture.source.published import published_tables
from tests.support.capturing.captured import Captured, declared, left
from tests.support.capturing.odd_types import CASELESS
from tests.support.patience import patience


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read few rows at a time: a wrong key order shows between two chunks."""
    monkeypatch.setattr(backfill, "CHUNK", 2)


# a type, the statements that create it, and values for more than two chunks
TYPES: dict[str, tuple[tuple[str, ...], str, Sequence[str]]] = {
    "enum": (("create type mood as enum ('sad', 'ok', 'happy', 'a b', 'Z')",), "mood", ("Z", "a b", "happy", "ok", "sad")),
    # one value is older than the domain's constraint
    "domain of an enum": (("create domain state as mood",), "state", ("Z", "a b", "happy", "ok", "sad")),
    "domain": (
        ("create domain short as varchar(9)", "create domain shorter as short"),
        "shorter",
        ("a", "B", "c'", "d\\", "too long"),
    ),
    "composite": (("create type pair as (n int, t text)",), "pair", ("(1,a)", "(1,b)", "(2,)", "(2,a)", '(3,"x ""y"", z")')),
    "array": ((), "text[]", ("{}", "{a}", "{a,b}", '{"a b",NULL}', "{{a,b},{c,d}}")),
    "range": ((), "int4range", ("empty", "[1,3)", "[1,4)", "(,5)", "[7,)")),
    "caseless": ((), "extensions.caseless", ("a", "B", "c", "D", "e")),
    "caseless domain": (("create domain nick as extensions.caseless",), "nick", ("a", "B", "c", "D", "e")),
    "character": ((), "character(3)", ("a", "ab", "B", "b c", "")),
    "bytes": ((), "bytea", ("\\x", "\\x00", "\\x0001", "\\xff", "\\x41")),
    "double": ((), "float8", ("-Infinity", "-0", "0.1", "1e300", "NaN")),
    "numeric": ((), "numeric", ("-1.50", "0.0", "1e20", "7", "NaN")),
    "bits": ((), "bit varying", ("", "0", "00", "1", "101")),
    "interval": ((), "interval", ("-1 day", "00:00:01", "1 day", "1 mon", "1 year")),
    "moment": ((), "timestamptz", ("-infinity", "2024-01-01", "2024-01-01 00:00:00.000001", "2025-06-01", "infinity")),
    "document": ((), "jsonb", ('"a"', "1", "[]", "{}", "true")),
    "address": ((), "inet", ("10.0.0.1", "10.0.0.0/8", "::1", "192.168.0.1", "10.0.0.2")),
    "quoted char": ((), '"char"', ("a", "B", "c", "D", "")),
    "name": ((), "name", ("a", "B", "c d", "D", "e")),
    # a server may be built without ICU
    "icu without accents": (
        ("create collation loose (provider = icu, locale = 'und-u-ks-level1', deterministic = false)",),
        "text collate loose",
        ("a", "B", "ç", "d", "É"),
    ),
    "icu upper first": (
        ("create collation upper_first (provider = icu, locale = 'en-u-kf-upper')",),
        "text collate upper_first",
        ("a", "A", "b", "B", "é"),
    ),
}  # fmt: skip


def test_a_key_of_any_type_with_an_order(captured: Captured) -> None:
    def run(statement: str, *values: object) -> None:
        captured.source.connection.execute(statement.encode(), values)

    for statement in CASELESS:
        run(statement)
    icu = captured.source.connection.execute("select from pg_collation where collname = 'en-x-icu'").fetchone()
    types = [each for name, each in TYPES.items() if icu is not None or not name.startswith("icu ")]
    for number, (made, type_name, values) in enumerate(types):
        for statement in made:
            run(statement)
        run(f"create table t{number} (k {type_name} not null, n int not null, primary key (k, n))")
        run(f"insert into t{number} select unnest(%s::text[])::{type_name}, n from generate_series(1, 2) n", [*values])
    run("alter domain short add check (length(value) < 5) not valid")
    names = [f"t{number}" for number in range(len(types))]
    captured = declared(captured, *map(CapturedTable, names))
    captured.drain()
    assert [name for name in names if len(left(captured, name)) != 10] == []
    for name in names:
        run(f"delete from {name} where ctid = '(0,10)'")
        run(f"update {name} set n = 3 where n = 2")
    captured.drain()
    for table in captured.capture.tables:
        assert len(left(captured, table.table)) == 9, table
        found = captured.verify(table, repairs="a test")
        assert (found.table, found.rows, found.unchanged) == (table.name, 9, 9)


def test_a_table_without_a_key_s_index_is_ordered_by_its_types(captured: Captured) -> None:
    captured.run(
        *CASELESS,
        "create domain nick as extensions.caseless",
        "create type mood as enum ('sad', 'ok')",
        "create table looks (name nick not null, mood mood not null, tags varchar(9)[] not null, n int not null unique)",
        "alter table looks replica identity full",
        "insert into looks select c, m, array[c], row_number() over () from unnest(string_to_array('a,B,c,D,e', ',')) c,"
        " unnest(enum_range(null::mood)) m",
    )
    captured = declared(captured, CapturedTable("looks", key=("name", "mood", "tags", "n")))
    captured.drain()
    assert len(left(captured, "looks")) == 10
    found = captured.verify(captured.capture.tables[0])
    assert (found.rows, found.unchanged) == (10, 10)


def test_names_that_read_alike_with_a_dot_are_those_of_different_tables(captured: Captured) -> None:
    captured.run(
        'create schema "x.y"', "create schema x", 'create schema "x.""y"',
        'create table "x.y".z (id int primary key, name text)', "insert into \"x.y\".z values (1, 'a'), (2, 'a')",
        'create table x."y.z" (id int primary key, name text)', "insert into x.\"y.z\" values (1, 'b'), (3, 'b')",
        'create table "x.""y"."z""." ("I d%s" int primary key, name text)', 'insert into "x.""y"."z""." values (1, \'c\')',
    )  # fmt: skip
    tables = CapturedTable("z", "x.y"), CapturedTable("y.z", "x"), CapturedTable('z".', 'x."y')
    captured = declared(captured, *tables)
    captured.drain()
    found = captured.rows("select decider, count(*) from event_store.events group by 1 order by 1")
    assert found == [('table:"x.""y"."z""."', 1), ('table:"x.y".z', 2), ('table:x."y.z"', 2)]
    captured.run('alter table x."y.z" replica identity nothing', "insert into \"x.y\".z values (4, 'c')")
    captured.drain()
    (said,) = captured.problems()
    assert said.startswith('table x."y.z" is stopped, the others are captured: its replica identity is nothing')
    assert captured.verify(tables[0]).differing == 0
    captured.run('alter table x."y.z" replica identity default', 'drop table "x.y".z')
    captured.drain()
    (said,) = captured.problems()
    assert said.startswith('table "x.y".z is stopped')
    assert captured.info().gaps == 0


def test_a_row_keyed_by_a_label_has_another_stream_once_it_is_renamed(captured: Captured) -> None:
    captured.run(
        "create type mood as enum ('sad', 'ok')", "create domain state as mood",
        "create table looks (mood state primary key, moods mood[], n int)",
        "insert into looks values ('sad', '{ok}', 1), ('ok', '{}', 2)",
        "create table plain (id int primary key)", "insert into plain values (1)",
    )  # fmt: skip
    captured = declared(captured, CapturedTable("looks"), CapturedTable("plain"))
    captured.drain()
    captured.run("alter type mood add value 'happy'")
    # the rename changes no captured value
    assert captured.drain().unchanged == 0
    captured.run("alter type mood rename value 'sad' to 'blue'", "update looks set n = 3 where mood::mood = 'blue'")
    captured.drain()
    assert sorted(row["mood"] for row in left(captured, "looks")) == ["blue", "ok"]
    captured.run("alter type mood rename value 'ok' to 'fine'")
    assert captured.drain().backfilled == 2
    assert sorted((r["mood"], r["moods"]) for r in left(captured, "looks")) == [("blue", "{fine}"), ("fine", "{}")]
    assert captured.verify(captured.capture.tables[0]).differing == 0
    with captured.process() as process:
        captured.run("alter type mood rename value 'fine' to 'well'")
        # a running process notices
        process.drain(budget_s=patience(), idle_s=patience())
    captured.drain()
    assert sorted(row["mood"] for row in left(captured, "looks")) == ["blue", "well"]


# key types built from an enum, and a value of each
MADE_OF_ENUMS = {
    "mood[]": "'{sad}'", "inner_state": "'sad'", "pair": "'(1,sad)'", "moods": "'[sad,ok]'", "{moods}": "'{[sad,ok]}'",
    "pair[]": "array['(1,sad)'::pair]",
}  # fmt: skip


def test_a_follower_sees_a_renamed_label_wherever_an_enum_is_in_a_key(captured: Captured) -> None:
    captured.run(
        "create type mood as enum ('sad', 'ok')", "create domain state as mood", "create domain inner_state as state",
        "create type pair as (n int, m state)",
        "create type moods as range (subtype = mood, multirange_type_name = \"{moods}\")",
    )  # fmt: skip
    names = {f"t{number}": made for number, made in enumerate(MADE_OF_ENUMS.items())}
    for name, (type_name, key) in names.items():
        written = f'"{type_name}"' if "{" in type_name else type_name
        captured.run(f"create table {name} (k {written} primary key); insert into {name} values ({key})")
    captured = declared(captured, *map(CapturedTable, names))
    captured.drain()
    publication = str(captured.value("select publication from event_store.captures"))
    before = published_tables(captured.source.connection, publication)
    assert not published_tables(captured.source.connection, publication).is_another(before)
    captured.run("alter type mood rename value 'sad' to 'blue'")
    after = published_tables(captured.source.connection, publication)
    assert [oid for oid, state in after.states.items() if state == before.states[oid]] == []
    captured.drain()
    for name in names:
        (row,) = left(captured, name)
        assert "blue" in row["k"], name
