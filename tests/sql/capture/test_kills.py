"""Calls of a capture that are killed in the middle: nothing of them is left, and repeated they do all that they do.

Belongs here: the table of calls. Not here: a capture that is killed between two calls (tests/capture/test_kills).
"""

from collections.abc import Callable
from typing import NamedTuple

import psycopg
import pytest

from millrace.resources.capture.decoding.pgoutput import Lsn
from millrace.resources.capture.store import CaptureStore, Emitted, EmittedRows, Requeued
from tests.support.capturing.captures import (
    BEGAN,
    Source,
    append_foreign,
    events,
    faulty,
    held,
    inserted,
    truncated,
    updated,
)
from tests.support.factories import Connect, rows, start, terminate, wait_blocked
from tests.support.patience import patience


class Killed(NamedTuple):
    """A call after some changes, what it returns, and how many events there are then."""

    before: Callable[[Source], object]
    call: Callable[[Source], object]
    done: object
    events: int


def some_rows(source: Source) -> None:
    source.commit(*[inserted(n) for n in range(5)])


def a_truncation(source: Source) -> None:
    some_rows(source)
    source.emit()
    source.commit(truncated())


def a_repaired_row(source: Source) -> None:
    source.commit(inserted(3), faulty(3), updated(3), faulty(3))
    source.emit()
    first, *_ = source.store.quarantined_changes("c")
    source.store.repair_change(first.quarantine_id, "[3]", '{"record": null}')


def save(source: Source) -> int:
    made = source.changes(inserted(1), inserted(2), lsn=source.lsn, xid=source.xid)
    with source.store.connection.transaction():
        source.store.copy_changes(source.generation, made)
        return source.store.store_changes("c", source.token, Lsn(source.lsn + 1), BEGAN)


KILLS = {
    "storing": Killed(lambda _: None, save, 2, 0),
    "changes": Killed(some_rows, Source.emit, Emitted(5, 0, 0, behind=False), 5),
    "a truncation": Killed(a_truncation, Source.emit_all, Emitted(6, 0, 0, behind=False), 11),
    "rows that are read": Killed(lambda _: None, lambda s: s.backfill(1, 2, 3, 4), EmittedRows("stored", 4, 0, 0), 4),
    "a requeue": Killed(a_repaired_row, lambda s: s.store.requeue_changes("c"), Requeued(2, 1), 3),
}


@pytest.mark.parametrize("what", KILLS)
def test_a_kill_in_the_middle_leaves_nothing_half_and_the_next_call_does_it_all(
    source: Source, connect: Connect, what: str
) -> None:
    def state() -> object:
        positions = (
            "select stored_lsn, emitted_lsn, emitted_idx, truncating_key, (select count(*) from event_store.wal_events)"
        )
        progress = "backfill_key, backfilled_rows from event_store.captures cross join event_store.captured_tables"
        found = observer.execute(f"{positions}, {progress}".encode()).fetchall()
        return events(CaptureStore(observer)), held(CaptureStore(observer)), found

    before, call, done, number = KILLS[what]
    before(source)
    holder, observer, doomed = connect(autocommit=False), connect(), source.store.connection
    stood = state()
    # somebody is at the capture, or at a stream that is to be written
    if what == "storing":
        holder.execute("select from event_store.captures for update")
    else:
        append_foreign(CaptureStore(holder), "updated", 3)
    killed = start(lambda: call(source))
    wait_blocked(observer, doomed.info.backend_pid)
    terminate(observer, doomed.info.backend_pid)
    assert isinstance(killed.exception(patience()), psycopg.OperationalError)
    holder.rollback()
    assert state() == stood
    source.store = CaptureStore(connect())
    assert call(source) == done
    assert (
        len(events(source.store)) == len(rows(observer, "select distinct event_id from event_store.events")) == number
    )
