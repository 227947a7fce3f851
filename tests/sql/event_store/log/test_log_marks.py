"""Recorded moments of the log: one a minute while it grows, of whole transactions, and thinned after 90 days."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise

import psycopg

from millrace.errors import Malformed
from millrace.event_store.platform import PlatformStore
from tests.support.factories import Connect, append_to, at_once, refusal, rows, set_clock

DAY = datetime(2030, 1, 1, tzinfo=UTC)


def at(store: PlatformStore, time: timedelta | float) -> PlatformStore:
    """Set the clock to a time, or a number of seconds, after the day began."""
    after = time if isinstance(time, timedelta) else timedelta(seconds=time)
    set_clock(store.connection, (DAY + after).isoformat())
    return store


def grown(store: PlatformStore, streams: int = 1) -> None:
    append_to(store, *[f"s-{n}" for n in range(streams)])
    assert store.sequence_events() == streams


def marked(connection: psycopg.Connection) -> list[tuple[float, int]]:
    """Return the recorded moments: seconds after the day began, and the number of events."""
    return [
        ((time - DAY).total_seconds(), sum(marks))
        for time, marks in rows(connection, "select marked_at, marks from event_store.log_marks order by mark_id")
    ]


def test_the_sequencer_marks_once_a_minute_where_the_log_grew(orders: PlatformStore) -> None:
    assert at(orders, 0).sequence_events() == 0
    assert marked(orders.connection) == []
    grown(at(orders, 1))
    grown(at(orders, 30))
    assert marked(orders.connection) == [(1, 1)]
    # the last event of a minute is marked though nothing follows it
    assert at(orders, 62).sequence_events() == 0
    assert marked(orders.connection) == [(1, 1), (62, 2)]
    for time in (63, 130, 1000):
        assert at(orders, time).sequence_events() == 0
    grown(at(orders, 1001), 3)
    assert marked(orders.connection) == [(1, 1), (62, 2), (1001, 5)]
    # a clock that was set back
    grown(at(orders, 100))
    assert marked(orders.connection)[-1] == (100, 6)


def test_a_moment_is_marked_for_a_reason_and_found_by_its_time(orders: PlatformStore) -> None:
    grown(at(orders, 1), 4)
    append_to(at(orders, 5), "s-9")
    # committed events are sequenced first
    mark = orders.mark_log("before the new prices")
    assert (mark.marked_at, mark.reason) == (DAY + timedelta(seconds=5), "before the new prices")
    assert mark.marks == [info.high_water_mark for info in orders.partition_info()]
    assert orders.marks_at(DAY) is None
    for seconds, events in ((1, 4), (4.9, 4), (5, 5), (1e6, 5)):
        found = orders.marks_at(DAY + timedelta(seconds=seconds))
        assert found is not None
        assert sum(found.marks) == events
    # of several moments at one time the last one
    orders.mark_log("again")
    found = orders.marks_at(mark.marked_at)
    assert found is not None
    assert found.reason == "again"
    for wrong in ("", "x" * 1025):
        refusal(Malformed, partial(orders.mark_log, wrong))


def test_after_90_days_one_an_hour_is_left_of_the_sequencers_own(orders: PlatformStore) -> None:
    for minute in (0, 10, 59, 61, 119, 150, 170):
        grown(at(orders, timedelta(minutes=minute)))
    at(orders, timedelta(minutes=59.5)).mark_log("kept")
    before = marked(orders.connection)
    grown(at(orders, timedelta(days=89)))
    assert marked(orders.connection)[:-1] == before
    grown(at(orders, timedelta(days=90, minutes=121)))
    assert [seconds / 60 for seconds, _ in marked(orders.connection)[:-2]] == [59, 119, 150, 170, 59.5]
    # on a later day thinning looks back only a day
    grown(at(orders, timedelta(days=92)))
    assert [seconds / 60 for seconds, _ in marked(orders.connection)[:-3]] == [59, 119, 150, 170, 59.5]


def test_no_mark_divides_a_transaction(orders: PlatformStore, connect: Connect) -> None:
    """Eight writers, each transaction over many log partitions, while others sequence and mark."""

    def write(number: int) -> None:
        writer = PlatformStore(connect())
        for one in range(15):
            with writer.connection.transaction():
                for part in range(3):
                    append_to(writer, *[f"w-{number}-{one}-{part}-{n}" for n in range(5)])

    def mark() -> None:
        marker = PlatformStore(connect())
        for _ in range(60):
            marker.sequence_events()
            marker.mark_log("test")

    works: list[Callable[[], None]] = [*(partial(write, number) for number in range(8)), mark, mark]
    for done in at_once(works):
        done.result()
    orders.mark_log("the end")
    divided = rows(
        orders.connection,
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
    sizes = [sum(marks) for (marks,) in rows(orders.connection, "select marks from event_store.log_marks")]
    assert max(sizes) == 8 * 15 * 15
    # some moments saw a part of the work
    assert len({*sizes}) > 2
    # of two moments one lies before the other in every log partition
    vectors = sorted(marks for (marks,) in rows(orders.connection, "select marks from event_store.log_marks"))
    assert all(one <= other for before, after in pairwise(vectors) for one, other in zip(before, after, strict=True))
