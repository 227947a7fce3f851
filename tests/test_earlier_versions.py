"""Databases of earlier versions, and older servers: migrated, they keep what they hold and go on."""

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from resources.embedded_postgres import PROGRAMS, EmbeddedPostgres, major_version
from resources.event_store import EventStore
from resources.migrations import known_migrations, known_replaceable, migrate, validate
from tests.data.generate import DATA, fill, snapshot
from tests.factories import append_to, assert_log_holds_every_event_once, rows, value
from tests.migrators import VERSIONS, consume_rows, empty

__all__ = ["empty"]

RELEASED = {int(path.stem.removeprefix("version_")): path for path in DATA.glob("version_*.sql")}
# What later versions keep elsewhere, or no longer.
MOVED = {("event_store.views", "dispatched_at")}


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

    connection.execute("select event_store.dispatch_events('invoices')")
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
