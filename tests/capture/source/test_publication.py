"""Publications: made as declared, changed when the declaration changes, and left alone otherwise.

Belongs here: `millrace.resources.capture.source.publication`. Not here: what a source lacks (test_readiness).
"""

from dataclasses import replace
from typing import Any

import psycopg
import pytest

from millrace.resources.capture.declaration import Capture, CapturedTable
from millrace.resources.capture.decoding.pgoutput import Delete, Insert, Relation, Truncate, Update, decode
from millrace.resources.capture.source.connection import connect_source
from millrace.resources.capture.source.publication import ForeignPublication, drop_publication, ensure_publication
from millrace.resources.capture.source.slot import create_slot, peek
from tests.support.capturing.sources import Source, new_source, source
from tests.support.factories import rows, value

__all__ = ["new_source", "source"]


def capture(*tables: CapturedTable, **options: Any) -> Capture:  # noqa: ANN401
    return Capture("shop", str, tables or (CapturedTable("t"),), **options)


def ensured(source: Source, declaration: Capture) -> bool:
    with connect_source(source.dsn) as connection:
        return ensure_publication(connection, source.slot, declaration) is not None


def published(source: Source) -> list[tuple[Any, ...]]:
    return rows(
        source.connection,
        "select schemaname, tablename, attnames::text[], rowfilter from pg_publication_tables where pubname = %s order by 1, 2",
        source.slot,
    )


def switches(source: Source) -> tuple[Any, ...]:
    (found,) = rows(
        source.connection,
        "select pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot, puballtables from pg_publication where pubname = %s",
        source.slot,
    )
    return found


def test_a_publication_is_what_is_declared(source: Source) -> None:
    source.run(
        "create schema s",
        "create table t (id int primary key, n int, note text)",
        'create table s."T t" (id int primary key)',
    )
    declaration = capture(
        CapturedTable("t", columns=("id", "n"), where="id > 5 and id % 2 = 1"), CapturedTable("T t", "s")
    )
    assert ensured(source, declaration)
    assert published(source) == [
        ("public", "t", ["id", "n"], "((id > 5) AND ((id % 2) = 1))"),
        ("s", "T t", ["id"], None),
    ]
    assert switches(source) == (True, True, True, True, True, False)


def test_what_is_as_declared_is_neither_written_nor_locked(source: Source) -> None:
    source.run("create table t (id int primary key)")
    declaration = capture(CapturedTable("t", where="id > 5 and id<10"))
    assert ensured(source, declaration)
    before = rows(source.connection, "select xmin::text from pg_publication")
    with psycopg.connect(source.dsn) as other:
        other.execute("lock table t in access exclusive mode")
        assert not ensured(source, declaration)
    assert rows(source.connection, "select xmin::text from pg_publication") == before


@pytest.mark.parametrize(
    "changed",
    [
        capture(CapturedTable("t", where="id > 6")),
        capture(CapturedTable("t", columns=("id",))),
        capture(CapturedTable("t"), CapturedTable("u")),
        capture(CapturedTable("u")),
        capture(CapturedTable("t"), actions=("insert", "truncate")),
    ],
)
def test_a_changed_declaration_changes_it(source: Source, changed: Capture) -> None:
    source.run("create table t (id int primary key, n int)", "create table u (id int primary key)")
    assert ensured(source, capture(CapturedTable("t", where="id > 5")))
    before = value(source.connection, "select oid from pg_publication")
    assert ensured(source, changed)
    assert value(source.connection, "select oid from pg_publication") == before
    as_new = published(source), switches(source)
    drop_publication(source.connection, source.slot)
    assert ensured(source, changed)
    assert (published(source), switches(source)) == as_new
    assert not ensured(source, changed)


@pytest.mark.parametrize(
    "damage",
    [
        "alter publication {} set (publish = 'insert')",
        "alter publication {} set (publish_via_partition_root = false)",
        "alter publication {} set table t where (id > 6)",
        "alter publication {} set table t (id) where (id > 5)",
        "alter publication {} add table u",
        "alter publication {} drop table t",
        "alter publication {} add tables in schema other",
        "drop table t; create table t (id int primary key, n int)",
        "alter table t rename to old; create table t (id int primary key, n int)",
    ],
)
def test_what_somebody_changed_is_made_as_declared_again(source: Source, damage: str) -> None:
    source.run(
        "create schema other", "create table t (id int primary key, n int)", "create table u (id int primary key)"
    )
    declaration = capture(CapturedTable("t", where="id > 5"))
    assert ensured(source, declaration)
    as_declared = published(source), switches(source)
    source.connection.execute(damage.format(source.slot).encode())
    assert (published(source), switches(source)) != as_declared or "schema" in damage
    assert ensured(source, declaration)
    assert (published(source), switches(source)) == as_declared
    assert not rows(source.connection, "select from pg_publication_namespace")
    assert not ensured(source, declaration)


@pytest.mark.parametrize(
    ("damage", "otherwise"),
    [
        ("drop publication {}", {"public.t", "public.u"}),
        ("alter publication {} set (publish = 'insert')", {"public.t", "public.u"}),
        ("alter publication {} drop table t", {"public.t"}),
        ("alter publication {} set table t, only u", {"public.t"}),
        ("drop table u; create table u (id int primary key)", {"public.u"}),
        ("alter table u rename to old; create table u (id int primary key)", {"public.u"}),
        ("alter publication {} add table other", set()),
        ("alter publication {} add tables in schema public", set()),
    ],
)
def test_a_repair_says_of_which_declared_tables_something_was_not_published(
    source: Source, damage: str, otherwise: set[str]
) -> None:
    source.run(
        "create table u (id int primary key)",
        "create table t (id int primary key)",
        "create table other (id int primary key)",
    )
    declaration = capture(CapturedTable("t", where="id > 5"), CapturedTable("u"))
    assert ensured(source, declaration)
    source.connection.execute(damage.format(source.slot).encode())
    with connect_source(source.dsn) as connection:
        assert ensure_publication(connection, source.slot, declaration) == frozenset(otherwise)
        assert ensure_publication(connection, source.slot, declaration) is None


@pytest.mark.parametrize(
    ("there", "back"),
    [
        ("alter publication {} set (publish = 'insert')", "alter publication {} set (publish = '{actions}')"),
        ("alter publication {} drop table t", "alter publication {} add table only t"),
        ("alter publication {} set table only t where (id > 5)", "alter publication {} set table only t"),
    ],
)
def test_what_somebody_changed_and_changed_back_was_not_as_declared(source: Source, there: str, back: str) -> None:
    source.run("create table t (id int primary key)")
    declaration = capture(CapturedTable("t"))
    assert ensured(source, declaration)
    as_declared = published(source), switches(source)
    for change in (there, back):
        source.connection.execute(
            change.replace("{actions}", ", ".join(declaration.actions)).replace("{}", source.slot).encode()
        )
    assert (published(source), switches(source)) == as_declared
    with connect_source(source.dsn) as connection:
        assert ensure_publication(connection, source.slot, declaration) == frozenset({"public.t"})
        assert ensure_publication(connection, source.slot, declaration) is None


@pytest.mark.parametrize(
    "harmless",
    [
        "create table other (id int); alter publication {} add table other; alter publication {} drop table other",
        "create role keeper superuser; alter publication {} owner to keeper",
        "vacuum full pg_publication",
        "vacuum freeze pg_publication_rel",
    ],
)
def test_what_takes_nothing_out_of_it_is_no_change(source: Source, harmless: str) -> None:
    source.run("create table t (id int primary key)")
    declaration = capture(CapturedTable("t"))
    assert ensured(source, declaration)
    try:
        source.connection.execute(harmless.replace("{}", source.slot).encode())
        with connect_source(source.dsn) as connection:
            assert not ensure_publication(connection, source.slot, declaration)
            assert ensure_publication(connection, source.slot, declaration) is None
    finally:
        if "keeper" in harmless:
            source.run("reassign owned by keeper to postgres", "drop role keeper")


def test_the_remark_of_an_earlier_version_is_written_anew_and_says_no_gap(source: Source) -> None:
    source.run("create table t (id int primary key)")
    declaration = capture(CapturedTable("t"))
    assert ensured(source, declaration)
    said = str(value(source.connection, "select obj_description(oid, 'pg_publication') from pg_publication"))
    earlier = ", ".join(said.split(", ")[:2]) + "."
    source.connection.execute(f"comment on publication {source.slot} is '{earlier}'".encode())
    with connect_source(source.dsn) as connection:
        assert ensure_publication(connection, source.slot, declaration) == frozenset()
    assert str(value(source.connection, "select obj_description(oid, 'pg_publication') from pg_publication")) != earlier


def test_another_filter_of_one_table_says_nothing_of_the_others(source: Source) -> None:
    source.run("create table t (id int primary key)", "create table u (id int primary key)")
    assert ensured(source, capture(CapturedTable("t"), CapturedTable("u", where="id > 5")))
    with connect_source(source.dsn) as connection:
        changed = capture(CapturedTable("t", where="id > 7"), CapturedTable("u", where="id > 5"))
        assert ensure_publication(connection, source.slot, changed) == frozenset({"public.t"})


@pytest.mark.parametrize("foreign", ["for all tables", "for table t", ""])
def test_a_publication_of_somebody_else_is_left_alone(source: Source, foreign: str) -> None:
    source.run("create table t (id int primary key)")
    source.connection.execute(f"create publication {source.slot} {foreign}".encode())
    with pytest.raises(ForeignPublication) as refused:
        ensured(source, capture())
    assert refused.value.detail
    assert refused.value.hint


def test_a_publication_that_cannot_be_made_leaves_what_was(source: Source) -> None:
    source.run("create table t (id int primary key)")
    declaration = capture()
    assert ensured(source, declaration)
    with pytest.raises(psycopg.errors.UndefinedTable):
        ensured(source, capture(CapturedTable("t"), CapturedTable("none")))
    assert not ensured(source, declaration)


def test_a_publication_is_dropped_once_and_again(source: Source) -> None:
    source.run("create table t (id int primary key)")
    ensured(source, capture())
    assert drop_publication(source.connection, source.slot)
    assert not drop_publication(source.connection, source.slot)
    assert not published(source)


def test_tables_that_inherit_are_not_published_and_partitions_are_as_their_root(source: Source) -> None:
    source.run(
        "create table t (id int primary key)",
        "create table child () inherits (t)",
        "create table p (id int primary key) partition by range (id)",
        "create table p1 partition of p for values from (0) to (10)",
    )
    ensured(source, capture(CapturedTable("t"), CapturedTable("p")))
    with connect_source(source.dsn) as connection:
        create_slot(connection, source.slot)
        source.run("insert into t values (1)", "insert into child values (2)", "insert into p values (3)", "truncate p")
        source.run("create table p2 partition of p for values from (10) to (20)", "insert into p values (13)")
        with peek(connection, source.slot, source.slot) as messages:
            found = [decode(raw) for raw in messages]
    tables = {message.relation_id: message.table for message in found if isinstance(message, Relation)}
    assert [(tables[message.relation_id], message.new) for message in found if isinstance(message, Insert)] == [
        ("t", (b"1",)), ("p", (b"3",)), ("p", (b"13",)),
    ]  # fmt: skip
    assert [[tables[one] for one in message.relation_ids] for message in found if isinstance(message, Truncate)] == [
        ["p"]
    ]


def test_only_declared_actions_are_published(source: Source) -> None:
    source.run("create table t (id int primary key, n int)")
    ensured(source, replace(capture(), actions=("update",)))
    with connect_source(source.dsn) as connection:
        create_slot(connection, source.slot)
        source.run("insert into t values (1, 1)", "update t set n = 2", "delete from t", "truncate t")
        with peek(connection, source.slot, source.slot) as messages:
            found = [decode(raw) for raw in messages]
    assert [type(message) for message in found if isinstance(message, Insert | Update | Delete | Truncate)] == [Update]
