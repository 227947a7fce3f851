"""The messages of one read of the slot are stored piece by piece, and become events meanwhile."""

import threading

import pytest

from millrace.capture import drain as pipeline
from millrace.capture.drain import CaptureReport
from millrace.capture.source import stream as streams
from millrace.capture.store import CaptureStore
from tests.support.capturing.captured import Captured, dying, killed, preceded
from tests.support.factories import Killed
from tests.support.patience import patience, wait_until

PIECES = 7


@pytest.fixture
def filled(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> Captured:
    """Make a source with seven transactions of three rows; each transaction is a piece."""
    captured.drain()
    monkeypatch.setattr(pipeline, "PIECE", 3)
    for number in range(PIECES):
        captured.run(f"insert into items select {3 * number} + n from generate_series(1, 3) n")
    return captured


def stored_and_emitted(captured: Captured) -> tuple[int, int]:
    query = "select (select count(*) from event_store.wal_events), (select count(*) from event_store.events)"
    ((stored, emitted),) = captured.rows(query)
    return stored, emitted


def slot_lsn(captured: Captured) -> object:
    return captured.source.connection.execute("select confirmed_flush_lsn from pg_replication_slots").fetchone()


def test_a_piece_is_events_before_the_next_ones_are_stored(filled: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []

    def look() -> None:
        if found and not found[-1]:
            wait_until(lambda: stored_and_emitted(filled)[1] > 0, "events of the piece before")
        found.append(stored_and_emitted(filled)[1])

    monkeypatch.setattr(CaptureStore, "copy_changes", preceded(CaptureStore.copy_changes, look))
    report = filled.drain()
    assert (report.stored, report.emitted, len(found)) == (3 * PIECES, 3 * PIECES, PIECES)
    assert found[0] == 0
    assert found[-1] > 0


def test_nothing_is_emitted_once_the_storing_has_failed(filled: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    def know() -> None:
        # the drain knows that it failed
        assert process._failed.wait(patience())

    monkeypatch.setattr(CaptureStore, "copy_changes", dying(CaptureStore.copy_changes, 5))
    monkeypatch.setattr(CaptureStore, "emit_changes", preceded(CaptureStore.emit_changes, know))
    monkeypatch.setattr(pipeline, "EMIT", 1)
    with filled.process() as process, pytest.raises(Killed):
        process.drain(budget_s=patience(), idle_s=0)
    assert stored_and_emitted(filled) == (12, 1)


def test_what_is_stored_is_as_old_as_its_last_change(filled: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    query = "select stored_at = (select max(committed_at) from event_store.wal_events) from event_store.captures"
    newest: list[object] = []
    monkeypatch.setattr(pipeline, "MOST_CHANGES", 6)
    with filled.process() as process:
        process.store(lambda: newest.append(filled.value(query)))
        assert newest == [True, True]
        while process.store(lambda: newest.append(filled.value(query))):
            pass
        # the slot has nothing more
        monkeypatch.setattr(pipeline, "IDLE_ADVANCE_S", 0.0)
        process.store()
    assert newest[:-1] == [True] * (PIECES - 1)
    assert not filled.value(query)


def test_a_drain_goes_on_while_an_emission_takes_long(filled: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    thrice = threading.Event()

    def wait() -> None:
        # one step for the new changes, and two for the emission
        assert thrice.wait(patience())

    def step(report: CaptureReport) -> None:
        steps.append(report.emitted)
        if len(steps) == 3:
            thrice.set()

    monkeypatch.setattr(CaptureStore, "emit_changes", preceded(CaptureStore.emit_changes, wait))
    # so few that storing does not wait for the emission
    monkeypatch.setattr(pipeline, "PIECE", 1000)
    with filled.process() as process:
        process.drain(budget_s=patience(), idle_s=0, on_step=step)
    assert steps[:3] == [0, 0, 0]
    # the last emission is reported too
    assert steps[-1] == 3 * PIECES


def test_the_next_drain_emits_what_a_failed_one_stored(filled: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    with filled.process() as process:
        with monkeypatch.context() as patch:
            patch.setattr(CaptureStore, "emit_changes", killed)
            with pytest.raises(Killed):
                process.drain(budget_s=patience(), idle_s=0, stop=stop)
        assert stored_and_emitted(filled)[1] == 0
        # the failure does not set the caller's stop event
        assert not stop.is_set()
        report = process.drain(budget_s=patience(), idle_s=0, stop=stop)
    assert report.emitted == 3 * PIECES
    assert filled.replayed() == filled.table()


def test_a_stopped_drain_ends_once_its_piece_is_stored(filled: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    monkeypatch.setattr(CaptureStore, "store_changes", preceded(CaptureStore.store_changes, stop.set))
    with filled.process() as process:
        process.drain(budget_s=patience(), idle_s=60, stop=stop)
    assert stored_and_emitted(filled) == (3, 0)
    filled.drain()
    assert filled.replayed() == filled.table()


def test_a_stopped_drain_leaves_a_large_transaction(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    captured.drain()
    captured.run("insert into items select n, repeat('x', 100) from generate_series(1, 30000) n")
    monkeypatch.setattr(streams, "FAREWELL_S", 0.0)
    stop = threading.Event()
    with captured.process() as process:
        with monkeypatch.context() as patch:
            patch.setattr(CaptureStore, "copy_changes", preceded(CaptureStore.copy_changes, stop.set))
            report = process.drain(budget_s=patience(), idle_s=60, stop=stop)
        assert (report.stored, stored_and_emitted(captured)) == (0, (0, 0))
        assert process.drain(budget_s=patience(), idle_s=0).emitted == 30_000
