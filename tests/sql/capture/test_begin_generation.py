"""A fresh slot: a number of its own for ever, positions from its start, every table read anew, gaps closed."""

from functools import partial

import pytest

from millrace.resources.capture.decoding.pgoutput import Lsn
from millrace.resources.capture.store import CaptureStore, Emitted
from millrace.resources.errors import ChangesWaiting, Malformed
from millrace.resources.event_store import EventStore
from tests.support.capturing.captures import (
    Source,
    deleted,
    event_ids,
    events,
    inserted,
    source,
    table,
    truncated,
    updated,
)
from tests.support.factories import Connect, at_once, refusal, rows, value

__all__ = ["source"]


def test_a_generation_begins_at_the_start_of_its_slot_with_every_table_to_be_read(source: Source) -> None:
    (info,) = source.store.capture_info("c")
    assert (info.source_generation, info.stored_lsn, info.emitted_lsn) == (1, source.lsn, source.lsn)
    assert (info.tables, info.tables_to_backfill, info.gaps) == (1, 1, 0)
    (registered,) = source.store.captured_tables("c")
    assert registered.published_xid == 700


def test_a_number_is_never_given_out_twice_also_where_a_capture_went(source: Source, connect: Connect) -> None:
    numbers = [source.generation, source.begin()]
    source.store.release_capture("c", source.token)
    source.store.unregister_capture("c")
    again = Source(CaptureStore(connect()))
    numbers.append(again.begin())
    assert numbers == [1, 2, 3]
    assert value(again.store.connection, "select count(*) from event_store.source_generations") == 3


def test_captures_that_begin_at_once_get_numbers_of_their_own(connect: Connect) -> None:
    sources = [Source(CaptureStore(connect()), name, table(f"t{name}")) for name in "abcdef"]
    numbers = [future.result() for future in at_once([partial(each.begin) for each in sources])]
    assert sorted(numbers) == [1, 2, 3, 4, 5, 6]


def test_stored_changes_must_be_events_before(source: Source) -> None:
    source.commit(inserted(1))
    refused = refusal(ChangesWaiting, source.begin)
    assert "generation 1" in str(refused)
    source.emit()
    assert source.begin() == 2


def test_a_truncation_must_be_emitted_whole_before(source: Source) -> None:
    source.commit(*[inserted(n) for n in range(5)], truncated())
    while source.emit(2).behind:
        refusal(ChangesWaiting, source.begin)
    assert source.begin() == 2


def test_the_same_positions_in_another_slot_are_other_events(source: Source) -> None:
    first = source.commit(inserted(1))
    source.emit()
    source.lsn = first[0].commit_lsn
    source.begin()
    second = source.commit(inserted(1))
    assert source.emit() == Emitted(1, 0, 0, behind=False)
    assert second[0].commit_lsn == first[0].commit_lsn
    assert event_ids(first) != event_ids(second)


def test_an_open_gap_ends_with_it(source: Source) -> None:
    gap = source.store.record_gap("c", source.lsn, None, "The slot is gone.")
    assert source.store.claim_capture("c", "me").gap
    source.lease = source.store.claim_capture("c", "me")
    source.begin()
    assert not source.store.claim_capture("c", "me").gap
    (closed,) = source.store.capture_gaps("c")
    assert (closed.gap_id, closed.resolved_by_generation, closed.source_generation) == (gap, 2, 1)


def test_a_new_slot_without_a_recorded_gap_is_one(source: Source) -> None:
    source.begin()
    (gap,) = source.store.capture_gaps("c")
    assert (gap.from_lsn, gap.source_generation, gap.resolved_by_generation) == (source.lsn, 1, 2)


def test_after_a_gap_the_table_is_read_anew_and_what_is_gone_is_deleted(source: Source) -> None:
    source.commit(inserted(1), inserted(2), inserted(3), inserted(4), deleted(4))
    source.emit()
    source.lsn = Lsn(source.lsn + 0x10000)
    source.begin()
    source.commit(updated(3), deleted(3))
    source.emit()
    source.backfill(1, 5)
    assert source.finish() == 1
    live = {}
    for key, name in events(source.store):
        live[key] = name != "deleted"
    assert live == {"[1]": True, "[2]": False, "[3]": False, "[4]": False, "[5]": True}
    (*_, gone) = EventStore(source.store.connection).get_events("[2]", "table:public.t")
    assert gone.data["gap"] is True
    # ended by the log, or before: nothing more
    assert [name for key, name in events(source.store) if key in ("[3]", "[4]")].count("deleted") == 2


@pytest.mark.parametrize(
    ("system", "database", "xid", "timelines"),
    [
        ("", "d", "1", "1"),
        (None, "d", "1", "1"),
        ("1", "", "1", "1"),
        ("1", None, "1", "1"),
        ("1", "d", None, "1"),
        ("1", "d", "1", None),
        ("1", "d", "1", "1 0/10"),
    ],
)
def test_what_the_source_says_must_be_stated(
    source: Source, system: str | None, database: str | None, xid: str | None, timelines: str | None
) -> None:
    def begin() -> None:
        source.store._value(
            int,
            "select event_store.begin_generation('c', %s, %s, %s, '0/1', %s::xid8, %s)",
            (source.token, system, database, xid, timelines),
        )

    refusal(Malformed, begin)
    assert rows(source.store.connection, "select max(source_generation) from event_store.source_generations") == [(1,)]
