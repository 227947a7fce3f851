"""Older servers: PostgreSQL 15, 16 and 17 migrate, store and deliver as the wheel's server does."""

from pathlib import Path

import psycopg
import pytest

from millrace.capture.store import CaptureStore
from millrace.event_store.migrations import migrate, validate
from millrace.event_store.platform import PlatformStore
from millrace.postgres.embedded import PROGRAMS, major_version
from tests.support.capturing.captures import Source, inserted, with_data
from tests.support.factories import append_to, assert_log_holds_every_event_once, rows, set_clock, value
from tests.support.filled_store import fill
from tests.support.migrators import consume_rows
from tests.support.patience import wait_until
from tests.support.running.own_server import own_server


def go_on(connection: psycopg.Connection) -> None:
    """Continue with a filled store: leases and locks are free again, and the rest is consumed once."""
    store = PlatformStore(connection)
    set_clock(connection, "")
    append_to(store, "o-1", "o-2", "new-1", "new-2", "new-1")
    wait_until(
        lambda: not store.sequence_events() and value(connection, "select count(*) = 45 from event_store.event_log"),
        "all events are in the log",
    )
    assert_log_holds_every_event_once(connection)
    for statement in (
        "update event_store.stream_locks set locked_until = '-infinity'",
        # make the search for expired locks, which runs once a minute, due at once
        "update event_store.dispatches set swept_at = '-infinity'",
        "update event_store.checkpoints set leased_until = '-infinity' where leased_until is not null",
    ):
        connection.execute(statement)
    owed = {view: sum(each.lag for each in store.view_lag(view)) for view in ("invoices", "orders")}
    store.dispatch_events("invoices")
    delivered = consume_rows(connection)
    assert len(delivered) == len(set(delivered)) == owed["invoices"] > 0
    taken = 0
    while leases := store.claim_batch("orders", "drain-2", 7):
        taken += sum(len(store.read_batch("orders", lease)) for lease in leases)
        store.commit_batch("orders", leases)
    assert taken == owed["orders"] > 0
    assert [each.lag for view in owed for each in store.view_lag(view) if each.lag] == []
    assert value(connection, "select count(*) from event_store.stream_locks where in_flight is not null") == 0


def read_other_digits(dsn: str) -> None:
    """Read a forged change with numbers and a date in digits that only an ICU collation takes for digits."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        forged = Source(CaptureStore(connection))
        forged.begin()
        (change,) = forged.changes(inserted(1))
        one, date = "\N{ARABIC-INDIC DIGIT ONE}", "\N{ARABIC-INDIC DIGIT TWO}026-01-31T00:00:00Z"
        source = {"generation": one, "oid": one}
        forged.save([with_data(change, commit_idx=one, committed_at=date, source=source)])
        forged.emit()
        assert rows(
            connection,
            """
            select source_generation, commit_idx, source_table_oid, committed_at, record is not null
            from event_store.change_events
            """,
        ) == [(None, None, None, None, True)]


def programs_of(major: int) -> Path | None:
    """Find the programs of a PostgreSQL version, from the wheel or from the machine."""
    wheel = PROGRAMS.parent.parent / "pginstall" / "bin"
    candidates = [wheel, Path(f"/usr/lib/postgresql/{major}/bin")]
    return next((p for p in candidates if (p / "postgres").exists() and major_version(p) == major), None)


@pytest.mark.parametrize("major", [15, 16, 17])
def test_an_older_postgres_does_it_too(major: int) -> None:
    programs = programs_of(major)
    if programs is None:
        pytest.skip(f"PostgreSQL {major} is not on this machine: install the package postgresql-{major}")
    with own_server(programs=programs) as server:
        server.create_database("fresh")
        migrate(server.dsn("fresh"), log_partitions=4)
        validate(server.dsn("fresh"))
        with psycopg.connect(server.dsn("fresh"), autocommit=True) as connection:
            assert connection.info.server_version // 10_000 == major
            fill(connection)
            go_on(connection)
        with psycopg.connect(server.dsn("postgres"), autocommit=True) as admin:
            try:
                admin.execute("create database icu template template0 locale_provider icu icu_locale 'en'")
            except psycopg.errors.FeatureNotSupported:
                return  # this server was built without ICU; Debian's have it
        migrate(server.dsn("icu"), log_partitions=4)
        read_other_digits(server.dsn("icu"))
