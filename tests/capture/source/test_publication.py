"""Publications: made as declared, changed when the declaration changes, else left alone."""

from typing import Any

import psycopg
import pytest

from millrace.capture.declaration import Capture, CapturedTable
from millrace.capture.decoding.pgoutput import Insert, Relation, Truncate, decode
from millrace.capture.source.connection import connect_source
from millrace.capture.source.publication import ForeignPublication, drop_publication, ensure_publication
from millrace.capture.source.slot import create_slot
from tests.support.capturing.given import given
from tests.support.capturing.sources import Source
from tests.support.factories import refusal, rows, value


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
    assert [row[1:] for row in published(source)] == [
        ("t", ["id", "n"], "((id > 5) AND ((id % 2) = 1))"),
        ("T t", ["id"], None),
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


def test_a_changed_declaration_changes_it(source: Source) -> None:
    source.run("create table t (id int primary key, n int)", "create table u (id int primary key)")
    for changed in (
        capture(CapturedTable("t", where="id > 6")),
        capture(CapturedTable("t", columns=("id",))),
        capture(CapturedTable("t"), CapturedTable("u")),
        capture(CapturedTable("u")),
        capture(CapturedTable("t"), actions=("insert", "truncate")),
    ):
        assert ensured(source, capture(CapturedTable("t", where="id > 5")))
        before = value(source.connection, "select oid from pg_publication")
        assert ensured(source, changed)
        assert value(source.connection, "select oid from pg_publication") == before
        as_new = published(source), switches(source)
        drop_publication(source.connection, source.slot)
        assert ensured(source, changed)
        assert (published(source), switches(source)) == as_new
        assert not ensured(source, changed)
        # dropping it twice is no error
        assert [drop_publication(source.connection, source.slot) for _ in range(2)] == [True, False]
        assert not published(source)


T_AND_U, ONLY_T, ONLY_U, NONE = {"public.t", "public.u"}, {"public.t"}, {"public.u"}, set[str]()
# a change by another session, and the declared tables with possibly unpublished changes since then
DAMAGES: tuple[tuple[str, set[str]], ...] = (
    ("drop publication {}", T_AND_U),
    ("alter publication {} set (publish = 'insert')", T_AND_U),
    ("alter publication {} set (publish_via_partition_root = false)", T_AND_U),
    ("alter publication {} drop table t", ONLY_T),
    ("alter publication {} set table t where (id > 6), only u", ONLY_T),
    ("alter publication {} set table t (id) where (id > 5), only u", ONLY_T),
    ("drop table u; create table u (id int primary key)", ONLY_U),
    ("alter table u rename to old; create table u (id int primary key)", ONLY_U),
    ("alter publication {} add table other", NONE),
    ("alter publication {} add tables in schema public", NONE),
    ("alter publication {} add tables in schema elsewhere", NONE),
    # changed and changed back
    ("alter publication {} set (publish = 'insert'); alter publication {} set (publish = '{actions}')", T_AND_U),
    ("alter publication {} drop table t; alter publication {} add table only t where (id > 5)", T_AND_U),
    # changes that unpublish nothing
    ("alter publication {} add table other; alter publication {} drop table other", NONE),
    ("create role keeper superuser; alter publication {} owner to keeper", NONE),
    ("vacuum full pg_publication", NONE),
    ("vacuum freeze pg_publication_rel", NONE),
)


def test_what_somebody_changed_is_mended_and_said_by_table(source: Source) -> None:
    source.run(
        "create schema elsewhere", "create table u (id int primary key)", "create table t (id int primary key, n int)",
        "create table other (id int primary key)",
    )  # fmt: skip
    declaration = capture(CapturedTable("t", where="id > 5"), CapturedTable("u"))
    assert ensured(source, declaration)
    as_declared = published(source), switches(source)
    wrong = []
    try:
        for damage, otherwise in DAMAGES:
            statement = damage.replace("{actions}", ", ".join(declaration.actions)).replace("{}", source.slot)
            source.run(statement)
            with connect_source(source.dsn) as connection:
                said = ensure_publication(connection, source.slot, declaration) or frozenset()
                again = ensure_publication(connection, source.slot, declaration)
            found = published(source), switches(source)
            if set(said) != otherwise or again is not None or found != as_declared:
                wrong.append((damage, said, again, found))
            assert not rows(source.connection, "select from pg_publication_namespace")
            source.run("drop table if exists old")
    finally:
        source.run("reassign owned by keeper to postgres", "drop role keeper")
    assert wrong == []


def test_a_publication_of_somebody_else_is_left_alone(source: Source) -> None:
    source.run("create table t (id int primary key)")
    for foreign in ("for all tables", ""):
        source.run(f"create publication {source.slot} {foreign}")
        refusal(ForeignPublication, lambda: ensured(source, capture()))
        source.run(f"drop publication {source.slot}")


def test_a_publication_that_cannot_be_made_leaves_what_was(source: Source) -> None:
    source.run("create table t (id int primary key)")
    declaration = capture()
    assert ensured(source, declaration)
    with pytest.raises(psycopg.errors.UndefinedTable):
        ensured(source, capture(CapturedTable("t"), CapturedTable("none")))
    assert not ensured(source, declaration)


def test_heirs_are_not_published_and_partitions_are_as_their_root(source: Source) -> None:
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
        found = [decode(raw) for raw in given(connection, source.slot)]
    tables = {message.relation_id: message.table for message in found if isinstance(message, Relation)}
    assert [(tables[message.relation_id], message.new) for message in found if isinstance(message, Insert)] == [
        ("t", (b"1",)), ("p", (b"3",)), ("p", (b"13",)),
    ]  # fmt: skip
    assert [[tables[one] for one in m.relation_ids] for m in found if isinstance(m, Truncate)] == [["p"]]
