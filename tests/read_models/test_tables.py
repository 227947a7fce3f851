"""The owner of a read model's tables: created by one login, rebuilt and reset by another."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import psycopg
import pytest
from psycopg import Connection
from psycopg.conninfo import make_conninfo

from millrace import count, field, rollup, row
from millrace.drain.view_drain import ViewDrain
from millrace.event_store.migrations import migrate
from millrace.event_store.platform import PlatformStore
from millrace.postgres.embedded import EmbeddedPostgres
from millrace.read_models.stored.merge import merge_batch, next_batch, replace_partition
from millrace.read_models.stored.rollup_tables import RollupFailed, update_rollups
from millrace.read_models.stored.tables import DependentObjects, NotOwned
from millrace.read_models.stored.versions import ensure_version, reset_model, serve_if_caught_up
from tests.support.building.drains import Everything, no_spark
from tests.support.factories import Connect, refusal, rows
from tests.support.logins import Login, logins

MEMBERS = {"__doc__": "Things by event.", "last_event": row("last_event"), "n": count()}


@pytest.fixture
def login(store: PlatformStore) -> Iterator[Login]:
    """Yield an opener of sessions as a new user with only the given roles."""
    with logins(store.connection) as made:
        yield made


def rebuild(connection: Connection, partition: int) -> int:
    """Replace a log partition as a rebuild without events does; return the number of deleted rows."""
    with connection.transaction():
        return replace_partition(connection, Everything, partition, next_batch(connection), []).gone


def owners(connection: Connection) -> set[str]:
    query = """
        select distinct pg_get_userbyid(relowner) from pg_class
        where relnamespace = 'read_models'::regnamespace and relname ~ '^everything'
    """
    return {owner for (owner,) in rows(connection, query)}


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


def test_who_rebuilds_leaves_the_tables_to_whom_they_belong(login: Login, store: PlatformStore) -> None:
    """A superuser is a member of every role."""
    ensure_version(login("event_store_owner"), Everything)
    rebuild(store.connection, 3)
    assert owners(store.connection) == {"event_store_owner"}


def test_with_a_model_go_the_tables_that_its_first_layout_had(login: Login) -> None:
    one = login("event_store_owner")
    ensure_version(one, Everything)
    for statement in (
        "drop table read_models.everything_state cascade",
        "create table read_models.everything_state (partition int, thing_id text) partition by list (partition)",
        "create table read_models.everything_state_p0003 partition of read_models.everything_state for values in (3)",
        "create table read_models.everything_state_large (thing_id text)",
        "create table read_models._new_7_p0003 (partition int,"
        " constraint everything_state_bounds check (partition = 3))",
    ):
        one.execute(statement.encode())
    reset_model(one, Everything)
    assert rows(one, "select relname from pg_class where relname ~ '^(everything|_new)'") == []


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
    added = "insert into read_models.everything_state (partition, thing_id, last_event) values (%s, %s, 'made')"
    for partition, thing_id in ((3, "a"), (4, "b")):
        other.execute(added, (partition, thing_id))
    assert rebuild(other, 3) == 1
    with pytest.raises(RollupFailed):
        update_rollups(reader, replace(declared, rollups=(another,)), shown=False)
    assert rows(reader, "select * from read_models.grouped") == [("made", 1)]
    serve_if_caught_up(other, ensure_version(other, declared))
    assert rows(one, "select relname from pg_class where relname ~ 'grouped'") == []


def test_readers_read_what_an_owner_made(login: Login) -> None:
    ensure_version(login("event_store_owner"), Everything)
    assert rows(login("event_store_reader"), "select * from read_models.everything") == []


def test_tables_of_somebody_else_are_refused_with_the_remedy(dsn: str, connect: Connect, login: Login) -> None:
    admin, other, owner = connect(), login("event_store_reader"), login("event_store_owner")
    ensure_version(admin, Everything)
    before = rows(admin, "select model from read_models.declarations")

    for relation in ("everything", "everything_state", "everything_staging"):
        admin.execute(f"alter table read_models.{relation} owner to {other.info.user}".encode())
        admin.execute(f"grant all on read_models.{relation} to event_store_owner".encode())
        with ViewDrain(make_conninfo(dsn, user=owner.info.user), Everything, no_spark, "test") as consumer:
            refused = refusal(NotOwned, partial(consumer.rebuild, 7))
        assert other.info.user in refused.message
        assert owner.info.user in str(refused.detail)
        assert "millrace view reset everything" in str(refused.hint)
        refusal(NotOwned, lambda: reset_model(owner, Everything))
        assert rows(admin, "select model from read_models.declarations") == before
        admin.execute(f"alter table read_models.{relation} owner to event_store_owner".encode())
    reset_model(admin, Everything)


def test_who_is_no_member_migrates_over_what_a_member_made(postgres: EmbeddedPostgres, template: str) -> None:
    assert template  # the template's migration made the roles
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
        # the migrating login owns the tables that it creates; members may change them after its next migration
        theirs = replace(Everything, name="theirs", view="theirs", all_rollups=True)
        grouped = rollup(of=theirs, key=["last_event"])(type("Grouped", (), MEMBERS))
        with psycopg.connect(dsn, user="migrator", autocommit=True) as migrator:
            ensure_version(migrator, theirs)
            # the migrating login is an operator too
            PlatformStore(migrator).pass_over_unwanted("everything")
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


@pytest.mark.parametrize("partitions", [16, 1024])
def test_a_row_is_found_by_one_probe_of_the_index_of_its_key(store: PlatformStore, partitions: int) -> None:
    across = replace(Everything, name="across", view="across", keys={"text": field("data.text")})
    for model in (Everything, across):
        ensure_version(store.connection, model)
        (key,) = model.keys
        partition = "" if model.crosses_streams else "partition, "
        store.connection.execute(
            f"insert into read_models.{model.state_table} ({partition}{key})"
            f" select {f'n %% {partitions}, ' if partition else ''}'k-' || n from generate_series(1, 20000) n".encode(),
            (),
        )
        store.connection.execute(f"analyze read_models.{model.state_table}".encode())
        plan = rows(store.connection, f"explain (costs off) select * from read_models.{model.name} where {key} = 'k-7'")
        assert plan == [
            (f"Index Scan using {model.state_table}_pkey on {model.state_table}",),
            (f"  Index Cond: ({key} = 'k-7'::text)",),
        ]
