"""A real source, its slot, the store: each change of a row becomes an event once, in the order of commits."""

import subprocess
import sys
import threading

import psycopg
import pytest

from millrace.capture import drain as pipeline
from millrace.capture.declaration import CapturedTable
from millrace.capture.source.slot import slot_state
from tests.long import LONG
from tests.support.capturing.captured import Captured, declared, did
from tests.support.factories import start
from tests.support.patience import patience
from tests.support.project import PROJECT


def test_the_rows_that_were_there_and_what_happens_to_them_become_events(captured: Captured) -> None:
    captured.run("insert into items values (1, 'one', 1.50, true), (2, 'two', null, false)")
    report = captured.drain()
    assert (report.backfilled, report.emitted) == (2, 0)
    assert captured.replayed() == captured.table()
    with psycopg.connect(captured.source.dsn) as slow:
        slow.execute("insert into items values (3)")
        captured.run(
            "update items set name = 'uno' where id = 1; update items set name = 'un' where id = 1",
            "delete from items where id = 2",
            """
            insert into items values (4, 'four', 3, null);
            select pg_logical_emit_message(true, 'millrace.annotations', '{"user": "ada"}');
            insert into items values (5)
            """,
            "begin; insert into items values (6); rollback",
        )
        slow.commit()
    report = captured.drain()
    assert (report.stored, report.emitted, report.replayed) == (6, 6, 0)
    assert captured.replayed() == captured.table()
    assert did(captured) == [
        ("updated", "[1]"), ("updated", "[1]"), ("deleted", "[2]"), ("inserted", "[4]"), ("inserted", "[5]"),
        ("inserted", "[3]"),
    ]  # fmt: skip
    changes = captured.changes()[2:]
    assert [change["commit_idx"] for change in changes] == [0, 1, 0, 0, 1, 0]
    assert [change["annotations"] for change in changes] == [None, None, None, None, {"user": "ada"}, None]


def test_only_the_declared_rows_columns_and_actions_are_captured(captured: Captured) -> None:
    captured.run("alter table items replica identity full", "insert into items values (1, 'a', 5), (2, 'b', 50)")
    filtered = declared(captured, CapturedTable("items", where="amount > 10"))
    filtered.drain()
    captured.run("update items set amount = 20 where id = 1", "update items set amount = 2 where id = 2")
    filtered.drain()
    assert [(c["action"], c["record_pk"], c["record"]["amount"]) for c in filtered.changes()] == [
        ("backfilled", "[2]", 50), ("inserted", "[1]", 20), ("deleted", "[2]", 50),
    ]  # fmt: skip
    captured.run("truncate items")
    filtered.drain()
    narrow = declared(captured, CapturedTable("items", columns=("id", "amount")), actions=("insert",))
    narrow.drain()
    before = len(narrow.changes())
    captured.run("insert into items values (3, 'c', 7)", "update items set name = 'x'", "delete from items")
    narrow.drain()
    assert [(c["action"], c["record"]) for c in narrow.changes()[before:] if c["action"] != "schema_changed"] == [
        ("inserted", {"id": 3, "amount": 7})
    ]


def test_a_slot_of_idle_tables_follows_the_log_of_others(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "IDLE_ADVANCE_S", 0.0)
    captured.drain()
    captured.run("create table other (t text)")
    slot = captured.value("select slot from event_store.captures")
    for _ in range(2):
        captured.run("insert into other select repeat('x', 1000) from generate_series(1, 3000)")
        before = slot_state(captured.source.connection, slot)
        captured.drain()
        after = slot_state(captured.source.connection, slot)
        assert before is not None
        assert after is not None
        assert (before.lag_bytes or 0) > 3_000_000
        assert (after.lag_bytes or 0) < 1_000_000


@pytest.mark.parametrize("tries", [100, pytest.param(1000, marks=LONG)])
def test_no_commit_beside_an_advance_is_lost(captured: Captured, monkeypatch: pytest.MonkeyPatch, tries: int) -> None:
    monkeypatch.setattr(pipeline, "IDLE_ADVANCE_S", 0.0)
    go, stop = threading.Semaphore(0), threading.Event()

    def commit() -> None:
        with psycopg.connect(captured.source.dsn, autocommit=True) as connection:
            for number in range(tries):
                go.acquire(timeout=patience())
                connection.execute("insert into items values (%s)", (number,))
        stop.set()

    with captured.process() as process:
        process.drain(budget_s=patience(), idle_s=0)
        writing = start(commit)
        while not stop.is_set():
            go.release()
            process.store()
            process.emit()
        writing.result(patience())
        process.drain(budget_s=patience(), idle_s=0)
    assert [c["record"]["id"] for c in captured.changes()] == list(range(tries))


def test_the_isolation_that_a_database_defaults_to_does_not_matter(captured: Captured) -> None:
    captured.drain()
    captured.run(*["insert into items select max(id) + 1 from (select 0 as id union all select id from items) i"] * 20)
    name = captured.store.info.dbname
    captured.store.execute(f"alter database {name} set default_transaction_isolation = 'serializable'".encode())
    with captured.process() as process:
        process.store()  # a backlog
        captured.run("insert into items values (100)")
        process.drain(budget_s=patience(), idle_s=0)
    assert captured.replayed() == captured.table()


def test_an_idle_capture_writes_nothing(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "IDLE_ADVANCE_S", 1000.0)
    written = "select xmin, ctid from event_store.captures"
    with captured.process() as process:
        process.drain(budget_s=patience(), idle_s=0)
        before = captured.rows(written)
        process.drain(budget_s=patience(), idle_s=0.5)
        assert captured.rows(written) == before


PEAK = """
import re, sys
from pathlib import Path
from millrace.capture.drain import CaptureDrain
from millrace.capture.declaration import Capture, CapturedTable
with CaptureDrain(sys.argv[1], Capture("shop", lambda: sys.argv[2], (CapturedTable("items"),)), "test") as process:
    process.drain(budget_s=3000, idle_s=0)
print(re.search("VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


def peak_kb(captured: Captured) -> int:
    """Capture in a process of its own; return its peak memory."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK, captured.dsn, captured.source.dsn],
        cwd=PROJECT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="the most memory that a process took is read from /proc")
def test_a_transaction_of_any_size_takes_the_same_memory(captured: Captured) -> None:
    captured.drain()
    insert = "insert into items select n, repeat('x', 1000) from generate_series({}) n"
    captured.run(insert.format("1, 1000"))
    small = peak_kb(captured)
    captured.run(insert.format("1001, 25000"))
    large = peak_kb(captured)
    assert captured.value("select count(*) from event_store.events") == 25_000
    # of 24 MB of rows
    assert large - small < 15_000


def test_wal_events_are_kept_as_long_as_it_is_declared(captured: Captured) -> None:
    captured.drain()
    captured.run("insert into items values (1)")
    captured.drain()
    assert captured.value("select count(*) from event_store.wal_events") == 1
    captured.store.execute("update event_store.wal_events set stored_at = stored_at - interval '8 days'")
    captured.drain()
    assert captured.value("select count(*) from event_store.wal_events") == 0
    assert did(captured) == [("inserted", "[1]")]
