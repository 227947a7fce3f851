"""All problems of a source at once, each with its remedy; publishing from a ready source breaks no application."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import LiteralString

import psycopg
import pytest
from psycopg import Connection

from millrace.capture.declaration import ACTIONS, Capture, CapturedTable
from millrace.capture.source import probe
from millrace.capture.source.connection import connect_source, connect_walsender
from millrace.capture.source.publication import drop_publication, ensure_publication
from millrace.capture.source.readiness import NotReady, find_problems, require_ready
from tests.support.capturing.sources import Source
from tests.support.factories import rows, value

Role = Callable[[LiteralString], Connection]


@pytest.fixture
def role(source: Source) -> Iterator[Role]:
    """Return a function that makes the role `capturer` with some attributes and opens a session of it."""
    made: list[Connection] = []

    def make(attributes: LiteralString) -> Connection:
        source.connection.execute(psycopg.sql.SQL("create role capturer {}").format(psycopg.sql.SQL(attributes)))
        made.append(connect_source(source.dsn))
        made[0].execute("set role capturer")
        return made[0]

    yield make
    if made:
        made[0].close()
        source.run("drop owned by capturer cascade", "drop role capturer")


def capture(*tables: CapturedTable, actions: tuple[str, ...] = ACTIONS) -> Capture:
    return Capture("shop", str, tables or (CapturedTable("t"),), actions)


def problems(source: Source, *tables: CapturedTable, actions: tuple[str, ...] = ACTIONS) -> list[str]:
    with connect_source(source.dsn) as connection:
        return find_problems(connection, capture(*tables, actions=actions), has_slot=False)


def works(source: Source, *tables: CapturedTable, actions: tuple[str, ...] = ACTIONS) -> bool:
    """Return whether the application's updates and deletes succeed once the tables are published."""
    with connect_source(source.dsn) as connection:
        ensure_publication(connection, source.slot, capture(*tables, actions=actions))
    try:
        for table in tables:
            names = (table.schema, table.table)
            source.connection.execute(psycopg.sql.SQL("delete from {}").format(psycopg.sql.Identifier(*names)))
            source.connection.execute(psycopg.sql.SQL("update {} set n = 1").format(psycopg.sql.Identifier(*names)))
    except psycopg.Error:
        return False
    return True


def test_a_source_that_is_ready_lacks_nothing_and_keeps_nothing(source: Source) -> None:
    source.run(
        "create table t (id int primary key, n int)", "create table f (id int, n int)",
        "alter table f replica identity full", "alter table f alter id set not null", "create unique index on f (id)",
    )  # fmt: skip
    tables = CapturedTable("t", columns=("id", "n"), where="id > 5"), CapturedTable("f", key=("id",), where="n > 5")
    assert problems(source, *tables) == []
    require_ready(source.connection, capture(*tables), has_slot=False)
    assert rows(source.connection, "select from pg_publication") == []
    assert works(source, *tables)


def test_all_problems_are_said_at_once(source: Source) -> None:
    source.run("create table t (id int)")
    with pytest.raises(NotReady) as refused:
        require_ready(source.connection, capture(CapturedTable("t"), CapturedTable("u")), has_slot=False)
    assert len(refused.value.problems) == 3
    assert refused.value.detail is not None
    assert all(f"- {problem}" in refused.value.detail for problem in refused.value.problems)
    assert refused.value.hint


# the relation, its declaration, and the reported problem
PROBLEMS: tuple[tuple[str, CapturedTable, str], ...] = (
    ("select", CapturedTable("t"), "does not exist in database"),
    ("create view t as select 1 as id", CapturedTable("t"), "it is a view"),
    ("create materialized view t as select 1 as id", CapturedTable("t"), "it is a materialized view"),
    ("create sequence t", CapturedTable("t"), "it is a sequence"),
    ("create unlogged table t (id int primary key)", CapturedTable("t"), "it is unlogged"),
    ("create schema event_store; create table event_store.events (id int primary key)", CapturedTable("events", "event_store"), "Millrace's own"),
    ("select", CapturedTable("anything", "read_models"), "Millrace's own"),
    ("select", CapturedTable("runs", "dagster"), "Millrace's own"),
    ("select", CapturedTable("pg_class", "pg_catalog"), "the server's own"),
    ("select", CapturedTable("tables", "information_schema"), "the server's own"),
    ("create table t (id int primary key)", CapturedTable("t", columns=("id", "no", "nix")), "no column no, nix; there are id: correct columns"),
    ("create table t (id int primary key)", CapturedTable("t", key=("no",)), "no column no; there are id: correct key"),
    ("create table t (id int primary key, n int)", CapturedTable("t", columns=("n",)), "leave out id of its key"),
    ("create table t (id int primary key, n int not null)", CapturedTable("t", key=("n",)), "declared as n, and its replica identity says id"),
    ("create table t (id int, n int)", CapturedTable("t"), "replica identity is default, and it has no primary key"),
    ("create table t (id int, n int)", CapturedTable("t"), "nothing names its rows"),
    ("create table t (id int primary key); alter table t replica identity nothing", CapturedTable("t"), "replica identity is nothing"),
    ("create table t (id int primary key deferrable)", CapturedTable("t"), "it has no primary key"),
    ("create table t (id int, n int); alter table t replica identity full", CapturedTable("t"), "nothing names its rows"),
    ("create table t (id int, n int); alter table t replica identity full", CapturedTable("t", key=("id",)), "column id of its key may be null: alter table … alter id set not null"),
    ("create table t (id int not null, n int); alter table t replica identity full", CapturedTable("t", key=("id",)), "no unique index covers its declared key id"),
    ("create table t (id int not null, n int); alter table t replica identity full; create index on t (id)", CapturedTable("t", key=("id",)), "no unique index covers"),
    ("create table t (id int not null, n int); alter table t replica identity full; create unique index on t (id) where n > 5", CapturedTable("t", key=("id",)), "no unique index covers"),
    ("create table t (id int not null, n int); alter table t replica identity full; create unique index on t (id, abs(n))", CapturedTable("t", key=("id",)), "no unique index covers"),
    ("create table t (id int not null, n int); alter table t replica identity full; create unique index on t (id, n)", CapturedTable("t", key=("id",)), "no unique index covers"),
    ("create table t (id int primary key deferrable, n int); alter table t replica identity full", CapturedTable("t", key=("id",)), "no unique index covers"),
    ("create table t (id int primary key, n int); alter table t replica identity full", CapturedTable("t", columns=("id",)), "leave out n, which its replica identity has"),
    ("create table t (id int primary key, n int)", CapturedTable("t", where="n > 5"), "where uses n, which the log does not hold"),
    ("create table t (id int primary key, n int)", CapturedTable("t", where="n >"), "where cannot be used: syntax error"),
    ("create table t (id int primary key, n int)", CapturedTable("t", where="nix > 5"), 'where cannot be used: column "nix" does not exist'),
    ("create table t (id int primary key, n int)", CapturedTable("t", where="id > random()"), "where cannot be used: invalid publication WHERE expression"),
    ("create table t (id int primary key, n int)", CapturedTable("t", where="id"), "must be type boolean"),
)  # fmt: skip


def test_each_problem_of_a_table_is_a_sentence(source: Source) -> None:
    wrong = []
    for creation, table, problem in PROBLEMS:
        source.run("drop schema public cascade; drop schema if exists event_store cascade", "create schema public")
        source.run(creation)
        found = problems(source, table)
        starts = all(re.match(rf"table {re.escape(table.name)}: [^:]+", said) for said in found)
        if not starts or not [said for said in found if problem in said]:
            wrong.append((creation, table, problem, found))
    assert wrong == []


def test_of_many_tables_each_is_told_what_is_told_of_it_alone(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "TOGETHER", 10)
    tables = []
    for n in range(23):
        source.run(f"create table t{n} (id int primary key, n int, s bigint)")
        tables.append(CapturedTable(f"t{n}", where="id > 5" if n % 2 else None))
    tables[3] = CapturedTable("t3", where="n >")
    tables[7] = CapturedTable("t7", where="n > 5")
    tables[8] = CapturedTable("t8", where="id > random()")
    tables[19] = CapturedTable("none")
    source.run("alter table t21 add g int generated always as (s::text::int) stored")
    source.run("alter table t21 replica identity full")
    alone = [said for table in tables for said in problems(source, table)]
    assert {said.split(": ")[0] for said in alone} >= {f"table public.{name}" for name in ("t3", "t7", "t8", "none")}
    assert problems(source, *tables) == alone


def test_what_only_updates_and_deletes_need_is_not_asked_for_without_them(source: Source) -> None:
    keyed = CapturedTable("t", key=("id",))
    cases: tuple[tuple[str, CapturedTable], ...] = (
        ("create table t (id int, n int)", keyed),
        ("create table t (id int, n int); alter table t replica identity nothing", keyed),
        ("create table t (id int primary key, n int)", CapturedTable("t", where="n > 5")),
        ("create table t (id int primary key, n int); alter table t replica identity full", CapturedTable("t", columns=("id",))),
    )  # fmt: skip
    inserts = ("insert", "truncate")
    for creation, table in cases:
        source.run(f"drop table if exists t; {creation}")
        source.run("alter table t alter id set not null", "create unique index on t (id)")
        assert problems(source, table)
        assert not works(source, table)
        assert problems(source, table, actions=inserts) == []
        assert works(source, table, actions=inserts)


def test_a_declared_key_is_one_that_a_unique_index_covers(source: Source) -> None:
    source.run(
        "create table t (id int not null, n int not null)",
        "alter table t replica identity full",
        "create unique index on t (id) include (n)",
    )
    keys = (("id",), ("id", "n"), ("n", "id"))
    assert [key for key in keys if problems(source, CapturedTable("t", key=key))] == []


def test_a_table_whose_updates_the_server_would_refuse_is_a_problem(source: Source) -> None:
    source.run(
        "create table t (id int primary key, n int, g int generated always as (n * 2) stored)",
        "alter table t replica identity full",
    )
    assert problems(source, CapturedTable("t")) == []
    assert works(source, CapturedTable("t"))
    if source.connection.info.server_version >= 180000:
        source.run("alter table t add v int generated always as (n * 2) virtual")
        assert problems(source, CapturedTable("t"))
        assert not works(source, CapturedTable("t"))


def test_a_generated_column_that_is_not_logged_is_no_key_nor_hidden(source: Source) -> None:
    stored = source.connection.info.server_version < 180000
    kind = "stored" if stored else "virtual"
    source.run(f"create table t (id int primary key, n int, g int generated always as (n * 2) {kind})")
    said = "table public.t: column g is generated, and the log does not hold it: choose a key or a replica identity"
    assert [each[: len(said)] for each in problems(source, CapturedTable("t", mask=("g",)))] == [said]
    assert problems(source, CapturedTable("t")) == []
    if stored:
        source.run("alter table t drop constraint t_pkey, alter n set not null, add primary key (id, g)")
        assert [each[: len(said)] for each in problems(source, CapturedTable("t"))] == [said]


def test_the_question_fires_no_trigger_and_needs_no_row(source: Source) -> None:
    source.run(
        "create table t (id int generated always as identity primary key, n int)",
        "create sequence fired",
        "create function fire() returns trigger language plpgsql as $$ begin perform nextval('fired'); return null; end $$",
        "create trigger fires after update or delete on t for each statement execute function fire()",
    )
    assert problems(source) == []
    assert value(source.connection, "select is_called from fired") is False


def test_a_table_under_maintenance_is_not_waited_for_long(source: Source) -> None:
    source.run("create table t (id int primary key, n int)")
    with psycopg.connect(source.dsn) as other:
        other.execute("lock table t in share update exclusive mode")  # as vacuum does
        assert problems(source, CapturedTable("t", where="id > 5")) == []


def test_a_partitioned_table_may_have_a_filter_as_any_other_one(source: Source) -> None:
    source.run(
        "create table t (id int primary key, n int, other int) partition by range (id)",
        "create table t1 partition of t for values from (0) to (10)",
    )
    by_key, columns = CapturedTable("t", where="id > 5"), CapturedTable("t", columns=("id",))
    by_value = CapturedTable("t", where="n > 5")
    assert (problems(source, by_key), problems(source, columns)) == ([], [])
    (said,) = problems(source, by_value)
    assert "the log does not hold" in said
    source.run("alter table t replica identity full", "alter table t1 replica identity full")
    assert (problems(source, by_key), problems(source, by_value)) == ([], [])
    # no list of columns under a full replica identity, as for any table
    assert problems(source, columns)


def test_a_partitioned_table_and_its_partitions_are_judged_together(source: Source) -> None:
    source.run(
        "create table t (id int, n int, primary key (id)) partition by range (id)",
        "create table t1 partition of t for values from (0) to (10)",
        "create table t2 partition of t for values from (10) to (20) partition by range (id)",
        "create table t3 partition of t2 for values from (10) to (15)",
    )
    assert problems(source) == []
    assert problems(source, CapturedTable("t1")) == []
    assert works(source, CapturedTable("t"))
    (said,) = problems(source, CapturedTable("t"), CapturedTable("t3"))
    assert said == "table public.t3: it is a partition of public.t, which is captured as a whole: leave it out"
    source.run("alter table t3 replica identity full")
    (said,) = problems(source)
    assert "its partition public.t3 has another replica identity" in said
    source.run("alter table t replica identity full")
    assert "its partition public.t1 has another" in problems(source)[0]
    source.run("alter table t1 replica identity full")
    assert problems(source) == []


def test_a_role_needs_rights_and_no_more_than_these(source: Source, role: Role) -> None:
    filtered, columns = CapturedTable("t", where="id > 5"), CapturedTable("t", columns=("id",))
    source.run("create table t (id int primary key, n int)", "create table u (id int primary key)")
    connection = role("login")

    def said(*tables: CapturedTable, actions: tuple[str, ...] = ACTIONS) -> list[str]:
        return find_problems(connection, capture(*tables, actions=actions), has_slot=False)

    unread = (
        "table public.t: role capturer may not read it: grant select on public.t to capturer, and usage on its schema"
    )
    assert said() == [
        "role capturer may not use replication slots: alter role capturer replication",
        f"role capturer may not create publications: grant create on database {source.slot} to capturer",
        "table public.t: role capturer does not own it, so it may not publish it: grant postgres to capturer",
        unread,
    ]
    source.run("alter role capturer replication", "alter table t owner to capturer", "alter table u owner to capturer")
    source.run(f"grant create on database {source.slot} to capturer")
    assert said(filtered) == []
    assert ensure_publication(connection, source.slot, capture(filtered))
    drop_publication(connection, source.slot)
    # policies that hide rows from the owner
    source.run("alter table t force row level security")
    assert said() == ["table public.t: row level security hides rows from role capturer: alter role capturer bypassrls"]
    # the privilege to select each captured column is enough to read
    source.run("alter table t no force row level security; revoke all on t from capturer")
    source.run("grant select (id) on t to capturer")
    assert said(CapturedTable("u"), CapturedTable("t"), actions=("insert",)) == [unread]
    # the role may not lock the table either; a publication needs no such privilege
    assert said(CapturedTable("u"), columns, actions=("insert",)) == []


def test_a_slot_has_to_be_free_unless_there_is_one(source: Source) -> None:
    source.run("create table t (id int primary key)")
    with connect_source(source.dsn) as connection:
        most = value(connection, "select current_setting('max_replication_slots')::int")
        used = value(connection, "select count(*) from pg_replication_slots")
        made = [f"{source.slot}_{n}" for n in range(most - used)]
        try:
            for name in made:
                connection.execute("select pg_create_physical_replication_slot(%s)", (name,))
            (said,) = find_problems(connection, capture(), has_slot=False)
            assert said.startswith(f"all {most} replication slots are in use: ")
            assert find_problems(connection, capture(), has_slot=True) == []
        finally:
            connection.execute(
                "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = any(%s)",
                (made,),
            )


def test_a_reader_has_to_be_free_until_there_is_a_slot(source: Source) -> None:
    source.run("create table t (id int primary key)")
    with connect_source(source.dsn) as connection, ExitStack() as readers:
        most = value(connection, "select current_setting('max_wal_senders')::int")
        for _ in range(most - value(connection, "select count(*) from pg_stat_get_wal_senders()")):
            readers.enter_context(connect_walsender(connection))
        (said,) = find_problems(connection, capture(), has_slot=False)
        assert said.startswith(f"all {most} connections of max_wal_senders are in use: ")
        assert find_problems(connection, capture(), has_slot=True) == []


def test_an_older_server_is_refused_before_anything_else(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psycopg.ConnectionInfo, "server_version", property(lambda _: 140011))
    (said,) = find_problems(source.connection, capture(), has_slot=False)
    assert said.startswith("the server is PostgreSQL 14; 15 or newer is needed")
