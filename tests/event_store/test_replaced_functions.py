"""Functions and privileges that a migrator replaces: no old ones are left, and running sessions are unaffected."""

from dataclasses import replace
from itertools import count

import psycopg
import pytest

from millrace.errors import MillraceError, SchemaMismatch
from millrace.event_store import migrations
from millrace.event_store.migrations import migrate, read_replaceable, validate
from millrace.event_store.platform import PlatformStore
from millrace.postgres.embedded import EmbeddedPostgres
from tests.support.factories import Connect, append_to, pump, register_orders, rows, start, value
from tests.support.install_script import snapshot
from tests.support.migrators import WAITING, consume_rows, empty
from tests.support.patience import patience, wait_until

__all__ = ["empty"]

EXPIRED_LEASES = "event_store_platform.expired_leases"


def make_stale(connection: psycopg.Connection) -> None:
    connection.execute("update event_store.migrations set name = 'other' where version = 0")


def test_removed_and_changed_functions_leave_nothing_behind(dsn: str, connect: Connect) -> None:
    connection = connect()
    fresh = snapshot(dsn)
    for statement in (
        "create function event_store.gone() returns int language sql as 'select 1'",
        "create function event_store.gone(text) returns int language sql as '\n-- planner: once\nselect 1'",
        "create procedure event_store.gone(int) language sql as 'select 1'",
        "create function event_store_platform.sequence_events(boolean default true) returns int"
        " language sql as 'select 1'",
        f"drop function event_store.offset_for_timestamp, {EXPIRED_LEASES}, event_store.stream_partition",
        "create function event_store.stream_partition(other text, names bigint) returns int language sql as 'select 1'",
        f"create function {EXPIRED_LEASES}() returns text language sql as $$ select 'another result' $$",
        # an old function for text has no form for UUIDs
        "create function event_store.extend_lock(v_decider_id text) returns int language sql as 'select 1'",
        "drop trigger guard_append on event_store.events",
        "create view public.theirs as select event_store.gone()",
    ):
        connection.execute(statement.encode())
    make_stale(connection)
    before = snapshot(dsn)
    with pytest.raises(SchemaMismatch, match=r"event_store\.gone\(\) of an older version must go") as refused:
        migrate(dsn)
    assert refused.value.detail == "view theirs depends on function event_store.gone()"
    assert snapshot(dsn) == before
    connection.execute("drop view public.theirs")
    assert migrate(dsn).functions_replaced
    assert snapshot(dsn) == fresh


def test_a_consumer_notices_nothing_while_functions_are_replaced(dsn: str, connect: Connect) -> None:
    admin, appender = connect(), PlatformStore(connect())
    register_orders(appender).register_view("invoices", "-infinity")
    rounds, consumer, stopped = count(), connect(), False
    delivered: list[int] = []
    progress = 0

    def consume() -> None:
        nonlocal progress
        while not stopped:
            append_to(appender, f"o-{next(rounds)}")
            delivered.extend(consume_rows(consumer))
            progress += 1

    consuming = start(consume)
    for number in range(3):
        seen = progress
        wait_until(lambda seen=seen: consuming.done() or progress > seen + 5, "the consumer goes on")  # type: ignore[misc]
        with admin.transaction():
            make_stale(admin)
            # other signatures, which cannot be replaced but must be dropped and created again
            admin.execute("create function event_store.ack_event(int) returns int language sql as 'select 1'")
            admin.execute(f"drop function {EXPIRED_LEASES}()")
            admin.execute(f"create function {EXPIRED_LEASES}() returns int language sql as 'select 1'")
        assert migrate(dsn).functions_replaced, number
    stopped = True
    consuming.result(patience())
    pump(appender, "invoices")
    delivered += consume_rows(consumer)
    assert len(delivered) == len(set(delivered)) == next(rounds)


def test_an_open_transaction_delays_only_migrators(dsn: str, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    long, other, observer = connect(autocommit=False), PlatformStore(connect()), connect()
    register_orders(other)
    append_to(PlatformStore(long), "o-1")
    make_stale(observer)
    with monkeypatch.context() as at_once:
        at_once.setattr(migrations, "PATIENCE_S", 0)
        with pytest.raises(MillraceError, match="open transaction is in the way") as refused:
            migrate(dsn)
    assert "canceling statement due to lock timeout" in str(refused.value)
    assert value(observer, "select name from event_store.migrations where version = 0") == "other"
    migrating = start(lambda: migrate(dsn))
    wait_until(lambda: rows(observer, f"select {WAITING}") == [()], "the migrator waits for the open transaction")
    append_to(other, "o-2")
    # a deadlock; the migrator gives way
    PlatformStore(long).register_decider_event("order", "returned", "order was returned")
    append_to(PlatformStore(long), "o-3")
    assert not migrating.done()
    long.commit()
    assert migrating.result(patience()).functions_replaced


def granted(dsn: str, role: str, function: str) -> bool:
    with psycopg.connect(dsn) as connection:
        query = "select has_function_privilege(%s, %s::regproc, 'execute')"
        return bool(value(connection, query, role, function))


def let_code_have(monkeypatch: pytest.MonkeyPatch, **parts: object) -> None:
    replaceable = replace(read_replaceable(), **parts)  # type: ignore[arg-type]
    monkeypatch.setattr(migrations, "read_replaceable", lambda: replaceable)


def test_privileges_follow_the_functions(dsn: str, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    assert granted(dsn, "event_store_consumer", EXPIRED_LEASES)
    with monkeypatch.context() as changed:
        let_code_have(changed, privileges=f"revoke execute on function {EXPIRED_LEASES}() from event_store_consumer")
        with pytest.raises(SchemaMismatch, match="another version"):
            validate(dsn)
        connect().execute(f"drop function {EXPIRED_LEASES}()")
        assert migrate(dsn).functions_replaced
        validate(dsn)
        assert not migrate(dsn).functions_replaced
    assert not granted(dsn, "event_store_consumer", EXPIRED_LEASES)
    with monkeypatch.context() as changed:
        let_code_have(changed, privileges=f"grant execute on function {EXPIRED_LEASES}() to public; select 1/0")
        with pytest.raises(psycopg.errors.DivisionByZero):
            migrate(dsn)
    assert not granted(dsn, "public", EXPIRED_LEASES)


def test_a_right_that_a_functions_file_no_longer_gives_is_gone(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    functions = read_replaceable().functions
    given = "to event_store_consumer, event_store_reader, event_store_owner"
    assert given in functions["expired_leases"]
    fewer = functions["expired_leases"].replace(given, "to event_store_consumer, event_store_owner")
    with psycopg.connect(dsn, autocommit=True) as connection:
        # a privilege granted by hand to a role of Millrace goes; a user's own role keeps it
        connection.execute("grant execute on function event_store.commit_batch to public, event_store_reader")
        connection.execute("grant execute on function event_store_private.clock to public, event_store_reader")
        connection.execute("grant execute on function event_store_platform.expired_leases to pg_monitor")
    let_code_have(monkeypatch, functions=functions | {"expired_leases": fewer})
    assert migrate(dsn).functions_replaced
    commit, clock = "event_store.commit_batch", "event_store_private.clock"
    asked = [("event_store_reader", each) for each in (EXPIRED_LEASES, commit, clock)] + [("public", commit)]
    asked += [
        ("event_store_consumer", EXPIRED_LEASES),
        ("event_store_consumer", commit),
        ("pg_monitor", EXPIRED_LEASES),
    ]
    assert [granted(dsn, *each) for each in asked] == [False] * 4 + [True] * 3


def test_a_function_has_the_settings_of_its_kinds(dsn: str, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    connection, functions = connect(), read_replaceable().functions
    settings = "select proconfig from pg_proc where oid = 'event_store_platform.expired_leases'::regproc"

    def migrate_with(kinds: str) -> set[str]:
        changed = functions["expired_leases"].replace("-- planner: indexed ordered\n", f"-- planner: {kinds}\n")
        assert changed != functions["expired_leases"]
        with monkeypatch.context() as patch:
            let_code_have(patch, functions=functions | {"expired_leases": changed})
            migrate(dsn)
        return {each for each in value(connection, settings) if not each.startswith("search_path")}

    off = {f"enable_{each}=off" for each in ("seqscan", "bitmapscan", "hashjoin", "mergejoin", "sort")}
    generic = {*off, "jit=off", "plan_cache_mode=force_generic_plan"}
    assert migrate_with("indexed ordered nested unsorted once") == generic
    assert migrate_with("each uncompiled") == {"jit=off", "plan_cache_mode=force_custom_plan"}
    with pytest.raises(psycopg.errors.SyntaxError):
        migrate_with("indexed fast")


def test_a_role_is_told_what_it_lacks(empty: str, postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    with psycopg.connect(postgres.dsn("postgres"), autocommit=True) as admin:
        admin.execute("create role plain login")
        admin.execute("alter database empty owner to plain")
        plain = empty.replace("postgres@", "plain@")
        with monkeypatch.context() as changed:
            let_code_have(changed, roles="create role millrace_test")
            with pytest.raises(MillraceError, match="The role plain may not") as refused:
                migrate(plain)
        assert "permission denied to create role" in str(refused.value)
        assert "CREATEROLE" in str(refused.value.hint)
        assert value(admin, "select count(*) from pg_roles where rolname = 'millrace_test'") == 0

        assert migrate(plain).functions_replaced
        admin.execute("drop database empty with (force)")
        admin.execute("drop role plain")
        admin.execute("create database empty")
