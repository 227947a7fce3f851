"""What operators see of a capture."""

from millrace.resources.capture.store import CaptureStore
from millrace.resources.errors import UnknownCapture
from tests.support.capturing.captures import BEGAN, Source, faulty, inserted, table, updated
from tests.support.factories import Connect, refusal


def test_every_capture_with_how_far_it_is_what_waits_and_who_works_on_it(connect: Connect) -> None:
    one = Source(CaptureStore(connect()), "c", table("t"), table("u"))
    other = Source(CaptureStore(connect()), "d", table("w"))
    one.begin()
    one.commit(inserted(1), faulty(1), updated(1))
    one.emit()
    one.backfill(2, 3)
    one.finish()
    one.commit(inserted(4), inserted(5))
    other.store.release_capture("d", other.token)
    first, second = one.store.capture_info()
    assert (first.capture, first.source_generation, first.slot, first.publication) == ("c", 1, "slot_c", "pub_c")
    assert (first.stored_lsn, first.stored_at, first.unemitted) == (one.lsn, BEGAN, 2)
    assert (first.quarantined, first.held, first.open_gaps, first.gaps) == (1, 1, 0, 0)
    assert (first.tables, first.tables_to_backfill, first.backfilled_rows) == (2, 1, 2)
    assert (first.lease_owner, first.leased_until) == ("me", one.lease.leased_until)
    assert (second.capture, second.source_generation, second.stored_lsn, second.lease_owner) == ("d", None, None, None)
    assert one.store.capture_info("d") == [second]


def test_an_unknown_capture_is_refused(connect: Connect) -> None:
    refusal(UnknownCapture, lambda: CaptureStore(connect()).capture_info("none"))
