"""Recorded moments of the log: one a minute where it grows, of whole transactions, and thinned after 90 days."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import psycopg
import pytest

from millrace.resources.errors import Malformed
from millrace.resources.event_store import EventStore
from tests.support.factories import Connect, append_to, at_once, refusal, register_orders, rows, set_clock

DAY = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def log(store: EventStore) -> EventStore:
    register_orders(store)
    return store


def at(store: EventStore, time: timedelta | float) -> EventStore:
    """Set the clock to so long, or so many seconds, after the day began."""
    after = time if isinstance(time, timedelta) else timedelta(seconds=time)
    set_clock(store.connection, (DAY + after).isoformat())
    return store


def grown(store: EventStore, streams: int = 1) -> None:
    append_to(store, *[f"s-{n}" for n in range(streams)])
    assert store.sequence_events() == streams


def marked(connection: psycopg.Connection) -> list[tuple[float, int]]:
    """Return the recorded moments: seconds after the day began, and how many events were in the log."""
    return [
        ((time - DAY).total_seconds(), sum(marks))
        for time, marks in rows(connection, "select marked_at, marks from event_store.log_marks order by mark_id")
    ]


def test_the_sequencer_marks_once_a_minute_where_the_log_grew(log: EventStore) -> None:
    assert at(log, 0).sequence_events() == 0
    assert marked(log.connection) == []
    grown(at(log, 1))
    grown(at(log, 30))
    assert marked(log.connection) == [(1, 1)]
    # the last event of a minute is marked though nothing follows it
    assert at(log, 62).sequence_events() == 0
    assert marked(log.connection) == [(1, 1), (62, 2)]
    for time in (63, 130, 1000):
        assert at(log, time).sequence_events() == 0
    grown(at(log, 1001), 3)
    assert marked(log.connection) == [(1, 1), (62, 2), (1001, 5)]
    # a clock that was set back
    grown(at(log, 100))
    assert marked(log.connection)[-1] == (100, 6)


def test_a_moment_is_marked_for_a_reason_and_found_by_its_time(log: EventStore) -> None:
    grown(at(log, 1), 4)
    append_to(at(log, 5), "s-9")
    # what is committed is sequenced first
    mark = log.mark_log("before the new prices")
    partitions = rows(log.connection, "select high_water_mark from event_store.partitions order by partition")
    assert (mark.marked_at, mark.reason, mark.marks) == (
        DAY + timedelta(seconds=5),
        "before the new prices",
        [high for (high,) in partitions],
    )
    assert log.marks_at(DAY) is None
    for seconds, events in ((1, 4), (4.9, 4), (5, 5), (1e6, 5)):
        found = log.marks_at(DAY + timedelta(seconds=seconds))
        assert found is not None
        assert sum(found.marks) == events
    # of one time the last
    log.mark_log("again")
    found = log.marks_at(mark.marked_at)
    assert found is not None
    assert found.reason == "again"
    for reason in ("", "x" * 1025):
        refusal(Malformed, lambda reason=reason: log.mark_log(reason))  # type: ignore[misc]


def test_after_90_days_one_an_hour_is_left_of_the_sequencers_own(log: EventStore) -> None:
    for minute in (0, 10, 59, 61, 119, 150, 170):
        grown(at(log, timedelta(minutes=minute)))
    at(log, timedelta(minutes=59.5)).mark_log("kept")
    before = marked(log.connection)
    grown(at(log, timedelta(days=89)))
    assert marked(log.connection)[:-1] == before
    grown(at(log, timedelta(days=90, minutes=121)))
    assert [seconds / 60 for seconds, _ in marked(log.connection)[:-2]] == [59, 119, 150, 170, 59.5]
    # on a later day nobody looks back further than a day
    grown(at(log, timedelta(days=92)))
    assert [seconds / 60 for seconds, _ in marked(log.connection)[:-3]] == [59, 119, 150, 170, 59.5]


def test_no_mark_divides_a_transaction(log: EventStore, connect: Connect) -> None:
    """Eight writers, each transaction over many log partitions, while others sequence and mark."""

    def write(number: int) -> None:
        writer = EventStore(connect())
        for one in range(15):
            with writer.connection.transaction():
                for part in range(3):
                    append_to(writer, *[f"w-{number}-{one}-{part}-{n}" for n in range(5)])

    def mark() -> None:
        marker = EventStore(connect())
        for _ in range(60):
            marker.sequence_events()
            marker.mark_log("test")

    works = [lambda number=number: write(number) for number in range(8)] + [mark, mark]
    for done in at_once(works):
        done.result()
    log.mark_log("the end")
    divided = rows(
        log.connection,
        """
        select m.mark_id, e.transaction_id
        from event_store.log_marks m
        cross join event_store.event_log l
        join event_store.events e using ("offset")
        group by m.mark_id, e.transaction_id
        having count(*) filter (where l.position < m.marks[l.partition + 1]) not in (0, count(*))
        """,
    )
    assert divided == []
    sizes = [sum(marks) for (marks,) in rows(log.connection, "select marks from event_store.log_marks")]
    assert max(sizes) == 8 * 15 * 15
    # some saw a part of the work
    assert len({*sizes}) > 2
    # of two moments one lies wholly before the other
    vectors = sorted(marks for (marks,) in rows(log.connection, "select marks from event_store.log_marks"))
    assert all(one <= other for before, after in pairwise(vectors) for one, other in zip(before, after, strict=True))
