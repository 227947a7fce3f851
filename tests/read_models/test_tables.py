"""Whose the tables of a read model are: made by one login, rebuilt and reset by another."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from millrace import count, rollup, row
from millrace.resources.consumption.consumer import Consumer
from millrace.resources.event_store import EventStore
from millrace.resources.event_store.migrations import migrate
from millrace.resources.postgres.embedded import EmbeddedPostgres
from millrace.resources.read_models.stored.merge import fill_child, merge_batch, next_batch, swap_children
from millrace.resources.read_models.stored.rollup_tables import RollupFailed, keep_rollups
from millrace.resources.read_models.stored.tables import DependentObjects, NotOwned, drop_new_children
from millrace.resources.read_models.stored.versions import ensure_version, reset_model, serve_if_caught_up
from tests.support.building.drains import Everything
from tests.support.factories import Connect, refusal, rows
from tests.support.logins import Login, logins

MEMBERS = {"__doc__": "Things by event.", "last_event": row("last_event"), "n": count()}


@pytest.fixture
def login(store: EventStore) -> Iterator[Login]:
    """Yield what opens a session as a new user with some roles, and nothing else."""
    with logins(store.connection) as made:
        yield made


def rebuild(connection: psycopg.Connection, partition: int) -> int:
    """Swap a log partition as a rebuild does that found no event."""
    batch = next_batch(connection)
    rows = fill_child(connection, Everything, partition, batch, [])
    with connection.transaction():
        swap_children(connection, Everything, [partition], batch, [])
    return rows


def owners(connection: psycopg.Connection) -> set[str]:
    query = """
        select distinct pg_get_userbyid(relowner) from pg_class
        where relnamespace = 'read_models'::regnamespace and relname ~ '^(everything|_new_.*_p[0-9]+$)'
    """
    return {owner for (owner,) in rows(connection, query)}


def new_children(connection: psycopg.Connection) -> list[str]:
    query = r"select relname from pg_class where relname ~ '^_new_\d+_p\d+$' order by 1"
    return [name for (name,) in rows(connection, query)]


def test_what_one_owner_made_another_one_merges_into_rebuilds_and_resets(login: Login) -> None:
    one, other = login("event_store_owner"), login("event_store_owner")
    ensure_version(one, Everything)
    ensure_version(other, Everything)
    assert rebuild(other, 3) == rebuild(one, 3) == rebuild(other, 3) == 0
    for connection in (one, other):
        with connection.transaction():
            assert merge_batch(connection, Everything, next_batch(connection), []) == 0
    assert owners(one) == {"event_store_owner"}
    reset_model(other, Everything)
    ensure_version(one, Everything)


def test_who_rebuilds_leaves_the_tables_to_whom_they_belong(login: Login, store: EventStore) -> None:
    """A superuser is everybody."""
    ensure_version(login("event_store_owner"), Everything)
    rebuild(store.connection, 3)
    assert owners(store.connection) == {"event_store_owner"}


def test_what_a_rebuild_that_died_had_filled_belongs_to_all_owners_and_goes_with_the_model(login: Login) -> None:
    one, other = login("event_store_owner"), login("event_store_owner")
    ensure_version(one, Everything)
    fill_child(one, Everything, 3, next_batch(one), [])
    fill_child(one, Everything, 4, next_batch(one), [])
    assert owners(one) == {"event_store_owner"}
    drop_new_children(other, Everything, [4], next_batch(other))
    assert [name[-5:] for name in new_children(one)] == ["p0003"]
    reset_model(other, Everything)
    assert new_children(one) == []


def test_a_login_that_made_tables_is_itself_again(login: Login) -> None:
    connection = login("event_store_owner")
    ensure_version(connection, Everything)
    assert rows(connection, "select current_user = session_user, current_setting('role')") == [(True, "none")]
    with connection.transaction():
        reset_model(connection, Everything)
        ensure_version(connection, Everything)
        assert rows(connection, "select current_user = session_user") == [(True,)]


def test_a_rollup_that_one_owner_made_another_one_keeps_and_drops(login: Login) -> None:
    one, other, reader = login("event_store_owner"), login("event_store_owner"), login("event_store_reader")
    grouped = rollup(of=Everything, key=["last_event"])(type("Grouped", (), MEMBERS))
    another = rollup(of=Everything, key=["last_event"])(type("Another", (), MEMBERS))
    declared = replace(Everything, all_rollups=True)
    serve_if_caught_up(one, ensure_version(one, replace(declared, rollups=(grouped,))))
    added = "insert into read_models.everything_state (partition, thing_id, last_event) values (%s, 'a', 'made')"
    for partition in (3, 4):
        other.execute(added, (partition,))
    rebuild(other, 3)
    with pytest.raises(RollupFailed):
        keep_rollups(reader, replace(declared, rollups=(another,)), shown=False)
    assert rows(reader, "select * from read_models.grouped") == [("made", 1)]
    serve_if_caught_up(other, ensure_version(other, declared))
    assert rows(one, "select relname from pg_class where relname ~ 'grouped'") == []


def test_readers_read_what_an_owner_made(login: Login) -> None:
    ensure_version(login("event_store_owner"), Everything)
    assert rows(login("event_store_reader"), "select * from read_models.everything") == []


def test_tables_of_somebody_else_are_refused_before_anything_is_built_and_the_remedy_is_said(
    dsn: str, connect: Connect, login: Login
) -> None:
    admin, other, owner = connect(), login("event_store_reader"), login("event_store_owner")
    ensure_version(admin, Everything)
    before = rows(admin, "select model from read_models.declarations")

    def not_asked() -> Any:  # noqa: ANN401 - it returns never
        pytest.fail("Spark was asked")

    for relation in ("everything", "everything_state", "everything_staging", "everything_state_p0007"):
        admin.execute(f"alter table read_models.{relation} owner to {other.info.user}".encode())
        admin.execute(f"grant all on read_models.{relation} to event_store_owner".encode())
        with Consumer.open(make_conninfo(dsn, user=owner.info.user), Everything, not_asked, "test") as consumer:
            refused = refusal(NotOwned, partial(consumer.rebuild, 7))
        assert other.info.user in refused.message
        assert owner.info.user in str(refused.detail)
        assert "millrace view reset everything" in str(refused.hint)
        refusal(NotOwned, lambda: reset_model(owner, Everything))
        assert rows(admin, "select model from read_models.declarations") == before
        admin.execute(f"alter table read_models.{relation} owner to event_store_owner".encode())
    reset_model(admin, Everything)


def test_who_migrates_and_is_no_member_migrates_again_over_what_a_member_made(
    postgres: EmbeddedPostgres, template: str
) -> None:
    assert template  # it made the roles
    with psycopg.connect(postgres.dsn("postgres"), autocommit=True) as admin:
        admin.execute("create database migrated")
        admin.execute("create role migrator login createrole")
        admin.execute("alter database migrated owner to migrator")
        admin.execute("create role member login in role event_store_owner")
    dsn = postgres.dsn("migrated")
    try:
        migrate(make_conninfo(dsn, user="migrator"))
        with psycopg.connect(dsn, user="member", autocommit=True) as member:
            ensure_version(member, Everything)
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute("update event_store.migrations set name = 'other' where version = 0")
        assert migrate(make_conninfo(dsn, user="migrator")).functions_replaced
        with psycopg.connect(dsn, user="member", autocommit=True) as member:
            assert owners(member) == {"event_store_owner"}
            rebuild(member, 3)
        # what the migrating login makes is its own, and members change it once it has migrated again
        theirs = replace(Everything, name="theirs", view="theirs", all_rollups=True)
        grouped = rollup(of=theirs, key=["last_event"])(type("Grouped", (), MEMBERS))
        with psycopg.connect(dsn, user="migrator", autocommit=True) as migrator:
            ensure_version(migrator, theirs)
            with psycopg.connect(dsn, autocommit=True) as admin:
                admin.execute("update event_store.migrations set name = 'other' where version = 0")
            migrate(make_conninfo(dsn, user="migrator"))
            serve_if_caught_up(migrator, ensure_version(migrator, replace(theirs, rollups=(grouped,))))
        with psycopg.connect(dsn, user="member", autocommit=True) as member:
            member.execute(
                "insert into read_models.theirs_state (partition, thing_id, last_event) values (4, 'a', 'made')"
            )
            assert rows(member, "select * from read_models.grouped") == [("made", 1)]
            with pytest.raises((RollupFailed, DependentObjects)):
                serve_if_caught_up(member, ensure_version(member, theirs))
    finally:
        with psycopg.connect(postgres.dsn("postgres"), autocommit=True) as admin:
            admin.execute("drop database migrated with (force)")
            admin.execute("drop role member")
            admin.execute("drop role migrator")


def test_a_row_is_found_by_its_key_from_the_index_of_each_log_partition(store: EventStore) -> None:
    version = ensure_version(store.connection, Everything)
    (key,) = version.keys
    leading = rows(
        store.connection,
        """
        select distinct a.attname
        from pg_index i
        join pg_class c on c.oid = i.indrelid and c.relkind = 'r'
        join pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[0]
        where c.relname like 'everything\\_state\\_p%%' and i.indisprimary
        """,
    )
    assert leading == [(key,)]
    store.connection.execute(
        f"insert into read_models.everything_state (partition, {key})"
        " select n %% 16, 'thing-' || n from generate_series(1, 20000) n".encode(),
        (),
    )
    store.connection.execute("analyze read_models.everything_state")
    plan = "\n".join(
        line
        for (line,) in store.connection.execute(
            f"explain (costs off) select * from read_models.everything where {key} = 'thing-7'".encode()
        )
    )
    assert "Seq Scan" not in plan
    assert plan.count(f"Index Cond: ({key} = 'thing-7'::text)") == 16
