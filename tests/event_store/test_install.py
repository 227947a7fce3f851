"""sql/install.sql: `psql` alone makes the same store as the migrator, with the same refusals."""

import json
import subprocess
from dataclasses import dataclass
from uuid import uuid4

import psycopg
import pytest

from millrace.errors import SchemaMismatch
from millrace.event_store.migrations import migrate, validate
from millrace.postgres.embedded import PROGRAMS, EmbeddedPostgres
from tests.support.factories import refusal, rows, value
from tests.support.install_script import INSTALL, install, program_environment, snapshot
from tests.support.migrators import VERSIONS, empty

__all__ = ["empty"]

STATE = (
    "select partition, high_water_mark, earliest_position, archived_position from event_store.partitions order by 1",
    "select singleton, cluster, sequenced_at::text from event_store.sequencer",
    "select singleton from event_store.archive",
    "select version, name from event_store.migrations order by version",
)


@dataclass(frozen=True)
class Psql:
    """The psql of the wheel, connected to a database."""

    dsn: str

    def __call__(self, *options: str, check: bool = True) -> str:
        command = [str(PROGRAMS / "psql"), "-X", "-q", "-A", "-t", "-d", self.dsn, *options]
        done = subprocess.run(command, env=program_environment(), capture_output=True, text=True, check=False)
        if check:
            assert done.returncode == 0, done.stderr
        return done.stdout.strip() if done.returncode == 0 else done.stderr

    def ask(self, query: str) -> str:
        return self("-v", "ON_ERROR_STOP=1", "-c", query)


@pytest.fixture
def psql(empty: str) -> Psql:
    return Psql(empty)


def test_the_script_for_psql_is_what_the_code_writes() -> None:
    assert INSTALL.read_text() == install(), "Run: .venv/bin/python -m tests.support.install_script"


def test_psql_makes_the_store_that_the_migrator_makes_and_it_delivers(psql: Psql, dsn: str) -> None:
    psql("-v", "ON_ERROR_STOP=1", "-f", str(INSTALL))
    assert snapshot(psql.dsn) == snapshot(dsn)
    with psycopg.connect(psql.dsn) as installed, psycopg.connect(dsn) as migrated:
        for query in STATE:
            assert rows(installed, query) == rows(migrated, query)
    validate(psql.dsn)
    report = migrate(psql.dsn)
    assert (report.applied, report.functions_replaced, report.version) == ((), False, VERSIONS)

    psql.ask("select event_store.register_decider_event('order', 'placed', 'A customer placed an order')")
    event_id = uuid4()
    arguments = f"'placed', '{event_id}', 'order', 'o-1'::text, '{{\"total\": 7}}', gen_random_uuid(), null"
    psql.ask(f"select event_store.append_event({arguments})")
    psql.ask("select event_store.register_view('invoices', '-infinity')")
    event = json.loads(psql.ask("select to_json(e) from event_store.stream_events('invoices') e"))
    assert (event["event_id"], event["decider_id"], event["data"]) == (str(event_id), "o-1", {"total": 7})
    lock = psql.ask(f"select view, last_offset from event_store.ack_event('invoices', 'o-1'::text, {event['offset']})")
    # the answer comes from another session, so it counts by its offset
    assert lock == f"invoices|{event['offset']}"
    assert psql.ask("select count(*) from event_store.stream_events('invoices')") == "0"
    assert psql.ask("select count(*), max(high_water_mark) from event_store.partitions") == "16|1"


def test_the_number_of_log_partitions_is_chosen(psql: Psql) -> None:
    psql("-v", "log_partitions=3", "-f", str(INSTALL))
    assert psql.ask("select array_agg(partition order by partition) from event_store.partitions") == "{0,1,2}"
    migrate(psql.dsn, log_partitions=3)
    with pytest.raises(SchemaMismatch, match="has 3 log partitions, not 16"):
        migrate(psql.dsn)


def test_nothing_is_installed_over_a_store_or_in_part(psql: Psql, dsn: str) -> None:
    before = snapshot(dsn)
    refusal = Psql(dsn)("-f", str(INSTALL), check=False)
    assert "There is an event store in database test_" in refusal
    assert "run: millrace migrate" in refusal
    assert snapshot(dsn) == before
    psql.ask("create schema read_models")
    assert 'schema "read_models" already exists' in psql("-f", str(INSTALL), check=False)
    with psycopg.connect(psql.dsn) as connection:
        assert value(connection, "select to_regnamespace('event_store')") is None


def test_a_database_that_does_not_hold_every_text_is_refused(postgres: EmbeddedPostgres) -> None:
    with psycopg.connect(postgres.dsn("postgres"), autocommit=True) as admin:
        admin.execute("create database latin encoding 'LATIN1' locale 'C' template template0")
        try:
            refused = refusal(SchemaMismatch, lambda: migrate(postgres.dsn("latin")))
            installed = Psql(postgres.dsn("latin"))("-f", str(INSTALL), check=False)
        finally:
            admin.execute("drop database latin with (force)")
    assert "encoded as LATIN1" in refused.message
    assert "encoding 'UTF8' template template0" in str(refused.hint)
    assert "is encoded as LATIN1" in installed
