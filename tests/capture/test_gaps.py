"""Changes that are lost, until an operator begins the capture anew; and a capture that is removed."""

import pytest

from millrace.resources.capture.health import capture_health
from millrace.resources.capture.setup import GapOpen, remove, restart
from millrace.resources.capture.source.slot import PublicationMissing
from millrace.resources.capture.store import CaptureStore
from tests.support.capturing.captured import Captured, captured, did, new_source
from tests.support.factories import value

__all__ = ["captured", "new_source"]


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
