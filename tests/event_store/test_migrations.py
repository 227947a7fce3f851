"""Migrators: concurrent, killed, behind, ahead."""

from pathlib import Path
from typing import LiteralString

import psycopg
import pytest

from millrace.errors import SchemaMismatch
from millrace.event_store import migrations
from millrace.event_store.migrations import Migration, function_files, migrate, read_migrations, validate
from millrace.event_store.platform import PlatformStore
from tests.support.factories import Connect, append_to, at_once, register_orders, rows, start, value
from tests.support.migrators import VERSIONS, WAITING, applied, empty
from tests.support.patience import patience, wait_until
from tests.support.sql_calls import get_events

__all__ = ["empty"]


def test_migrating_again_only_reads_and_waits_for_nobody(dsn: str, connect: Connect) -> None:
    somebody = connect(autocommit=False)
    somebody.execute("select pg_advisory_xact_lock(hashtextextended('event_store.migrations', 0))")
    somebody.execute("lock table event_store.events, event_store.views, event_store.stream_locks")
    somebody.execute("lock table event_store.migrations, event_store.partitions in exclusive mode")
    report = migrate(f"{dsn}&options=-cdefault_transaction_read_only%3Don%20-clock_timeout%3D1")
    assert (report.applied, report.functions_replaced, report.version) == ((), False, VERSIONS)


def test_ten_migrators_at_once_make_the_schema(empty: str) -> None:
    with pytest.raises(SchemaMismatch, match="millrace migrate"):
        validate(empty)
    reports = [result.result() for result in at_once([lambda: migrate(empty, log_partitions=4) for _ in range(10)])]
    assert sorted(name for report in reports for name in report.applied) == [m.name for m in read_migrations()]
    assert sum(report.functions_replaced for report in reports) == 1
    assert {report.version for report in reports} == {VERSIONS}
    assert applied(empty) == list(range(VERSIONS + 1))
    validate(empty)
    with psycopg.connect(empty) as connection:
        assert value(connection, "select count(*) from event_store.partitions") == 4
    for others in (8, 16):
        with pytest.raises(SchemaMismatch, match=f"has 4 log partitions, not {others}") as refused:
            migrate(empty, log_partitions=others)
        assert refused.value.hint == "Set MILLRACE_LOG_PARTITIONS=4."


def killed_migrator(dsn: str, obstacle: str) -> None:
    """Run a migrator into an obstacle and kill its session there."""
    with psycopg.connect(dsn, autocommit=True) as observer, psycopg.connect(dsn) as blocker:
        observer.execute("create schema if not exists event_store")
        blocker.execute(obstacle.encode())
        killed = start(lambda: migrate(dsn))
        kill = f"select pg_terminate_backend(pid) {WAITING}"
        wait_until(lambda: observer.execute(kill.encode()).fetchall() == [(True,)], "the migrator waits, and is killed")
        assert isinstance(killed.exception(patience()), psycopg.OperationalError)
        blocker.rollback()


def test_what_a_killed_migrator_was_at_is_undone_and_the_next_one_does_it(empty: str) -> None:
    killed_migrator(empty, "create table event_store.streams ()")
    with psycopg.connect(empty) as connection:
        assert value(connection, "select count(*) from pg_class where relnamespace = 'event_store'::regnamespace") == 0
    # killed within the functions, which belong to the last migration
    killed_migrator(empty, "create function event_store.view_lag(text) returns int language sql as 'select 1'")
    assert applied(empty) == list(range(1, VERSIONS))
    with pytest.raises(SchemaMismatch, match="behind the code"):
        validate(empty)
    report = migrate(empty)
    assert (report.applied, report.functions_replaced) == ((read_migrations()[-1].name,), True)
    validate(empty)


def test_a_failing_migration_leaves_those_before_it_and_is_resumed(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = read_migrations()
    before, broken, mended = (
        Migration(VERSIONS + 1, "0098_before", "create table event_store.whole ()"),
        Migration(VERSIONS + 2, "0099_broken", "create table event_store.half (); select 1/0"),
        Migration(VERSIONS + 2, "0099_mended", "create table event_store.half ()"),
    )
    monkeypatch.setattr(migrations, "read_migrations", lambda: [*known, before, broken])
    with pytest.raises(psycopg.errors.DivisionByZero):
        migrate(dsn)
    assert applied(dsn) == list(range(VERSIONS + 2))
    with psycopg.connect(dsn) as connection:
        assert value(connection, "select to_regclass('event_store.half')") is None
        assert value(connection, "select to_regclass('event_store.whole') is not null")
    with pytest.raises(SchemaMismatch, match="missing: 0099_broken"):
        validate(dsn)
    monkeypatch.setattr(migrations, "read_migrations", lambda: [*known, before, mended])
    assert migrate(dsn).applied == ("0099_mended",)
    validate(dsn)


@pytest.mark.parametrize(
    ("version", "name", "said", "remedy"),
    [
        (0, "future functions", f"database: version 99; code: version {VERSIONS}", ""),
        # before the first release, a store had more migrations than there are now
        (1, "0001_event_store", "unreleased version", "restore"),
    ],
)
def test_a_schema_of_another_line_is_left_alone(dsn: str, version: int, name: str, said: str, remedy: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("insert into event_store.migrations (version, name) values (99, '0099_future')")
        connection.execute("update event_store.migrations set name = %s where version = %s", (name, version))
        known: LiteralString = "select * from event_store.migrations order by version"
        before = rows(connection, known)
        for call in (migrate, validate):
            with pytest.raises(SchemaMismatch, match=said) as refused:
                call(dsn)
            assert remedy in str(refused.value.hint)
        assert rows(connection, known) == before


def test_functions_of_another_version_are_replaced(dsn: str, store: PlatformStore) -> None:
    register_orders(store).register_view("v", "-infinity")
    append_to(store, "o-1", "o-2", "o-1")
    store.sequence_events()
    store.connection.execute("update event_store.migrations set name = 'other' where version = 0")
    other = "create or replace function event_store_platform.sequence_events() returns bigint language sql"
    store.connection.execute(f"{other} as 'select 7::bigint'")
    with pytest.raises(SchemaMismatch, match="functions of another version"):
        validate(dsn)
    assert migrate(dsn).functions_replaced
    assert store.sequence_events() == 0
    assert len(get_events(store, "o-1", "order")) == 2


def test_files_have_numbers_without_gaps_and_names_once(tmp_path: Path) -> None:
    for name in ("0001_one.sql", "0003_three.sql"):
        (tmp_path / name).write_text("select 1")
    with pytest.raises(SchemaMismatch, match="without gaps"):
        read_migrations(tmp_path)
    for folder in ("one", "two"):
        (tmp_path / "functions" / folder).mkdir(parents=True)
        (tmp_path / "functions" / folder / "clock.sql").write_text("select 1")
    with pytest.raises(SchemaMismatch, match=r"Two files are named clock\.sql") as refused:
        function_files(tmp_path)
    assert refused.value.detail == "functions/one/clock.sql, functions/two/clock.sql"
