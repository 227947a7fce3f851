"""One process of a capture at a time: its lease, and the fencing of a former owner."""

import threading
from datetime import datetime

import psycopg
import pytest

from millrace.capture.decoding.pgoutput import Lsn
from millrace.capture.drain import CaptureDrain
from millrace.capture.source.stream import SlotStream
from millrace.capture.store import CaptureStore
from millrace.errors import CaptureInUse, LeaseLost
from tests.support.capturing.captured import Captured, did, preceded
from tests.support.factories import start, value
from tests.support.patience import patience, wait_until


def test_a_second_process_is_refused_until_the_lease_of_the_first_ended(captured: Captured) -> None:
    captured.run("insert into items values (1)")
    with captured.process("first") as first:
        first.drain(budget_s=patience(), idle_s=0)
        with pytest.raises(CaptureInUse, match="first"):
            captured.drain("second")
        captured.run("insert into items values (2)")
        # for other processes its lease has expired: it has not renewed it for too long
        captured.end_lease()
        captured.drain("second")
        captured.run("insert into items values (3)")
        with pytest.raises((LeaseLost, psycopg.OperationalError)):
            first.store()
    captured.drain("second")
    assert did(captured) == [("inserted", "[2]"), ("inserted", "[3]")]


def test_a_former_owner_that_hangs_is_in_nobodys_way(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    captured.drain()
    captured.run("insert into items values (1)")
    hangs, goes_on = threading.Event(), threading.Event()
    original = CaptureStore.store_changes

    def hang(self: CaptureStore, capture: str, lease_token: int, to_lsn: Lsn, stored_at: datetime) -> int:
        hangs.set()
        assert goes_on.wait(patience())
        return original(self, capture, lease_token, to_lsn, stored_at)

    with captured.process("first") as first:
        with monkeypatch.context() as patch:
            patch.setattr(CaptureStore, "store_changes", hang)
            storing = start(first.store)
            assert hangs.wait(patience())
        captured.end_lease()
        captured.drain("second")
        goes_on.set()
        assert isinstance(storing.exception(patience()), psycopg.OperationalError)
    assert did(captured) == [("inserted", "[1]")]


def test_a_former_owner_takes_the_slot_from_nobody(captured: Captured) -> None:
    captured.drain()
    reader = "select active_pid from pg_replication_slots where database = current_database()"
    with captured.process("first") as first:
        captured.end_lease()
        with captured.process("second") as second:
            second.drain(budget_s=patience(), idle_s=0)
            reads = value(captured.source.connection, reader)
            with pytest.raises(LeaseLost):
                first.store()
            assert reads is not None
            assert value(captured.source.connection, reader) == reads


def test_the_lease_is_kept_while_the_source_decodes(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    captured.drain()
    until = "select extract(epoch from leased_until) from event_store.captures"

    def wait() -> None:
        before = captured.value(until)
        wait_until(lambda: captured.value(until) > before, "the lease is extended")

    monkeypatch.setattr(SlotStream, "messages", preceded(SlotStream.messages, wait))
    with CaptureDrain(captured.dsn, captured.capture, "test", lease_s=1) as process:
        process.drain(budget_s=patience(), idle_s=0)
