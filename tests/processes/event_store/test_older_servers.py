"""Older servers: PostgreSQL 15, 16 and 17 migrate, store and deliver as the one of the wheel does."""

import tempfile
from pathlib import Path

import psycopg
import pytest

from millrace.resources.capture.store import CaptureStore
from millrace.resources.event_store import EventStore
from millrace.resources.event_store.migrations import migrate, validate
from millrace.resources.postgres.embedded import PROGRAMS, EmbeddedPostgres, major_version
from tests.support.capturing.captures import Source, inserted, with_data
from tests.support.factories import append_to, assert_log_holds_every_event_once, rows, value
from tests.support.filled_store import fill
from tests.support.migrators import consume_rows


def consume_bulk(connection: psycopg.Connection) -> list[tuple[int, int]]:
    """Take all that the view orders is given: log partitions and positions."""
    taken = []
    claim = "select * from event_store.claim_batch('orders', 'drain-2', 7)"
    while batch := rows(connection, claim):
        for partition, begin, end, token in batch:
            taken += [(partition, position) for position in range(begin, end)]
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
        where l.position is null or l.position >= c.position or e."offset" > k.last_offset
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
    # the search for free locks begins later than that, but once a minute at the beginning
    connection.execute("update event_store.dispatches set swept_at = '-infinity'")

    connection.execute("select event_store.dispatch_events('invoices')")
    delivered = consume_rows(connection)
    assert sorted(delivered) == sorted(due)
    taken = consume_bulk(connection)
    marks = dict(rows(connection, "select partition, high_water_mark from event_store.partitions"))
    assert sorted(taken) == [(p, position) for p in sorted(marks) for position in range(positions[p], marks[p])]
    assert value(connection, "select count(*) from event_store.stream_locks where in_flight is not null") == 0
    assert value(connection, "select sum(behind) from event_store.view_lag('invoices')") == 0
    assert value(connection, "select sum(behind) from event_store.view_lag('orders')") == 0


def read_other_digits(dsn: str) -> None:
    """Read a forged change whose numbers and date have digits that a collation of ICU's takes for digits, too."""
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
                return  # this one was built without ICU; Debian's have it
        migrate(server.dsn("icu"), log_partitions=4)
        read_other_digits(server.dsn("icu"))
