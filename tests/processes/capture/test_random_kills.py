"""A capture that is killed at random while its source changes: in the end it has each change of the source once."""

import json
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any
from uuid import UUID

import psycopg
import pytest

from millrace.capture.drain import CaptureDrain
from tests.processes.capture.killed_captures import declared
from tests.support.capturing.captured import replay
from tests.support.capturing.sources import Source
from tests.support.factories import assert_log_holds_every_event_once, rows, start
from tests.support.patience import patience
from tests.support.project import PROJECT
from tests.support.running.programs import ran

# items: DEFAULT; notes: FULL, with values stored out of line; journal: the changes of each transaction
SCHEMA = (
    "create table items (id int primary key, name text, note text, version int)",
    "alter table items alter note set storage external",
    "create table notes (id int primary key, name text, note text, version int)",
    "alter table notes replica identity full; alter table notes alter note set storage external",
    "create table journal (writer int, number int, changes jsonb, primary key (writer, number))",
)
KEYS = 40


def write(dsn: str, writer: int, stop: threading.Event) -> int:
    """Do transactions until `stop`; each records its changes in the journal. Return the number of transactions."""
    random = Random(writer)
    number = 0
    with psycopg.connect(dsn, autocommit=True) as connection:
        while not stop.is_set():
            number += 1
            did: list[str] = []
            try:
                with connection.transaction():
                    for _ in range(random.randint(1, 5)):
                        did += change(connection, random)
                    connection.execute("insert into journal values (%s, %s, %s)", (writer, number, json.dumps(did)))
                    if random.random() < 0.1:
                        raise psycopg.Rollback
            except (psycopg.errors.DeadlockDetected, psycopg.errors.LockNotAvailable, psycopg.errors.UniqueViolation):
                continue
            if writer == 0 and number % 20 == 0:
                alter(connection, number)
            stop.wait(0.004)
    return number


def change(connection: psycopg.Connection, random: Random) -> list[str]:
    """Change a row, perhaps twice; return these changes in the form of the captured history."""
    table, execute = random.choice(["items", "notes"]), connection.execute
    key, other = random.randint(1, KEYS), random.randint(1, KEYS)
    # half of the time too long to be stored inside the row
    note = f"{random.random()}" * random.choice([1, 200])
    match random.choice(["insert", "insert", "update", "twice", "move", "delete"]):
        case "insert":
            done = execute(f"insert into {table} values (%s, 'n', %s, 1) on conflict do nothing".encode(), (key, note))
            return [f"inserted {table} [{key}]"] * done.rowcount
        case "update":
            done = execute(f"update {table} set note = %s, version = version + 1 where id = %s".encode(), (note, key))
            return [f"updated {table} [{key}]"] * done.rowcount
        case "twice":
            # separate statements: another writer may insert the row in between
            updates = [
                connection.execute(f"update {table} set {what} where id = %s".encode(), (key,)).rowcount
                for what in ("version = version + 1", "name = 'twice'")
            ]
            return [f"updated {table} [{key}]"] * sum(updates)
        case "move":
            done = execute(
                f"update {table} set id = %s where id = %s and not exists (select from {table} where id = %s)".encode(),
                (other, key, other),
            )
            return [f"deleted {table} [{key}]", f"updated {table} [{other}]"] * done.rowcount
        case _:
            done = execute(f"delete from {table} where id = %s".encode(), (key,))
            return [f"deleted {table} [{key}]"] * done.rowcount


def alter(connection: psycopg.Connection, number: int) -> None:
    """Replace a column of the tables."""
    connection.execute("set lock_timeout = '1s'")
    for table in ("items", "notes"):
        connection.execute(f"alter table {table} drop column if exists extra_{number - 20}".encode())
        connection.execute(f"alter table {table} add column extra_{number} int default 7".encode())


def history(store: psycopg.Connection) -> list[dict[str, Any]]:
    return [row for (row,) in rows(store, "select to_jsonb(c) from event_store.change_events c order by seq")]


def assert_history_is_whole(changes: list[dict[str, Any]]) -> None:
    """Assert that each transaction is there once with all its changes, in one piece, and in the order of its writer."""
    streamed = [change for change in changes if change["action"] != "backfilled"]
    positions = [(lsn(change["commit_lsn"]), change["commit_idx"]) for change in streamed]
    assert positions == sorted(set(positions))
    by_commit: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for change in streamed:
        by_commit[change["commit_lsn"]].append(change)
    written: dict[int, list[int]] = defaultdict(list)
    for made in by_commit.values():
        (entry,) = [change["record"] for change in made if change["source_table_name"] == "journal"]
        written[entry["writer"]].append(entry["number"])
        rows_made = [c for c in made if c["action"] != "schema_changed"]
        did = [f"{c['action']} {c['source_table_name']} {c['record_pk']}" for c in rows_made]
        assert did == [*entry["changes"], f"inserted journal [{entry['writer']},{entry['number']}]"]
    for numbers in written.values():
        assert numbers == sorted(set(numbers))


def lsn(text: str) -> int:
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


def assert_rows_are_the_source_s(changes: list[dict[str, Any]], source: psycopg.Connection) -> None:
    """Compare the final rows of the history with the source's, in the columns that always existed."""
    left = replay(changes)
    for table in ("items", "notes"):
        found = {
            key: {name: record[name] for name in ("id", "name", "note", "version")}
            for (of, key), record in left.items()
            if of == table
        }
        query = f"select format('[%s]', id), jsonb_build_object('id', id, 'name', name, 'note', note, 'version', version) from {table}"
        assert found == dict(source.execute(query.encode()).fetchall())


def test_kills_leave_the_history_whole(new_source: Callable[[], Source], dsn: str, pytestconfig: pytest.Config) -> None:
    kills = max(1, pytestconfig.getoption("--kills") // 2)
    source = new_source()
    source.run(*SCHEMA)
    source.run("insert into items select n, 'old', repeat('x', 3000), 0 from generate_series(1, 30) n")
    source.run("insert into notes select n, 'old', repeat('y', 3000), 0 from generate_series(1, 30) n")
    stop = threading.Event()
    writers = [start(partial(write, source.dsn, writer, stop)) for writer in range(2)]
    killing = (sys.executable, "-m", "tests.processes.capture.killed_captures", dsn, source.dsn, kills, 1)
    try:
        done = ran(*killing, cwd=PROJECT, patiences=10)
    finally:
        stop.set()
    transactions = [writer.result(patience()) for writer in writers]
    killed = Counter(json.loads(done.stdout))
    assert killed.total() >= kills
    with CaptureDrain(dsn, declared(source.dsn), "test") as capturing:
        capturing.drain(budget_s=patience(), idle_s=0)
    with psycopg.connect(dsn, autocommit=True) as store:
        changes = history(store)
        assert_history_is_whole(changes)
        assert_rows_are_the_source_s(changes, source.connection)
        journal = {key for (table, key) in replay(changes) if table == "journal"}
        kept = source.connection.execute("select format('[%s,%s]', writer, number) from journal").fetchall()
        assert journal == {key for (key,) in kept}
        assert len({UUID(change["event_id"]) for change in changes}) == len(changes)
        assert min(transactions) > 0
        while store.execute("select event_store_platform.sequence_events()").fetchone() != (0,):
            pass
        assert_log_holds_every_event_once(store)
