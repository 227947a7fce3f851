"""Following the log: each event once, in order, despite lost connections.

Not here: servers that restart or fail over meanwhile (tests/processes/event_store/test_servers.py).
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from millrace.errors import PositionOutOfRange
from millrace.event_store import Event
from millrace.event_store.following import EventFilter, Follower, follow
from millrace.event_store.platform import PlatformStore
from tests.event_store.test_wake_ups import listeners
from tests.support import factories
from tests.support.factories import Connect, append_many, append_to, at_once, ids_of_one_partition, new_event, refusal
from tests.support.patience import patience, wait_until
from tests.support.sql_calls import BatchEvent, append_events


@dataclass
class Screen:
    shown: list[Event] = field(default_factory=list)
    lost: list[psycopg.OperationalError] = field(default_factory=list)

    def show(self, events: Sequence[Event]) -> None:
        self.shown += events

    def ids(self) -> list[str]:
        return [event.decider_id for event in self.shown]


@contextmanager
def following(dsn: str) -> Iterator[Screen]:
    stop, screen = threading.Event(), Screen()
    running = factories.start(lambda: follow(dsn, EventFilter(), 2, screen.show, stop, lost=screen.lost.append))
    try:
        yield screen
    finally:
        stop.set()
        running.result(patience())


def test_the_newest_are_shown_and_then_each_new_one_once(orders: PlatformStore, dsn: str) -> None:
    append_to(orders, "a", "b", "c")
    orders.sequence_events()
    with following(dsn) as screen:
        wait_until(lambda: screen.ids() == ["b", "c"], "the newest two")
        append_to(orders, "a", "d")
        orders.sequence_events()
        wait_until(lambda: screen.ids() == ["b", "c", "a", "d"], "the new ones")
    for event in screen.shown:
        place = orders.log_position(event.event_id)
        assert place is not None
        assert (event.partition, event.position) == (place.partition, place.position)


def test_a_transaction_that_ends_late_is_not_missed(orders: PlatformStore, connect: Connect) -> None:
    late, reader, begun_before, begun_after = PlatformStore(connect(autocommit=False)), connect(), Screen(), Screen()
    first, second = ids_of_one_partition(orders.connection, 2)
    before, after = Follower(EventFilter()), Follower(EventFilter())
    before.begin(reader, 10)
    append_to(late, first)
    append_to(orders, second)
    orders.sequence_events()
    assert [event.decider_id for event in after.begin(reader, 10)] == [second]
    late.connection.commit()
    orders.sequence_events()
    after.show_next(reader, begun_after.show)
    (found,) = begun_after.shown
    # its offset is lower, its position is higher
    assert (found.decider_id, found.position, found.offset) == (first, 1, 1)
    before.show_next(reader, begun_before.show)
    assert begun_before.ids() == [second, first]
    assert [event.position for event in begun_before.shown] == [0, 1]


def test_each_filter_holds_for_new_events(orders: PlatformStore, connect: Connect) -> None:
    reader = connect()
    wanted = {
        EventFilter(decider="invoice"): ["b"], EventFilter(decider_id="a"): ["a"], EventFilter(event="paid"): ["c"],
        EventFilter(correlation_id="request-7"): ["c"], EventFilter("order", "c", "paid", correlation_id="request-7"): ["c"],
    }  # fmt: skip
    followers = {each: Follower(each) for each in wanted}
    for follower in followers.values():
        follower.begin(reader, 10)
    marked = BatchEvent("order", "c", "paid", uuid4(), {}, uuid4(), metadata={"correlation_id": "request-7"})
    append_events(orders, [new_event("a"), new_event("b", decider="invoice"), marked])
    orders.sequence_events()
    for each, follower in followers.items():
        screen = Screen()
        follower.show_next(reader, screen.show)
        assert screen.ids() == wanted[each]


def test_what_a_look_has_not_read_comes_next(
    orders: PlatformStore, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.event_store.following.PAGE", 5)
    reader, screen = connect(), Screen()
    follower = Follower(EventFilter())
    follower.begin(reader, 10)
    append_many(orders.connection, 500)
    orders.sequence_events()
    looks = 1
    while follower.show_next(reader, screen.show):
        looks += 1
    assert looks > 2
    assert len(screen.shown) == len(set(screen.ids())) == 500


def test_each_is_shown_once_whatever_sessions_end(orders: PlatformStore, dsn: str, connect: Connect) -> None:
    writers = [PlatformStore(connect()) for _ in range(3)]
    readers = "select pid from pg_stat_activity where datname = current_database() and application_name = 'follower'"

    def write(number: int) -> Callable[[], None]:
        def run() -> None:
            for n in range(30):
                append_to(writers[number], f"{number}-{n}")
                writers[number].sequence_events()
                if number == 0 and n % 10 == 5:
                    for (pid,) in factories.rows(orders.connection, readers):
                        factories.terminate(orders.connection, pid)

        return run

    with following(make_conninfo(dsn, application_name="follower")) as screen:
        append_to(orders, "first")
        orders.sequence_events()
        wait_until(lambda: screen.ids() == ["first"], "it looks")
        for done in at_once([write(number) for number in range(3)]):
            done.result()
        orders.sequence_events()
        wait_until(lambda: len(screen.shown) >= 91, "all of them")
    assert sorted(screen.ids()) == sorted(["first", *(f"{number}-{n}" for number in range(3) for n in range(30))])
    assert screen.lost
    for partition in {event.partition for event in screen.shown}:
        positions = [event.position for event in screen.shown if event.partition == partition]
        assert positions == list(range(len(positions)))


def test_what_was_purged_before_it_was_shown_is_an_error(orders: PlatformStore, connect: Connect) -> None:
    reader = connect()
    follower = Follower(EventFilter())
    follower.begin(reader, 10)
    append_to(orders, *ids_of_one_partition(orders.connection, 2))
    orders.sequence_events()
    factories.purge(orders, 0, 1)
    gone = refusal(PositionOutOfRange, lambda: follower.show_next(reader, Screen().show))
    assert gone.detail is not None
    assert "Log partition 0: the next position is 0; it holds 1 up to before 2." in gone.detail


def test_a_word_of_new_positions_shows_them(orders: PlatformStore, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # it polls only after ten minutes, so earlier events come by notification
    monkeypatch.setattr("millrace.event_store.following.PAUSE_S", 600)
    with following(dsn) as screen:
        append_to(orders, "a")
        orders.sequence_events()
        wait_until(lambda: len(listeners(orders.connection)) == 1, "it listens")
        known = orders.announce_positions([])
        wait_until(lambda: screen.ids() == ["a"], "it was told")
        append_to(orders, "b")
        orders.sequence_events()
        orders.announce_positions(known)
        wait_until(lambda: screen.ids() == ["a", "b"], "it was told again")
    assert screen.lost == []
