"""Out of the quarantine: requeued in order, repaired if not too late, or discarded with a reason."""

import json
from functools import partial

import pytest

from millrace.capture.store import CaptureStore, Requeued
from millrace.errors import Malformed, NotQuarantined, StreamWentOn
from millrace.event_store.platform import PlatformStore
from tests.support.capturing import captures
from tests.support.capturing.captures import Row, Source, T, deleted, faulty, held, inserted, stream, table, updated
from tests.support.factories import Connect, refusal, start, wait_blocked
from tests.support.patience import patience


def repair(source: Source, key: object = 1, which: int = 0, value: object = "repaired") -> None:
    change = source.store.quarantined_changes("c")[which]
    place = {"commit_lsn": str(change.commit_lsn), "commit_idx": change.commit_idx}
    data = {"record": {"id": key, "v": value}, "source": {"generation": change.source_generation}, **place}
    source.store.repair_change(change.quarantine_id, f"[{key}]", json.dumps(data))


@pytest.fixture
def waiting(source: Source) -> Source:
    """Row 1 has a faulty change and later ones behind it; row 2 flows."""
    source.commit(inserted(1), faulty(1), updated(1, "a"), faulty(1), updated(1, "b"), inserted(2))
    source.emit()
    return source


def test_each_stream_goes_on_up_to_the_first_change_that_still_has_a_fault(waiting: Source) -> None:
    assert waiting.store.requeue_changes("c") == Requeued(0, 4)
    repair(waiting)
    assert waiting.store.requeue_changes("c", reason="repaired by hand") == Requeued(2, 2)
    assert stream(waiting.store, 1) == [("inserted", 1), ("updated", "repaired"), ("updated", "a")]
    waiting.commit(deleted(1), deleted(2))
    assert waiting.emit().held == 1
    repair(waiting)
    assert waiting.store.requeue_changes("c") == Requeued(3, 0)
    assert [name for name, _ in stream(waiting.store, 1)] == ["inserted", *["updated"] * 4, "deleted"]
    assert stream(waiting.store, 2) == [("inserted", 1), ("deleted", None)]
    waiting.commit(inserted(1))
    assert waiting.emit().emitted == 1
    _, repaired, *_ = PlatformStore(waiting.store.connection).audit_log()
    assert (repaired.operation, repaired.reason) == ("requeue_changes", "repaired by hand")


def test_what_was_too_large_flows_when_the_limit_is_raised(source: Source) -> None:
    source.store.connection.execute("set event_store.max_data_bytes = 1000")
    source.commit(inserted(1, "x" * 2000), updated(1))
    source.emit()
    assert source.store.requeue_changes("c") == Requeued(0, 2)
    source.store.connection.execute("set event_store.max_data_bytes = 10000")
    assert source.store.requeue_changes("c") == Requeued(2, 0)
    assert [name for name, _ in stream(source.store, 1)] == ["inserted", "updated"]


def test_one_decider_or_one_stream_is_requeued_alone(connect: Connect) -> None:
    source = Source(CaptureStore(connect()), "c", table("t"), table("u"))
    source.begin()
    source.store.connection.execute("set event_store.max_data_bytes = 1000")
    large = "x" * 2000
    source.commit(inserted(1, large), inserted(2, large), inserted(1, large, "u"))
    source.emit()
    source.store.connection.execute("reset event_store.max_data_bytes")
    assert source.store.requeue_changes("c", T, "[2]") == Requeued(1, 0)
    assert source.store.requeue_changes("c", "table:public.u") == Requeued(1, 0)
    assert held(source.store) == [("[1]", "inserted", True)]


def test_a_discarded_change_is_gone_and_what_waits_behind_it_flows(waiting: Source) -> None:
    first, second, third, _ = waiting.store.quarantined_changes("c")
    with waiting.store.connection.transaction(force_rollback=True):
        waiting.store.discard_change(second.quarantine_id, "not wanted")
        repair(waiting)
        assert waiting.store.requeue_changes("c") == Requeued(1, 2)
    waiting.store.discard_change(first.quarantine_id, "a test row")
    assert waiting.store.requeue_changes("c") == Requeued(1, 2)
    waiting.store.discard_change(third.quarantine_id, "another one")
    assert waiting.store.requeue_changes("c") == Requeued(1, 0)
    assert stream(waiting.store, 1) == [("inserted", 1), ("updated", "a"), ("updated", "b")]
    (entry,) = [e for e in PlatformStore(waiting.store.connection).audit_log() if e.reason == "a test row"]
    assert (entry.operation, entry.detail["decider_id"]) == ("discard_change", "[1]")
    assert entry.detail["fault"] == "column v: not UTF-8"
    refused = refusal(NotQuarantined, lambda: waiting.store.discard_change(first.quarantine_id, "again"))
    assert str(first.quarantine_id) in str(refused)
    refusal(Malformed, lambda: waiting.store.discard_change(first.quarantine_id, ""))


def test_a_repair_keeps_the_key_and_needs_an_object(waiting: Source) -> None:
    first = waiting.store.quarantined_changes("c")[0].quarantine_id
    for key, data in (("[2]", "{}"), ("", "{}"), ("[1]", "[]")):
        refusal(Malformed, partial(waiting.store.repair_change, first, key, data))
    refusal(NotQuarantined, lambda: waiting.store.repair_change(10**9, "[1]", "{}"))


def test_an_unknown_key_is_repaired_while_its_stream_has_nothing_newer(source: Source) -> None:
    source.commit(inserted(1), faulty(None), inserted(2))
    source.emit()
    repair(source)
    source.commit(updated(1, "later"))
    assert source.emit().held == 1
    assert source.store.requeue_changes("c") == Requeued(2, 0)
    assert [v for _, v in stream(source.store, 1)] == [1, "repaired", "later"]


def test_a_change_comes_too_late_if_its_stream_went_on(source: Source) -> None:
    with source.store.connection.transaction(force_rollback=True):
        source.backfill(1)
        source.commit(faulty(None))
        source.emit()
        repair(source)
        assert source.store.requeue_changes("c") == Requeued(1, 0)
    for newer in ("same transaction", "next transaction", "backfill", "next slot"):
        with source.store.connection.transaction(force_rollback=True):
            source.commit(inserted(1), faulty(None), *[updated(1)] * (newer == "same transaction"))
            source.emit()
            if newer == "next slot":
                source.begin()
            if newer in {"next transaction", "next slot"}:
                source.commit(updated(1))
                source.emit()
            elif newer == "backfill":
                source.backfill(1)
            with source.store.connection.transaction(force_rollback=True):
                assert "(table:public.t, [1])" in str(refusal(StreamWentOn, partial(repair, source)))
            assert held(source.store) == [(None, "updated", True)]
            repair(source, 3)
            assert source.store.requeue_changes("c") == Requeued(1, 0)


def test_a_truncation_that_waits_flows_too(source: Source) -> None:
    source.commit(Row((), "truncated", None, fault="unreadable"), inserted(1), captures.truncated())
    assert source.emit().quarantined == 1
    assert held(source.store) == [("[]", "truncated", True), ("[]", "truncated", False)]
    assert [name for name, _ in stream(source.store, 1)] == ["inserted", "deleted"]
    (first, _) = source.store.quarantined_changes("c")
    source.store.repair_change(first.quarantine_id, "[]", '{"record": null}')
    assert source.store.requeue_changes("c") == Requeued(2, 0)


def test_a_requeue_waits_for_an_emission_and_then_takes_what_that_left(waiting: Source, connect: Connect) -> None:
    repair(waiting)
    waiting.commit(updated(1, "c"))
    emitting, requeuing = CaptureStore(connect(autocommit=False)), CaptureStore(connect())
    assert emitting.emit_changes("c", waiting.token).held == 1
    call = start(lambda: requeuing.requeue_changes("c"))
    wait_blocked(waiting.store.connection, requeuing.connection.info.backend_pid)
    emitting.connection.commit()
    assert call.result(patience()) == Requeued(2, 3)
    assert held(waiting.store)[-1] == ("[1]", "updated", False)


def test_an_emission_waits_for_a_requeue_and_then_holds_nothing_that_flows(waiting: Source, connect: Connect) -> None:
    repair(waiting)
    repair(waiting, which=2)
    waiting.commit(updated(1, "c"))
    requeuing = CaptureStore(connect(autocommit=False))
    assert requeuing.requeue_changes("c") == Requeued(4, 0)
    call = start(waiting.emit)
    wait_blocked(connect(), waiting.store.connection.info.backend_pid)
    requeuing.connection.commit()
    assert call.result(patience()).emitted == 1
    assert stream(waiting.store, 1)[-1] == ("updated", "c")
