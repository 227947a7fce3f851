"""Many captures of one source go into one store at once: each ends, and each has its own rows."""

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

import psycopg
import pytest

from millrace.capture.declaration import Capture, CapturedTable
from millrace.capture.drain import CaptureDrain
from millrace.capture.store import CaptureStore
from millrace.postgres.embedded import EmbeddedPostgres
from tests.support.capturing.captured import replay
from tests.support.factories import rows, start
from tests.support.patience import patience
from tests.support.running.own_server import own_server

MANY = 40


@dataclass(frozen=True)
class Crowd:
    server: EmbeddedPostgres
    source: psycopg.Connection
    store: psycopg.Connection

    @property
    def captures(self) -> list[Capture]:
        dsn = self.server.dsn("source")
        return [Capture(f"c{n}", lambda: dsn, (CapturedTable(f"t{n}"),)) for n in range(MANY)]

    def write(self, statement: str) -> None:
        """Run a statement on each table, in one transaction that the slot of each capture has."""
        with self.source.transaction():
            for n in range(MANY):
                self.source.execute(statement.format(table=f"t{n}", n=n).encode())

    def drains(self) -> list[Future[None]]:
        return [start(partial(self.drain, capture)) for capture in self.captures]

    def drain(self, capture: Capture) -> None:
        """Capture until nothing is left; a table may wait for transactions of the others' runs."""
        waits = True
        while waits:
            with CaptureDrain(self.server.dsn("store"), capture, "test") as process:
                process.drain(budget_s=patience(), idle_s=0)
            with psycopg.connect(self.server.dsn("store"), autocommit=True) as connection:
                (info,) = [each for each in CaptureStore(connection).capture_info() if each.capture == capture.name]
            waits = bool(info.tables_to_backfill)


@pytest.fixture
def crowd(postgres: EmbeddedPostgres) -> Iterator[Crowd]:
    with own_server("store", programs=postgres.programs) as server:
        with psycopg.connect(server.dsn("postgres"), autocommit=True) as admin:
            admin.execute("alter system set fsync = off")
            # one slot per capture, and four sessions per run
            for setting in ("max_replication_slots", "max_wal_senders", "max_connections"):
                admin.execute(f"alter system set {setting} = {MANY * (6 if 'connections' in setting else 2)}".encode())
        server.stop()
        server.start()
        server.create_database("source")
        with (
            psycopg.connect(server.dsn("source"), autocommit=True) as source,
            psycopg.connect(server.dsn("store"), autocommit=True) as store,
        ):
            made = Crowd(server, source, store)
            made.write("create table {table} (id int primary key, said text)")
            yield made


def test_forty_captures_of_a_source_at_once_have_their_own_rows(crowd: Crowd) -> None:
    crowd.write("insert into {table} values ({n}, 'before'), (1000, 'of {n}')")
    for done in crowd.drains():
        done.result(patience())
    crowd.write("insert into {table} values (2000, 'of {n}')")
    running = crowd.drains()
    for number in range(5):
        crowd.write(f"update {{table}} set said = said || ' {number}'")
    for done in running:
        done.result(patience())
    # changes that came after a run had ended
    for done in crowd.drains():
        done.result(patience())

    changes = [row for (row,) in rows(crowd.store, "select to_jsonb(c) from event_store.change_events c order by seq")]
    assert len(changes) == MANY * (2 + 1 + 5 * 3)
    # a capture, its slot and its table belong together
    infos = CaptureStore(crowd.store).capture_info()
    named = "select data -> 'source' ->> 'capture', data -> 'source' ->> 'generation', decider from event_store.events"
    together = {(info.capture, str(info.source_generation), f"table:public.t{info.capture[1:]}") for info in infos}
    assert set(rows(crowd.store, named)) == together
    told = " 0 1 2 3 4"
    for n in range(MANY):
        mine = [c for c in changes if c["source_table_name"] == f"t{n}"]
        assert sorted((row["id"], row["said"]) for row in replay(mine).values()) == sorted(
            [(n, "before" + told), (1000, f"of {n}{told}"), (2000, f"of {n}{told}")]
        )
    assert len({info.slot for info in infos}) == len({info.source_generation for info in infos}) == MANY
    assert {(info.gaps, info.tables_stopped, info.quarantined, info.unemitted) for info in infos} == {(0, 0, 0, 0)}
