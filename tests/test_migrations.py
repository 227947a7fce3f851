"""Migrators: at once, killed, behind, ahead; on databases of earlier versions, on other servers, beside running sessions."""

import json
import re
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from resources import migrations
from resources.embedded_postgres import PROGRAMS, EmbeddedPostgres, major_version
from resources.errors import MillraceError, SchemaMismatch
from resources.event_store import EventStore
from resources.migrations import Migration, Replaceable, known_migrations, known_replaceable, migrate, validate
from tests.data.generate import DATA, fill, snapshot
from tests.factories import (
    Connect,
    append_to,
    assert_log_holds_every_event_once,
    at_once,
    pump,
    register_orders,
    rows,
    start,
    value,
    wait_until,
)

VERSIONS = len(known_migrations())
RELEASED = {int(path.stem.removeprefix("version_")): path for path in DATA.glob("version_*.sql")}
WAITING = "from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
# What later versions keep elsewhere, or no longer.
MOVED = {("event_store.views", "dispatched_at")}


@pytest.fixture
def empty(postgres: EmbeddedPostgres) -> Iterator[str]:
    """A database without a store."""
    with psycopg.connect(postgres.dsn("postgres"), autocommit=True) as admin:
        admin.execute("create database empty")
        yield postgres.dsn("empty")
        admin.execute("drop database empty with (force)")


def applied(dsn: str) -> list[int]:
    with psycopg.connect(dsn) as connection:
        return [row[0] for row in rows(connection, "select version from event_store.migrations order by version")]


def test_an_empty_database_is_brought_to_the_schema_of_the_code(empty: str) -> None:
    with pytest.raises(SchemaMismatch, match="millrace migrate"):
        validate(empty)
    report = migrate(empty, log_partitions=4)
    assert (report.version, len(report.applied), report.functions_replaced) == (VERSIONS, VERSIONS, True)
    validate(empty)
    with psycopg.connect(empty) as connection:
        assert value(connection, "select count(*) from event_store.partitions") == 4


def test_migrating_again_only_reads_and_waits_for_nobody(dsn: str, connect: Connect) -> None:
    somebody = connect(autocommit=False)
    somebody.execute("select pg_advisory_xact_lock(hashtextextended('event_store.migrations', 0))")
    somebody.execute("lock table event_store.events, event_store.views, event_store.stream_locks")
    somebody.execute("lock table event_store.migrations, event_store.partitions in exclusive mode")
    report = migrate(f"{dsn}&options=-cdefault_transaction_read_only%3Don%20-clock_timeout%3D1")
    assert (report.applied, report.functions_replaced, report.version) == ((), False, VERSIONS)


def test_ten_migrators_at_once_apply_each_version_once(empty: str) -> None:
    reports = [result.result() for result in at_once([lambda: migrate(empty) for _ in range(10)])]
    assert sorted(name for report in reports for name in report.applied) == [m.name for m in known_migrations()]
    assert sum(report.functions_replaced for report in reports) == 1
    assert applied(empty) == list(range(VERSIONS + 1))
    validate(empty)


def killed_migrator(dsn: str, obstacle: str) -> None:
    """Run a migrator into an obstacle and kill its session there."""
    with psycopg.connect(dsn, autocommit=True) as observer, psycopg.connect(dsn) as blocker:
        observer.execute("create schema if not exists event_store")
        blocker.execute(obstacle.encode())
        killed = start(lambda: migrate(dsn))
        kill = f"select pg_terminate_backend(pid) {WAITING}"
        wait_until(lambda: observer.execute(kill.encode()).fetchall() == [(True,)], "the migrator waits, and is killed")
        assert isinstance(killed.exception(20), psycopg.OperationalError)
        blocker.rollback()


def test_killed_within_a_migration_nothing_of_it_stays_and_the_next_call_does_it(empty: str) -> None:
    killed_migrator(empty, "create table event_store.stream_locks ()")
    with psycopg.connect(empty) as connection:
        assert value(connection, "select count(*) from pg_class where relnamespace = 'event_store'::regnamespace") == 0
    assert len(migrate(empty).applied) == VERSIONS
    validate(empty)


def test_killed_within_the_functions_the_last_migration_is_not_done_either(empty: str) -> None:
    killed_migrator(
        empty,
        "create function event_store.view_lag(text) returns int language sql as 'select 1'",
    )
    assert applied(empty) == list(range(1, VERSIONS))
    with pytest.raises(SchemaMismatch, match="behind the code"):
        validate(empty)
    report = migrate(empty)
    assert (report.applied, report.functions_replaced) == ((known_migrations()[-1].name,), True)
    validate(empty)


def test_a_failing_migration_leaves_those_before_it_and_is_resumed(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = known_migrations()
    broken = Migration(VERSIONS + 1, "0099_broken", "create table event_store.half (); select 1/0")
    monkeypatch.setattr(migrations, "known_migrations", lambda: [*known, broken])
    with pytest.raises(psycopg.errors.DivisionByZero):
        migrate(empty)
    assert applied(empty) == list(range(1, VERSIONS + 1))
    with psycopg.connect(empty) as connection:
        assert value(connection, "select to_regclass('event_store.half')") is None
    with pytest.raises(SchemaMismatch, match="missing: 0099_broken"):
        validate(empty)
    mended = Migration(VERSIONS + 1, "0099_mended", "create table event_store.half ()")
    monkeypatch.setattr(migrations, "known_migrations", lambda: [*known, mended])
    assert migrate(empty).applied == ("0099_mended",)
    validate(empty)


def test_a_newer_schema_than_the_code_is_refused_and_left_alone(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("insert into event_store.migrations (version, name) values (99, '0099_future')")
        connection.execute("update event_store.migrations set name = 'future functions' where version = 0")
        before = rows(connection, "select * from event_store.migrations order by version")
        for call in (migrate, validate):
            with pytest.raises(SchemaMismatch, match=f"database: version 99; code: version {VERSIONS}"):
                call(dsn)
        assert rows(connection, "select * from event_store.migrations order by version") == before


def test_functions_of_another_version_are_found_and_replaced(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("update event_store.migrations set name = 'other' where version = 0")
        connection.execute(
            "create or replace function event_store.sequence_events() returns bigint language sql as 'select 7::bigint'"
        )
        with pytest.raises(SchemaMismatch, match="functions of another version"):
            validate(dsn)
        assert migrate(dsn).functions_replaced
        assert value(connection, "select event_store.sequence_events()") == 0


def test_the_number_of_log_partitions_is_fixed(dsn: str) -> None:
    with pytest.raises(SchemaMismatch, match="has 16 log partitions, not 8") as refused:
        migrate(dsn, log_partitions=8)
    assert refused.value.hint == "Set MILLRACE_LOG_PARTITIONS=16."
    with psycopg.connect(dsn) as connection:
        assert value(connection, "select count(*) from event_store.partitions") == 16


def test_migrating_keeps_what_is_stored(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        store = register_orders(EventStore(connection))
        store.register_view("v", "-infinity")
        append_to(store, "o-1", "o-2", "o-1")
        store.sequence_events()
        connection.execute("update event_store.migrations set name = 'other' where version = 0")
        migrate(dsn)
        assert store.sequence_events() == 0
        assert len(store.get_events("o-1", "order")) == 2


def test_migrations_are_numbered_without_gaps(tmp_path: Path) -> None:
    for name in ("0001_one.sql", "0003_three.sql"):
        (tmp_path / name).write_text("select 1")
    with pytest.raises(SchemaMismatch, match="without gaps"):
        known_migrations(tmp_path)


# Databases of earlier versions -----------------------------------------------------------------------------------


def load(dsn: str, version: int) -> None:
    """Fill an empty database with what a released version left there."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(RELEASED[version].read_bytes())


def stored(connection: psycopg.Connection) -> dict[str, list[dict[str, Any]]]:
    """Read every row of every table but the migrations."""
    tables = rows(
        connection,
        """
        select schemaname, tablename
        from pg_tables
        where schemaname in ('event_store', 'read_models') and tablename <> 'migrations'
        """,
    )
    query = sql.SQL("select to_jsonb(t) from {} t")
    return {
        f"{schema}.{table}": [row for (row,) in connection.execute(query.format(sql.Identifier(schema, table)))]
        for schema, table in tables
    }


def assert_kept(before: dict[str, list[dict[str, Any]]], after: dict[str, list[dict[str, Any]]]) -> None:
    """Every row is there with every column that it had."""
    for table, was in before.items():
        columns = {column for row in was for column in row} - {column for name, column in MOVED if name == table}
        kept = [{column: row.get(column) for column in columns} for row in after[table]]
        expected = [{column: row[column] for column in columns} for row in was]
        assert sorted(kept, key=key) == sorted(expected, key=key), table


def key(row: dict[str, Any]) -> str:
    return json.dumps(row, sort_keys=True)


def consume_rows(connection: psycopg.Connection) -> list[int]:
    """Take all that the view invoices is given, event by event."""
    delivered = []
    while batch := rows(connection, """select decider_id, "offset" from event_store.stream_events('invoices', 5)"""):
        for decider_id, offset in batch:
            delivered.append(offset)
            connection.execute("select from event_store.ack_event('invoices', %s::text, %s)", (decider_id, offset))
    return delivered


def consume_bulk(connection: psycopg.Connection) -> list[tuple[int, int]]:
    """Take all that the view orders is given: log partitions and partition offsets."""
    taken = []
    claim = "select * from event_store.claim_batch('orders', 'drain-2', 7)"
    while batch := rows(connection, claim):
        for partition, begin, end, token in batch:
            taken += [(partition, offset) for offset in range(begin, end)]
            commit(connection, partition, end, token)
    return taken


def commit(connection: psycopg.Connection, partition: int, end: int, token: int) -> None:
    connection.execute(
        "select event_store.commit_batch('orders', %s::int[], %s::bigint[], %s::bigint[])",
        ([partition], [end], [token]),
    )


def go_on(connection: psycopg.Connection) -> None:
    """Go on with a store that was filled: whoever held something finishes it, the rest is consumed once."""
    unacknowledged = """
        select e."offset"
        from event_store.events e
        left join event_store.event_log l using ("offset")
        left join event_store.checkpoints c on c.view = 'invoices' and c.partition = l.partition
        left join event_store.stream_locks k
          on k.view = 'invoices' and k.decider_id = e.decider_id and k.decider = e.decider
        where l.partition_offset is null or l.partition_offset >= c.position or e."offset" > k.last_offset
    """
    positions = dict(rows(connection, "select partition, position from event_store.checkpoints where view = 'orders'"))
    due = {offset for (offset,) in rows(connection, unacknowledged)}
    assert len(due) == 39
    assert sum(positions.values()) == 19

    ((decider_id, in_flight),) = rows(
        connection, "select decider_id, in_flight from event_store.stream_locks where in_flight is not null"
    )
    connection.execute("select from event_store.ack_event('invoices', %s::text, %s)", (decider_id, in_flight))
    ((partition, token),) = rows(
        connection, "select partition, lease_token from event_store.checkpoints where lease_owner = 'drain-1'"
    )
    commit(connection, partition, positions[partition] + 1, token)
    positions[partition] += 1
    due.remove(in_flight)

    with connection.transaction():
        connection.execute("select set_config('event_store.clock', '', true)")
        due |= {event.offset for event in append_to(EventStore(connection), "o-1", "o-2", "new-1", "new-2", "new-1")}
    while value(connection, "select event_store.sequence_events()") or not value(
        connection, "select count(*) = 45 from event_store.event_log"
    ):
        pass
    assert_log_holds_every_event_once(connection)
    connection.execute("update event_store.stream_locks set locked_until = '-infinity'")

    delivered = consume_rows(connection)
    assert sorted(delivered) == sorted(due)
    taken = consume_bulk(connection)
    marks = dict(rows(connection, "select partition, high_water_mark from event_store.partitions"))
    assert sorted(taken) == [(p, offset) for p in sorted(marks) for offset in range(positions[p], marks[p])]
    assert value(connection, "select count(*) from event_store.stream_locks where in_flight is not null") == 0
    assert value(connection, "select sum(lag) from event_store.view_lag('invoices')") == 0
    assert value(connection, "select sum(lag) from event_store.view_lag('orders')") == 0


@pytest.mark.parametrize("version", sorted(RELEASED))
def test_a_database_of_an_earlier_version_keeps_its_data_and_goes_on(version: int, empty: str, dsn: str) -> None:
    load(empty, version)
    with psycopg.connect(empty, autocommit=True) as connection:
        before = stored(connection)
        assert migrate(empty, log_partitions=4).applied == tuple(m.name for m in known_migrations()[version:])
        assert_kept(before, stored(connection))
        assert snapshot(empty) == snapshot(dsn)
        go_on(connection)


def test_a_released_version_stays_as_it_is() -> None:
    assert VERSIONS - 1 in RELEASED, (
        f"before a migration is added, write down version {VERSIONS - 1}: check its code out and run "
        "`.venv/bin/python -m tests.data.generate version`"
    )
    if VERSIONS in RELEASED:
        (hash_,) = re.findall(r"migrations VALUES \(0, '(\w+)'", RELEASED[VERSIONS].read_text())
        assert hash_ == known_replaceable().hash, (
            f"the functions or privileges are no longer those that were released as version {VERSIONS}, and a migrator of "
            "that release would put its own back: add a migration; one comment is enough"
        )


# Functions and privileges ----------------------------------------------------------------------------------------


def make_stale(connection: psycopg.Connection) -> None:
    connection.execute("update event_store.migrations set name = 'other' where version = 0")


def test_removed_and_changed_functions_leave_nothing_behind(dsn: str, connect: Connect) -> None:
    connection = connect()
    fresh = snapshot(dsn)
    for statement in (
        "create function event_store.gone() returns int language sql as 'select 1'",
        "create procedure event_store.gone(int) language sql as 'select 1'",
        "create function event_store.sequence_events(boolean default true) returns int language sql as 'select 1'",
        "drop function event_store.offset_for_timestamp, event_store.poll_views, event_store.stream_partition",
        "create function event_store.stream_partition(other text, names bigint) returns int language sql as 'select 1'",
        "create function event_store.poll_views() returns text language sql as $$ select 'another result' $$",
        "drop trigger guard_append on event_store.events",
    ):
        connection.execute(statement.encode())
    make_stale(connection)
    assert migrate(dsn).functions_replaced
    assert snapshot(dsn) == fresh


def test_a_function_that_somebody_needs_is_not_dropped(dsn: str, connect: Connect) -> None:
    connection = connect()
    connection.execute("create function event_store.gone() returns int language sql as 'select 1'")
    connection.execute("create function event_store.view_lag() returns int language sql as 'select 1'")
    connection.execute("create view public.theirs as select event_store.gone()")
    make_stale(connection)
    before = snapshot(dsn)
    with pytest.raises(SchemaMismatch, match=r"event_store\.gone\(\) of an older version must go") as refused:
        migrate(dsn)
    assert refused.value.detail == "view theirs depends on function event_store.gone()"
    assert snapshot(dsn) == before
    connection.execute("drop view public.theirs")
    assert migrate(dsn).functions_replaced


def test_a_migration_drops_a_trigger_and_its_function(
    dsn: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect()
    fresh = snapshot(dsn)
    connection.execute("create function event_store.gone() returns trigger language plpgsql as 'begin end'")
    connection.execute(
        "create trigger gone before insert on event_store.views for each row execute function event_store.gone()"
    )
    known = known_migrations()
    dropping = "drop trigger gone on event_store.views; drop function event_store.gone()"
    monkeypatch.setattr(
        migrations, "known_migrations", lambda: [*known, Migration(VERSIONS + 1, "0099_dropping", dropping)]
    )
    assert migrate(dsn).applied == ("0099_dropping",)
    assert snapshot(dsn) == fresh


def test_a_consumer_notices_nothing_while_functions_are_replaced(dsn: str, connect: Connect) -> None:
    admin, appender = connect(), EventStore(connect())
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
    for number in range(8):
        seen = progress
        wait_until(lambda seen=seen: consuming.done() or progress > seen + 5, "the consumer goes on")  # type: ignore[misc]
        with admin.transaction():
            make_stale(admin)
            # other signatures, which cannot be replaced but must be dropped and made anew
            admin.execute("create function event_store.ack_event(int) returns int language sql as 'select 1'")
            admin.execute("drop function event_store.poll_views()")
            admin.execute("create function event_store.poll_views() returns int language sql as 'select 1'")
        assert migrate(dsn).functions_replaced, number
    stopped = True
    consuming.result(20)
    pump(appender, "invoices")
    delivered += consume_rows(consumer)
    assert len(delivered) == len(set(delivered)) == next(rounds)


def test_an_open_transaction_delays_the_migrator_and_nobody_else(dsn: str, connect: Connect) -> None:
    long, other, observer = connect(autocommit=False), EventStore(connect()), connect()
    register_orders(other)
    append_to(EventStore(long), "o-1")
    make_stale(observer)
    migrating = start(lambda: migrate(dsn))
    wait_until(lambda: rows(observer, f"select {WAITING}") == [()], "the migrator waits for the open transaction")
    append_to(other, "o-2")
    # each waits for the other here, and the migrator gives way
    EventStore(long).register_decider_event("order", "returned", "order was returned")
    append_to(EventStore(long), "o-3")
    assert not migrating.done()
    long.commit()
    assert migrating.result(20).functions_replaced


def test_the_migrator_gives_up_and_says_who_is_in_the_way(
    dsn: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "PATIENCE_S", 0)
    long, admin = connect(autocommit=False), connect()
    register_orders(EventStore(admin))
    append_to(EventStore(long), "o-1")
    make_stale(admin)
    with pytest.raises(MillraceError, match="open transaction is in the way") as refused:
        migrate(dsn)
    assert "canceling statement due to lock timeout" in str(refused.value)
    assert value(admin, "select name from event_store.migrations where version = 0") == "other"


def with_privileges(monkeypatch: pytest.MonkeyPatch, privileges: str) -> None:
    """Let the code have these privileges."""
    replaceable = Replaceable(known_replaceable().functions, privileges)
    monkeypatch.setattr(migrations, "known_replaceable", lambda: replaceable)


def test_changed_privileges_are_applied_after_the_functions(
    dsn: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_privileges(monkeypatch, "revoke execute on function event_store.poll_views() from public")
    with pytest.raises(SchemaMismatch, match="another version"):
        validate(dsn)
    connection = connect()
    connection.execute("drop function event_store.poll_views()")
    assert migrate(dsn).functions_replaced
    validate(dsn)
    assert not migrate(dsn).functions_replaced
    assert "REVOKE ALL ON FUNCTION event_store.poll_views() FROM PUBLIC" in snapshot(dsn)

    with_privileges(monkeypatch, "grant execute on function event_store.poll_views() to public; select 1/0")
    with pytest.raises(psycopg.errors.DivisionByZero):
        migrate(dsn)
    assert "REVOKE ALL ON FUNCTION event_store.poll_views() FROM PUBLIC" in snapshot(dsn)


def test_a_role_without_the_rights_is_told_what_it_needs(
    empty: str, postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(postgres.dsn("postgres"), autocommit=True) as admin:
        admin.execute("create role plain login")
        admin.execute("alter database empty owner to plain")
        plain = empty.replace("postgres@", "plain@")
        with_privileges(monkeypatch, "create role millrace_test")
        with pytest.raises(MillraceError, match="The role plain may not") as refused:
            migrate(plain)
        assert "permission denied to create role" in str(refused.value)
        assert "CREATEROLE" in str(refused.value.hint)
        assert value(admin, "select count(*) from pg_roles where rolname = 'millrace_test'") == 0

        with_privileges(monkeypatch, "")
        assert migrate(plain).functions_replaced
        admin.execute("drop database empty with (force)")
        admin.execute("drop role plain")
        admin.execute("create database empty")


# Other servers ---------------------------------------------------------------------------------------------------


def programs_of(major: int) -> Path | None:
    """Find the programs of a version of PostgreSQL: those of the wheel, or those of the machine."""
    wheel = PROGRAMS.parent.parent / "pginstall" / "bin"
    candidates = [wheel, Path(f"/usr/lib/postgresql/{major}/bin")]
    return next((p for p in candidates if (p / "postgres").exists() and major_version(p) == major), None)


@pytest.mark.parametrize("major", [15, 16, 17])
def test_an_older_postgres_does_it_too(major: int) -> None:
    programs = programs_of(major)
    if programs is None:
        pytest.skip(f"PostgreSQL {major} is not on this machine: install the package postgresql-{major}")
    with (
        tempfile.TemporaryDirectory(prefix="millrace-") as directory,
        EmbeddedPostgres(Path(directory), programs) as server,
    ):
        for name in ("fresh", "earlier"):
            server.create_database(name)
            if name == "earlier":
                load(server.dsn(name), max(RELEASED))
            migrate(server.dsn(name), log_partitions=4)
            validate(server.dsn(name))
            with psycopg.connect(server.dsn(name), autocommit=True) as connection:
                assert connection.info.server_version // 10_000 == major
                if name == "fresh":
                    fill(connection)
                go_on(connection)
