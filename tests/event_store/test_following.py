"""Following the log: each event once, in order, whatever happens to the connection."""

import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from millrace.resources.archive.store import ArchiveStore
from millrace.resources.errors import PositionOutOfRange
from millrace.resources.event_store import EventStore, NewEvent, PlacedEvent
from millrace.resources.event_store.following import Follower, Wanted, follow
from millrace.resources.event_store.migrations import migrate
from millrace.resources.postgres.embedded import EmbeddedPostgres
from millrace.resources.sequencer import run_sequencer
from tests.conftest import in_memory
from tests.support.factories import (
    Connect,
    append_many,
    append_to,
    at_once,
    ids_of_one_partition,
    new_event,
    refusal,
    register_orders,
    rows,
    start,
    terminate,
    value,
)
from tests.support.incidents.servers import Copy, crash, either
from tests.support.patience import patience, wait_until


@pytest.fixture
def orders(store: EventStore) -> EventStore:
    return register_orders(store)


@dataclass
class Screen:
    """Collects what is shown."""

    shown: list[PlacedEvent] = field(default_factory=list)
    lost: list[psycopg.OperationalError] = field(default_factory=list)

    def show(self, events: Sequence[PlacedEvent]) -> None:
        self.shown += events

    def ids(self) -> list[str]:
        return [event.decider_id for event in self.shown]


@contextmanager
def following(dsn: str, wanted: Wanted | None = None, *, limit: int = 10, patience_s: float = 60) -> Iterator[Screen]:
    stop, screen = threading.Event(), Screen()
    running = start(
        lambda: follow(
            dsn, wanted or Wanted(), limit, screen.show, stop, lost=screen.lost.append, patience_s=patience_s
        )
    )
    try:
        yield screen
    finally:
        stop.set()
        running.result(patience())


def test_the_newest_are_shown_and_then_each_new_one_once(orders: EventStore, dsn: str) -> None:
    append_to(orders, "a", "b", "c")
    orders.sequence_events()
    with following(dsn, limit=2) as screen:
        wait_until(lambda: screen.ids() == ["b", "c"], "the newest two")
        append_to(orders, "a", "d")
        orders.sequence_events()
        wait_until(lambda: screen.ids() == ["b", "c", "a", "d"], "the new ones")
    for event in screen.shown:
        place = orders.log_position(event.event_id)
        assert place is not None
        assert (event.partition, event.position) == (place.partition, place.position)


def test_an_event_without_a_position_comes_when_it_has_one(orders: EventStore, connect: Connect) -> None:
    append_to(orders, "a")
    reader, screen = connect(), Screen()
    follower = Follower(Wanted())
    assert follower.begin(reader, 10) == []
    follower.look(reader, screen.show)
    assert screen.ids() == []
    orders.sequence_events()
    follower.look(reader, screen.show)
    follower.look(reader, screen.show)
    assert screen.ids() == ["a"]


def test_a_transaction_that_ends_late_is_not_missed(orders: EventStore, connect: Connect) -> None:
    late, reader, screen = EventStore(connect(autocommit=False)), connect(), Screen()
    first, second = ids_of_one_partition(orders.connection, 2)
    append_to(late, first)
    append_to(orders, second)
    orders.sequence_events()
    follower = Follower(Wanted())
    assert [event.decider_id for event in follower.begin(reader, 10)] == [second]
    late.connection.commit()
    orders.sequence_events()
    follower.look(reader, screen.show)
    (found,) = screen.shown
    # its offset is lower, its position is higher
    assert (found.decider_id, found.position, found.offset) == (first, 1, 1)


def test_one_look_shows_a_log_partition_in_its_order_also_where_a_transaction_ended_late(
    orders: EventStore, connect: Connect
) -> None:
    late, reader, screen = EventStore(connect(autocommit=False)), connect(), Screen()
    first, second = ids_of_one_partition(orders.connection, 2)
    follower = Follower(Wanted())
    follower.begin(reader, 10)
    append_to(late, first)
    append_to(orders, second)
    orders.sequence_events()
    late.connection.commit()
    orders.sequence_events()
    follower.look(reader, screen.show)
    assert screen.ids() == [second, first]
    assert [event.position for event in screen.shown] == [0, 1]


def test_each_filter_holds_for_new_events(orders: EventStore, connect: Connect) -> None:
    reader = connect()
    followers = {
        name: (Follower(wanted), Screen())
        for name, wanted in {
            "decider": Wanted(decider="invoice"),
            "stream": Wanted(decider_id="a"),
            "event": Wanted(event="paid"),
            "correlation": Wanted(correlation_id="request-7"),
            "all": Wanted("order", "c", "paid", correlation_id="request-7"),
        }.items()
    }
    for follower, _ in followers.values():
        follower.begin(reader, 10)
    marked = NewEvent("order", "c", "paid", uuid4(), {}, uuid4(), metadata={"correlation_id": "request-7"})
    orders.append_events([new_event("a"), new_event("b", decider="invoice"), marked])
    orders.sequence_events()
    found = {}
    for name, (follower, screen) in followers.items():
        follower.look(reader, screen.show)
        found[name] = screen.ids()
    assert found == {"decider": ["b"], "stream": ["a"], "event": ["c"], "correlation": ["c"], "all": ["c"]}


def test_more_events_than_a_look_reads_come_with_the_next_ones(orders: EventStore, connect: Connect) -> None:
    reader, screen = connect(), Screen()
    follower = Follower(Wanted())
    follower.begin(reader, 10)
    append_many(orders.connection, 10_000)
    orders.sequence_events()
    while follower.look(reader, screen.show):
        pass
    assert len(screen.shown) == len(set(screen.ids())) == 10_000


def test_a_look_that_fails_shows_nothing_and_the_next_one_finds_it(orders: EventStore, connect: Connect) -> None:
    broken, screen = connect(), Screen()
    follower = Follower(Wanted())
    follower.begin(broken, 10)
    append_to(orders, "a")
    orders.sequence_events()
    terminate(orders.connection, broken.info.backend_pid)
    with pytest.raises(psycopg.OperationalError):
        follower.look(broken, screen.show)
    assert screen.ids() == []
    follower.look(connect(), screen.show)
    assert screen.ids() == ["a"]


def test_each_event_is_shown_once_while_many_write_and_sessions_are_ended(
    orders: EventStore, dsn: str, connect: Connect
) -> None:
    writers = [EventStore(connect()) for _ in range(3)]

    def write(number: int) -> Callable[[], None]:
        def run() -> None:
            for n in range(60):
                append_to(writers[number], f"{number}-{n}")
                writers[number].sequence_events()
                if number == 0 and n % 20 == 10:
                    for (pid,) in readers():
                        terminate(orders.connection, pid)

        return run

    def readers() -> list[tuple[int]]:
        return rows(
            orders.connection,
            "select pid from pg_stat_activity where datname = current_database() and application_name = 'follower'",
        )

    with following(make_conninfo(dsn, application_name="follower")) as screen:
        wait_until(lambda: bool(readers()), "it looks")
        for done in at_once([write(number) for number in range(3)]):
            done.result()
        orders.sequence_events()
        wait_until(lambda: len(screen.shown) >= 180, "all of them")
    assert sorted(screen.ids()) == sorted(f"{number}-{n}" for number in range(3) for n in range(60))
    assert screen.lost
    for partition in {event.partition for event in screen.shown}:
        positions = [event.position for event in screen.shown if event.partition == partition]
        assert positions == list(range(len(positions)))


def test_what_was_purged_before_it_was_shown_is_an_error(orders: EventStore, connect: Connect) -> None:
    reader = connect()
    follower = Follower(Wanted())
    follower.begin(reader, 10)
    append_to(orders, *ids_of_one_partition(orders.connection, 2))
    orders.sequence_events()
    archive = ArchiveStore(orders.connection)
    archive.mark_archived(0, 1)
    archive.raise_low_water_mark(0, 1)
    gone = refusal(PositionOutOfRange, lambda: follower.look(reader, Screen().show))
    assert gone.detail is not None
    assert "Log partition 0: the next position is 0; it holds 1 up to before 2." in gone.detail


def test_it_outlasts_a_restart_of_the_server_and_says_so_once(pytestconfig: pytest.Config) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="millrace-", dir=in_memory()) as directory,
        EmbeddedPostgres(Path(directory), pytestconfig.getoption("postgres")) as server,
    ):
        server.create_database("followed")
        dsn = server.dsn("followed")
        migrate(dsn)
        with psycopg.connect(dsn, autocommit=True) as connection:
            store = register_orders(EventStore(connection))
            append_to(store, "a")
            store.sequence_events()
        with following(dsn) as screen:
            wait_until(lambda: screen.ids() == ["a"], "the first one")
            server.stop()
            wait_until(lambda: bool(screen.lost), "it noticed")
            server.start()
            with psycopg.connect(dsn, autocommit=True) as connection:
                append_to(EventStore(connection), "b")
                EventStore(connection).sequence_events()
            wait_until(lambda: screen.ids() == ["a", "b"], "the second one")
        assert len(screen.lost) == 1
        server.stop()
        with pytest.raises(psycopg.OperationalError):
            follow(dsn, Wanted(), 10, Screen().show, threading.Event(), lost=Screen().lost.append)
        server.start()
        screen = Screen()
        stop = threading.Event()
        running = start(lambda: follow(dsn, Wanted(), 10, screen.show, stop, lost=screen.lost.append, patience_s=0))
        wait_until(lambda: bool(screen.shown), "it began")
        server.stop()
        assert isinstance(running.exception(patience()), psycopg.OperationalError)


def test_a_word_of_new_positions_shows_them_and_a_lost_word_costs_a_wait(
    orders: EventStore, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks by itself only after ten minutes, so what comes was told; then its listening session is ended."""
    monkeypatch.setattr("millrace.resources.event_store.following.LONGEST_PAUSE_S", 600)
    with following(dsn) as screen:
        append_to(orders, "a")
        orders.sequence_events()
        listening = "select pid from pg_stat_activity where datname = current_database() and query ~* '^(un)?listen'"
        wait_until(lambda: len(rows(orders.connection, listening)) == 1, "it listens")
        known = orders.announce_positions([])
        wait_until(lambda: screen.ids() == ["a"], "it was told")
        terminate(orders.connection, *(pid for (pid,) in rows(orders.connection, listening)))
        append_to(orders, "b")
        orders.sequence_events()
        known = orders.announce_positions(known)  # nobody hears it
        wait_until(lambda: screen.ids() == ["a", "b"], "it polls")
        wait_until(lambda: len(rows(orders.connection, listening)) == 1, "it listens again")
        append_to(orders, "c")
        orders.sequence_events()
        orders.announce_positions(known)
        wait_until(lambda: screen.ids() == ["a", "b", "c"], "it was told again")
    assert screen.lost == []


def test_a_follower_and_the_sequencer_go_on_at_a_standby_that_is_promoted(pytestconfig: pytest.Config) -> None:
    stop, screen = threading.Event(), Screen()
    with ExitStack() as opened:
        folders = [Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="wake_"))) for _ in range(2)]
        programs = pytestconfig.getoption("postgres")
        first = opened.enter_context(EmbeddedPostgres(folders[0], programs))
        first.create_database("store")
        migrate(first.dsn("store"))
        second = Copy(folders[1], programs)
        opened.callback(second.stop)
        second.follow(first, synchronous=True)
        dsn = either("store", first, second)
        loop = start(lambda: run_sequencer(dsn, stop))
        shown = start(lambda: follow(dsn, Wanted(), 10, screen.show, stop, lost=screen.lost.append))
        try:
            with psycopg.connect(dsn, autocommit=True) as connection:
                append_to(register_orders(EventStore(connection)), "a")
            wait_until(lambda: screen.ids() == ["a"], "the first one")
            crash(first)
            with psycopg.connect(second.dsn("store"), autocommit=True) as connection:
                connection.execute("select pg_promote()")
                append_to(EventStore(connection), "b")
            wait_until(lambda: screen.ids() == ["a", "b"], "the next one")
            with psycopg.connect(dsn, autocommit=True) as connection:
                wait_until(
                    lambda: value(connection, "select mod(last_value, 2) = 1 from event_store.attended_seq"),
                    "the sequencer sleeps again",
                )
                append_to(EventStore(connection), "c")
            wait_until(lambda: screen.ids() == ["a", "b", "c"], "the third one")
        finally:
            stop.set()
            loop.result(patience())
            shown.result(patience())
    assert len(screen.lost) == 1
