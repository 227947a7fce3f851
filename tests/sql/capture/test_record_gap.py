"""What is lost is said once, and a new start can be asked for."""

from functools import partial

from millrace.resources.capture.decoding.pgoutput import Lsn
from millrace.resources.capture.store import CaptureStore
from millrace.resources.errors import Malformed, UnknownCapture
from millrace.resources.event_store import EventStore
from tests.support.capturing.captures import Source, inserted, source
from tests.support.factories import Connect, at_once, refusal

__all__ = ["source"]


def test_a_gap_is_recorded_once_while_it_is_open(source: Source, connect: Connect) -> None:
    def record(n: int) -> int:
        return CaptureStore(connect()).record_gap("c", Lsn(n), Lsn(n + 1), f"reason {n}")

    gaps = {future.result() for future in at_once([partial(record, n) for n in range(1, 6)])}
    (gap,) = source.store.capture_gaps("c")
    assert gaps == {gap.gap_id}
    assert gap.from_lsn is not None
    assert (gap.to_lsn, gap.reason) == (Lsn(gap.from_lsn + 1), f"reason {int(gap.from_lsn)}")
    assert gap.resolved_by_generation is None
    (info,) = source.store.capture_info("c")
    assert (info.open_gaps, info.gaps) == (1, 1)
    source.begin()
    assert source.store.record_gap("c", None, None, "another one") != gap.gap_id
    assert [each.reason for each in source.store.capture_gaps("c")] == ["another one", gap.reason]


def test_a_new_start_is_a_gap_from_what_is_stored_and_audited(source: Source) -> None:
    source.commit(inserted(1))
    source.store.restart_capture("c", "the source was set back")
    (gap,) = source.store.capture_gaps("c")
    assert gap.from_lsn == source.lsn
    assert "the source was set back" in gap.reason
    assert source.store.claim_capture("c", "me").gap
    entry, *_, registered = EventStore(source.store.connection).audit_log()
    assert registered.operation == "register_capture"
    assert (entry.operation, entry.reason, entry.detail["gap_id"]) == (
        "restart_capture", "the source was set back", gap.gap_id,
    )  # fmt: skip


def test_a_reason_and_a_known_capture_are_needed(source: Source) -> None:
    refusal(Malformed, lambda: source.store.record_gap("c", None, None, ""))
    refusal(Malformed, lambda: source.store.restart_capture("c", ""))
    refusal(UnknownCapture, lambda: source.store.record_gap("none", None, None, "x"))
    refusal(UnknownCapture, lambda: source.store.restart_capture("none", "x"))
