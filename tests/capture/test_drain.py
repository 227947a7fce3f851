"""A real source, its slot, the store: what happens to rows becomes events, once, in the order of commits."""

import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import psycopg
import pytest

from millrace.resources.capture import backfill as backfilling
from millrace.resources.capture import drain as pipeline
from millrace.resources.capture.declaration import Capture, CapturedTable, InvalidCapture
from millrace.resources.capture.decoding import changes as captured_changes
from millrace.resources.capture.decoding.pgoutput import Lsn
from millrace.resources.capture.drain import CaptureDrain
from millrace.resources.capture.health import capture_health, has_work
from millrace.resources.capture.quarantine import requeue
from millrace.resources.capture.setup import GapOpen, remove, restart
from millrace.resources.capture.source import chunks as source_chunks
from millrace.resources.capture.source import slot as slots
from millrace.resources.capture.source.chunks import Chunk
from millrace.resources.capture.source.readiness import NotReady
from millrace.resources.capture.source.slot import PublicationMissing, slot_state
from millrace.resources.capture.store import CaptureStore
from millrace.resources.errors import CaptureInUse, ChangesDiffer, LeaseLost
from millrace.resources.settings import PROJECT
from tests.support.capturing import Captured, captured, new_source, replay
from tests.support.factories import rows, start, value, wait_until

__all__ = ["captured", "new_source"]


def did(captured: Captured) -> list[tuple[str, str]]:
    """What was captured after the backfill: action and row."""
    return [(c["action"], c["record_pk"]) for c in captured.changes() if c["action"] != "backfilled"]


def test_the_rows_that_were_there_and_what_happens_to_them_become_events(captured: Captured) -> None:
    captured.source.run("insert into items values (1, 'one', 1.50, true), (2, 'two', null, false)")
    report = captured.drain()
    assert (report.backfilled, report.emitted) == (2, 0)
    assert captured.replayed() == captured.table()
    captured.source.run(
        "update items set name = 'uno' where id = 1",
        "delete from items where id = 2",
        "insert into items values (3, 'three', 3, null)",
    )
    report = captured.drain()
    assert (report.stored, report.emitted, report.replayed) == (3, 3, 0)
    assert captured.replayed() == captured.table()
    assert did(captured) == [("updated", "[1]"), ("deleted", "[2]"), ("inserted", "[3]")]


def test_two_updates_of_one_row_in_one_transaction_are_two_events_with_their_own_images(captured: Captured) -> None:
    captured.source.run("alter table items replica identity full", "insert into items values (1, 'a', 0, true)")
    captured.drain()
    captured.source.run("update items set name = 'b' where id = 1; update items set name = 'c' where id = 1")
    captured.drain()
    _, first, second = captured.changes()
    assert [(c["commit_idx"], c["changes"], c["record"]["name"]) for c in (first, second)] == [
        (0, {"name": "a"}, "b"),
        (1, {"name": "b"}, "c"),
    ]
    assert first["commit_lsn"] == second["commit_lsn"]


def test_a_large_transaction_and_a_small_one_right_behind_it_stay_in_the_order_of_their_commits(
    captured: Captured,
) -> None:
    captured.drain()
    captured.source.run("insert into items select n from generate_series(1, 1000) n", "insert into items values (1001)")
    report = captured.drain()
    assert report.stored == report.emitted == 1001
    changes = captured.changes()
    assert [c["record"]["id"] for c in changes] == list(range(1, 1002))
    assert len({(c["commit_lsn"], c["commit_idx"]) for c in changes}) == 1001


def test_transactions_that_interleave_come_one_after_the_other_and_what_was_rolled_back_never(
    captured: Captured,
) -> None:
    captured.drain()
    with (
        psycopg.connect(captured.source.dsn) as slow,
        psycopg.connect(captured.source.dsn) as quick,
        psycopg.connect(captured.source.dsn) as undone,
    ):
        slow.execute("insert into items values (1)")
        undone.execute("insert into items values (7)")
        quick.execute("insert into items values (2)")
        slow.execute("insert into items values (3)")
        quick.execute("insert into items values (4)")
        with slow.transaction(force_rollback=True):  # a savepoint
            slow.execute("insert into items values (8)")
        quick.commit()
        undone.rollback()
        slow.execute("insert into items values (5)")
        slow.commit()
    captured.drain()
    assert [row for _, row in did(captured)] == ["[2]", "[4]", "[1]", "[3]", "[5]"]


class Killed(BaseException):
    """Stands for the end of the process at this point."""


def killed(*_: object) -> None:
    raise Killed


def test_killed_between_storing_and_advancing_the_slot_nothing_is_missing_and_nothing_twice(
    captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured.drain()
    captured.source.run("insert into items values (1), (2)")
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "advance", killed)
        with pytest.raises(Killed):
            captured.drain()
    assert value(captured.store, "select count(*) from event_store.wal_events") == 2
    report = captured.drain()
    assert (report.stored, report.replayed, report.emitted) == (0, 2, 2)
    assert did(captured) == [("inserted", "[1]"), ("inserted", "[2]")]


def test_killed_before_storing_everything_is_stored_once_the_next_time(
    captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured.drain()
    captured.source.run("insert into items values (1), (2)")
    with monkeypatch.context() as patch:
        patch.setattr(CaptureStore, "store_changes", killed)
        with pytest.raises(Killed):
            captured.drain()
    assert value(captured.store, "select count(*) from event_store.wal_events") == 0
    report = captured.drain()
    assert (report.stored, report.replayed, report.emitted) == (2, 0, 2)


def test_a_slot_from_an_earlier_position_stores_nothing_anew_and_changes_nothing(captured: Captured) -> None:
    captured.drain()
    name = value(captured.store, "select slot from event_store.captures")
    # a copy of the slot stays where it was
    captured.source.connection.execute("select pg_copy_logical_replication_slot(%s, 'rewound')", (name,))
    captured.source.run("insert into items values (1), (2)", "delete from items where id = 1")
    captured.drain()
    before = captured.changes()
    captured.source.connection.execute("select pg_drop_replication_slot(%s)", (name,))
    captured.source.connection.execute("select pg_copy_logical_replication_slot('rewound', %s)", (name,))
    captured.source.connection.execute("select pg_drop_replication_slot('rewound')")
    report = captured.drain()
    assert (report.stored, report.replayed, report.emitted) == (0, 3, 0)
    assert captured.changes() == before
    captured.source.run("insert into items values (3)")
    assert captured.drain().stored == 1


def test_a_slot_that_gives_the_same_position_another_content_raises_an_alarm(captured: Captured) -> None:
    captured.drain()
    name = value(captured.store, "select slot from event_store.captures")
    captured.source.connection.execute("select pg_copy_logical_replication_slot(%s, 'rewound')", (name,))
    captured.source.run("insert into items values (1, 'as it was')")
    captured.drain()
    captured.store.execute("update event_store.wal_events set data = jsonb_set(data, '{record,name}', '\"forged\"')")
    captured.source.connection.execute("select pg_drop_replication_slot(%s)", (name,))
    captured.source.connection.execute("select pg_copy_logical_replication_slot('rewound', %s)", (name,))
    captured.source.connection.execute("select pg_drop_replication_slot('rewound')")
    before = captured.changes()
    with pytest.raises(ChangesDiffer, match="another data"):
        captured.drain()
    assert captured.changes() == before


def test_a_key_change_and_a_truncate_leave_the_rows_that_the_table_has(captured: Captured) -> None:
    captured.source.run("insert into items values (1, 'a,b'), (2, 'c\"d')")
    captured.drain()
    captured.source.run("update items set id = 10 where id = 1")
    captured.drain()
    deleted, updated = captured.changes()[-2:]
    assert (deleted["action"], deleted["record_pk"], updated["action"], updated["record_pk"]) == (
        "deleted", "[1]", "updated", "[10]",
    )  # fmt: skip
    data = [
        row for (row,) in rows(captured.store, 'select data from event_store.events order by "offset" desc limit 2')
    ]
    assert [(d.get("new_key"), d.get("old_key")) for d in data] == [(None, [1]), ([10], None)]
    assert captured.replayed() == captured.table()
    captured.source.run("truncate items", "insert into items values (2, 'again')")
    captured.drain()
    assert did(captured)[-4:] == [("truncated", "[]"), ("deleted", "[10]"), ("deleted", "[2]"), ("inserted", "[2]")]
    assert captured.replayed() == captured.table()


def test_each_change_is_decoded_with_the_columns_of_its_time(captured: Captured) -> None:
    captured.drain()
    captured.source.run(
        "insert into items values (1, 'one')",
        "alter table items add column tags text[]",
        "insert into items (id, tags) values (2, '{x,y}')",
        "alter table items rename column name to title",
        "insert into items (id, title) values (3, 'three')",
        "alter table items drop column amount",
        "insert into items (id, title) values (4, 'four')",
    )
    captured.drain()
    assert [sorted(c["record"]) for c in captured.changes()] == [
        ["amount", "id", "name", "ok"],
        ["amount", "id", "name", "ok", "tags"],
        ["amount", "id", "ok", "tags", "title"],
        ["id", "ok", "tags", "title"],
    ]


def test_a_row_that_leaves_the_filter_is_deleted_and_one_that_comes_to_meet_it_is_inserted(captured: Captured) -> None:
    captured.source.run("alter table items replica identity full", "insert into items values (1, 'a', 5), (2, 'b', 50)")
    filtered = Captured(
        captured.source,
        Capture("shop", lambda: captured.source.dsn, (CapturedTable("items", where="amount > 10"),)),
        captured.dsn,
        captured.store,
    )  # fmt: skip
    filtered.drain()
    filtered.source.run("update items set amount = 20 where id = 1", "update items set amount = 2 where id = 2")
    filtered.drain()
    assert [(c["action"], c["record_pk"], c["record"]["amount"]) for c in filtered.changes()] == [
        ("backfilled", "[2]", 50),
        ("inserted", "[1]", 20),
        ("deleted", "[2]", 50),
    ]


def test_only_the_declared_columns_are_captured(captured: Captured) -> None:
    captured.source.run("insert into items values (1, 'a', 5)")
    narrow = Captured(
        captured.source,
        Capture("shop", lambda: captured.source.dsn, (CapturedTable("items", columns=("id", "amount")),)),
        captured.dsn,
        captured.store,
    )
    narrow.drain()
    narrow.source.run("update items set amount = 6, name = 'b'")
    narrow.drain()
    assert [c["record"] for c in narrow.changes()] == [{"id": 1, "amount": 5}, {"id": 1, "amount": 6}]


def test_only_the_declared_actions_are_captured(captured: Captured) -> None:
    inserts = Captured(
        captured.source,
        Capture("shop", lambda: captured.source.dsn, (CapturedTable("items"),), actions=("insert",)),
        captured.dsn,
        captured.store,
    )
    inserts.drain()
    inserts.source.run("insert into items values (1)", "update items set name = 'x'", "delete from items")
    inserts.drain()
    assert did(inserts) == [("inserted", "[1]")]


def test_a_filter_that_cannot_see_deletes_is_refused_before_anything_is_made(captured: Captured) -> None:
    blind = Capture("shop", lambda: captured.source.dsn, (CapturedTable("items", where="amount > 10"),))
    with pytest.raises(NotReady, match="amount"), CaptureDrain(captured.dsn, blind, "test"):
        pass
    assert captured.source.connection.execute("select from pg_publication").fetchall() == []
    assert rows(captured.store, "select from event_store.captures") == []


def test_tables_of_the_store_itself_are_never_captured(captured: Captured) -> None:
    own = Capture("own", lambda: captured.dsn, (CapturedTable("events", schema="event_store"),))
    with pytest.raises(NotReady, match="never captured"), CaptureDrain(captured.dsn, own, "test"):
        pass


def test_annotations_belong_to_the_changes_behind_them_in_their_transaction(captured: Captured) -> None:
    captured.drain()
    captured.source.run(
        """
        insert into items values (1);
        select pg_logical_emit_message(true, 'millrace.annotations', '{"user": "ada"}');
        insert into items values (2)
        """,
        "insert into items values (3)",
    )
    captured.drain()
    assert [c["annotations"] for c in captured.changes()] == [None, {"user": "ada"}, None]


def test_a_slot_of_idle_tables_follows_the_log_of_others(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "IDLE_ADVANCE_S", 0.0)
    captured.drain()
    captured.source.run("create table other (t text)")
    slot = value(captured.store, "select slot from event_store.captures")
    for _ in range(3):
        captured.source.run("insert into other select repeat('x', 1000) from generate_series(1, 10000)")
        before = slot_state(captured.source.connection, slot)
        captured.drain()
        after = slot_state(captured.source.connection, slot)
        assert before is not None
        assert after is not None
        assert (before.lag_bytes or 0) > 10_000_000
        assert (after.lag_bytes or 0) < 1_000_000


def test_a_commit_that_races_the_idle_advance_is_never_skipped(
    captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "IDLE_ADVANCE_S", 0.0)
    tries = 1000
    go, stop = threading.Semaphore(0), threading.Event()

    def commit() -> None:
        with psycopg.connect(captured.source.dsn, autocommit=True) as connection:
            for number in range(tries):
                go.acquire(timeout=60)
                connection.execute("insert into items values (%s)", (number,))
        stop.set()

    with captured.process() as process:
        process.drain(budget_s=60, idle_s=0)
        writing = start(commit)
        while not stop.is_set():
            go.release()
            process.store()
            process.emit()
        writing.result(60)
        process.drain(budget_s=60, idle_s=0)
    assert [c["record"]["id"] for c in captured.changes()] == list(range(tries))


def test_a_second_process_is_refused_and_takes_over_when_the_lease_of_a_dead_one_has_ended(
    captured: Captured,
) -> None:
    captured.source.run("insert into items values (1)")
    with captured.process("first") as first:
        first.drain(budget_s=60, idle_s=0)
        with pytest.raises(CaptureInUse, match="first"):
            captured.drain("second")
        captured.source.run("insert into items values (2)")
        # its lease has ended for whoever looks: it said nothing for so long
        captured.store.execute(
            "update event_store.captures set leased_until = event_store_private.clock() - interval '1 s'"
        )
        captured.drain("second")
        captured.source.run("insert into items values (3)")
        with pytest.raises((LeaseLost, psycopg.OperationalError)):
            first.store()
    captured.drain("second")
    assert did(captured) == [("inserted", "[2]"), ("inserted", "[3]")]


def test_a_former_owner_that_hangs_with_copied_rows_is_in_nobodys_way(
    captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured.drain()
    captured.source.run("insert into items values (1)")
    hangs, goes_on = threading.Event(), threading.Event()
    original = CaptureStore.store_changes

    def hang(self: CaptureStore, capture: str, lease_token: int, to_lsn: Lsn, stored_at: datetime) -> int:
        hangs.set()
        assert goes_on.wait(60)
        return original(self, capture, lease_token, to_lsn, stored_at)

    with captured.process("first") as first:
        with monkeypatch.context() as patch:
            patch.setattr(CaptureStore, "store_changes", hang)
            storing = start(first.store)
            assert hangs.wait(60)
        captured.store.execute(
            "update event_store.captures set leased_until = event_store_private.clock() - interval '1 s'"
        )
        captured.drain("second")
        goes_on.set()
        assert isinstance(storing.exception(60), psycopg.OperationalError)
    assert did(captured) == [("inserted", "[1]")]


def test_the_lease_is_kept_while_the_source_decodes_for_long(
    captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured.drain()
    until = "select extract(epoch from leased_until) from event_store.captures"

    @contextmanager
    def slow(connection: psycopg.Connection, slot: str, publication: str, limit: int) -> Iterator[Iterator[bytes]]:
        before = value(captured.store, until)
        wait_until(lambda: value(captured.store, until) > before, "the lease is extended")
        with slots.peek(connection, slot, publication, limit) as messages:
            yield messages

    monkeypatch.setattr(pipeline, "peek", slow)
    with CaptureDrain(captured.dsn, captured.capture, "test", lease_s=1) as process:
        process.drain(budget_s=60, idle_s=0)


def test_rows_of_any_width_are_read_and_compared_in_parts(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfilling, "CHUNK_BYTES", 20_000)
    monkeypatch.setattr(pipeline, "COMPARE_CHARACTERS", 20_000)
    captured.source.run("insert into items select n, repeat('x', 5000) from generate_series(1, 150) n")
    assert captured.drain().backfilled == 150
    captured.source.run("update items set name = repeat('y', 5000)")
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "advance", killed)
        with pytest.raises(Killed):
            captured.drain()
    assert captured.drain().replayed == 150
    assert captured.replayed() == captured.table()


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_the_isolation_that_a_database_defaults_to_does_not_matter(captured: Captured, level: str) -> None:
    captured.drain()
    captured.source.run(
        *["insert into items select max(id) + 1 from (select 0 as id union all select id from items) i"] * 20
    )
    name = captured.store.info.dbname
    captured.store.execute(f"alter database {name} set default_transaction_isolation = '{level}'".encode())
    with captured.process() as process:
        process.store()  # a backlog
        captured.source.run("insert into items values (100)")
        process.drain(budget_s=60, idle_s=0)
    assert captured.replayed() == captured.table()


def test_a_publication_that_vanishes_while_it_is_read_is_a_gap(captured: Captured) -> None:
    with captured.process() as process:
        process.drain(budget_s=60, idle_s=0)
        name = value(captured.store, "select publication from event_store.captures")
        captured.source.connection.execute(f"drop publication {name}".encode())
        captured.source.run("insert into items values (1)")
        with pytest.raises(PublicationMissing):
            process.drain(budget_s=60, idle_s=0)
    with pytest.raises(GapOpen):
        captured.drain()
    restart(captured.dsn, captured.capture, "the publication was dropped")
    captured.drain()
    assert captured.replayed() == captured.table()


def test_an_idle_capture_writes_nothing(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "IDLE_ADVANCE_S", 1000.0)
    written = "select xmin, ctid from event_store.captures"
    with captured.process() as process:
        process.drain(budget_s=60, idle_s=0)
        before = rows(captured.store, written)
        process.drain(budget_s=60, idle_s=0.5)
        assert rows(captured.store, written) == before


def test_a_change_that_is_too_large_waits_with_the_later_ones_of_its_row_and_all_others_flow(
    captured: Captured,
) -> None:
    captured.drain()
    captured.source.run(
        "insert into items values (1, 'small'), (2, 'small')",
        "update items set name = repeat('x', 2000000) where id = 1",
        "update items set name = 'later' where id = 1",
        "update items set name = 'other' where id = 2",
    )
    report = captured.drain()
    assert report.quarantined == 2
    assert did(captured) == [("inserted", "[1]"), ("inserted", "[2]"), ("updated", "[2]")]
    store = CaptureStore(captured.store)
    large, behind = store.quarantined_changes("shop")
    assert large.commit_lsn is not None
    assert "1048576" in (large.fault or "")
    assert (behind.decider_id, behind.fault) == ("[1]", None)
    assert requeue(store, captured.capture, "try again").requeued == 0
    captured.store.execute("set event_store.max_data_bytes = '10000000'")
    assert requeue(store, captured.capture, "the limit is higher now").requeued == 2
    assert captured.replayed() == captured.table()


def test_a_change_that_cannot_be_decoded_holds_its_row_until_it_is_given_up(captured: Captured) -> None:
    captured.source.run("create table documents (id int primary key, content json)")
    documents = Captured(
        captured.source,
        Capture("shop", lambda: captured.source.dsn, (CapturedTable("documents"),)),
        captured.dsn,
        captured.store,
    )
    documents.drain()
    documents.source.run(
        """insert into documents values (1, '"\\u0000"'), (2, '{"a": 1}')""",
        "update documents set content = '{}' where id = 1",
    )
    documents.drain()
    assert did(documents) == [("inserted", "[2]")]
    store = CaptureStore(captured.store)
    bad, behind = store.quarantined_changes("shop")
    assert "NUL" in (bad.fault or "")
    # still not JSON for jsonb
    assert requeue(store, documents.capture, "perhaps it can be decoded now").waiting == 2
    store.discard_change(bad.quarantine_id, "nobody needs it")
    assert requeue(store, documents.capture, "go on").requeued == 1
    assert documents.replayed() == documents.table("documents")
    assert behind.decider_id == "[1]"


def test_a_change_that_can_be_decoded_after_all_becomes_the_event_that_it_would_have_been(
    captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured.source.run("insert into items values (1, 'before')")
    captured.drain()
    captured.source.run("update items set name = repeat('x', 1000)", "update items set name = 'after'")
    with monkeypatch.context() as patch:
        patch.setattr(captured_changes, "MAX_DATA_CHARACTERS", 900)
        captured.drain()
    store = CaptureStore(captured.store)
    bad, _ = store.quarantined_changes("shop")
    assert bad.data is None
    assert requeue(store, captured.capture, "the limit is what it was").requeued == 2
    first, second = captured.changes()[1:]
    assert (first["record"]["name"], second["record"]["name"]) == ("x" * 1000, "after")
    assert (first["event_id"], first["commit_lsn"]) == (str(bad.event_id), str(bad.commit_lsn))
    assert first["committed_at"] < second["committed_at"]


def test_a_lost_slot_is_a_gap_until_the_capture_begins_anew_and_then_finds_what_is_gone(captured: Captured) -> None:
    captured.source.run("insert into items values (1, 'stays'), (2, 'goes'), (3, 'changes')")
    captured.drain()
    slot = value(captured.store, "select slot from event_store.captures")
    captured.source.connection.execute("select pg_drop_replication_slot(%s)", (slot,))
    captured.source.run("delete from items where id = 2", "update items set name = 'changed' where id = 3")
    for _ in range(2):
        with pytest.raises(GapOpen, match="no slot") as refused:
            captured.drain()
        assert "millrace capture restart shop" in str(refused.value)
    (problem, gap) = capture_health(captured.dsn, captured.capture).problems(captured.capture)
    assert "no slot" in problem
    assert "lost" in gap
    restart(captured.dsn, captured.capture, "the slot was dropped")
    captured.source.run("insert into items values (4, 'later')")
    captured.drain()
    assert captured.replayed() == captured.table()
    assert did(captured)[-1][0] in {"deleted", "inserted"}
    (known,) = CaptureStore(captured.store).capture_gaps("shop")
    assert known.resolved_by_generation == 2
    assert capture_health(captured.dsn, captured.capture).problems(captured.capture) == []


def test_a_slot_that_somebody_else_moved_is_a_gap(captured: Captured) -> None:
    captured.drain()
    slot = value(captured.store, "select slot from event_store.captures")
    captured.source.run("insert into items values (1)")
    captured.source.connection.execute("select pg_replication_slot_advance(%s, pg_current_wal_flush_lsn())", (slot,))
    with pytest.raises(GapOpen, match="moved"):
        captured.drain()


def test_a_capture_that_is_removed_leaves_its_events_and_nothing_on_the_source(captured: Captured) -> None:
    captured.source.run("insert into items values (1)")
    captured.drain()
    remove(captured.dsn, captured.capture, "not needed")
    assert captured.source.connection.execute("select from pg_publication").fetchall() == []
    assert (
        captured.source.connection.execute(
            "select from pg_replication_slots where database = current_database()"
        ).fetchall()
        == []
    )
    assert value(captured.store, "select count(*) from event_store.events") == 1
    # and comes back with other event ids
    captured.drain()
    assert captured.replayed() == captured.table()


def test_rows_are_read_in_chunks_while_they_change_and_a_killed_backfill_goes_on(
    captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfilling, "CHUNK", 10)
    captured.source.run("insert into items select n, 'old' from generate_series(1, 100) n")
    chunks = 0

    def read_chunk(
        connection: psycopg.Connection, table: CapturedTable, after: Sequence[str] | None, limit: int
    ) -> Chunk:
        nonlocal chunks
        chunks += 1
        chunk = source_chunks.read_chunk(connection, table, after, limit)
        # behind the reader, before it, and what it has just read
        captured.source.connection.execute("update items set name = %s where id %% 7 = 0", (f"changed {chunks}",))
        captured.source.connection.execute("update items set id = id + 1000 where id = %s", (chunks * 10,))
        captured.source.connection.execute("delete from items where id = %s", (chunks * 10 - 5,))
        captured.source.connection.execute("insert into items values (%s, 'new')", (-chunks,))
        if chunks == 5:
            raise Killed
        return chunk

    monkeypatch.setattr(backfilling, "read_chunk", read_chunk)
    with pytest.raises(Killed):
        captured.drain()
    before = value(captured.store, "select backfilled_rows from event_store.captured_tables")
    assert 0 < before < 100
    captured.drain()
    assert captured.replayed() == captured.table()
    info = CaptureStore(captured.store).capture_info("shop")[0]
    assert info.tables_to_backfill == 0


PEAK = """
import re, sys
from pathlib import Path
from millrace.resources.capture.drain import CaptureDrain
from millrace.resources.capture.declaration import Capture, CapturedTable
with CaptureDrain(sys.argv[1], Capture("shop", lambda: sys.argv[2], (CapturedTable("items"),)), "test") as process:
    process.drain(budget_s=300, idle_s=0)
print(re.search("VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


def peak_kb(captured: Captured) -> int:
    """Capture in a process of its own; return the most memory that it took."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK, captured.dsn, captured.source.dsn],
        cwd=PROJECT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="the most memory that a process took is read from /proc")
def test_a_transaction_of_any_size_takes_the_same_memory(captured: Captured) -> None:
    captured.drain()
    insert = "insert into items select n, repeat('x', 1000) from generate_series({}) n"
    captured.source.connection.execute(insert.format("1, 1000").encode())
    small = peak_kb(captured)
    captured.source.connection.execute(insert.format("1001, 40000").encode())
    large = peak_kb(captured)
    assert value(captured.store, "select count(*) from event_store.events") == 40_000
    # of 39 MB of rows
    assert large - small < 15_000


def test_a_table_that_is_added_later_is_read_too(captured: Captured) -> None:
    captured.drain()
    captured.source.run("create table notes (id int primary key)", "insert into notes values (1)")
    both = Captured(
        captured.source,
        Capture("shop", lambda: captured.source.dsn, (CapturedTable("items"), CapturedTable("notes"))),
        captured.dsn,
        captured.store,
    )
    both.drain()
    both.source.run("insert into notes values (2)")
    both.drain()
    assert sorted(replay(both.changes())) == [("notes", "[1]"), ("notes", "[2]")]


def test_whether_there_is_something_to_do(captured: Captured) -> None:
    assert has_work(captured.dsn, captured.capture)  # nothing is set up
    captured.drain()
    assert not has_work(captured.dsn, captured.capture)
    captured.source.run("create table other ()", "insert into items values (1)")
    assert has_work(captured.dsn, captured.capture)
    health = capture_health(captured.dsn, captured.capture)
    assert health.lag_bytes > 0
    assert health.lag_s > 0
    captured.drain()
    assert not has_work(captured.dsn, captured.capture)


def test_what_became_an_event_is_kept_in_wal_events_as_long_as_it_is_declared(captured: Captured) -> None:
    captured.drain()
    captured.source.run("insert into items values (1)")
    captured.drain()
    assert value(captured.store, "select count(*) from event_store.wal_events") == 1
    captured.store.execute("update event_store.wal_events set stored_at = stored_at - interval '8 days'")
    captured.drain()
    assert value(captured.store, "select count(*) from event_store.wal_events") == 0
    assert did(captured) == [("inserted", "[1]")]


@pytest.mark.parametrize(
    ("tables", "options", "said"),
    [
        ((), {}, "it has no table"),
        ((CapturedTable("a"), CapturedTable("a")), {}, "declared twice"),
        ((CapturedTable("a"),), {"actions": ("insert", "upsert")}, "not upsert"),
        ((CapturedTable("a"),), {"actions": ()}, "no action"),
        ((CapturedTable("a", columns=()),), {}, "not empty"),
        ((CapturedTable("a", decider="x"), CapturedTable("b", decider="x")), {}, "decider x is declared twice"),
    ],
)
def test_a_declaration_that_cannot_work_is_refused(
    tables: tuple[CapturedTable, ...], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidCapture, match=said):
        Capture("shop", lambda: "", tables, **options)


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidCapture, match="a-z"):
        Capture("Shop 1", lambda: "", (CapturedTable("a"),))
