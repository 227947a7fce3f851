"""The simulated shop: plausible lives, exact counts, other writers."""

import random
import re
import threading
from collections import defaultdict
from itertools import pairwise
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from millrace.event_store import Appended, EventStore, NewEvent
from millrace.event_store.platform import PlatformStore
from millrace.examples.shop import simulator
from millrace.examples.shop.events import register_shop
from millrace.examples.shop.lives import plan_life
from millrace.examples.shop.simulator import SimulationReport, simulate
from tests.support.factories import Connect, purge_all, start, value
from tests.support.patience import patience, wait_until
from tests.support.sql_calls import BatchEvent, append_event, append_events


def run(dsn: str, events: int, seed: int | None = None, stop: threading.Event | None = None) -> SimulationReport:
    return simulate(dsn, rate=None, events=events, seed=seed, stop=stop or threading.Event())


def stored(store: PlatformStore) -> list[tuple[str, str, str, dict[str, Any], bool]]:
    query = 'select decider, decider_id, event, data, final from event_store.events order by "offset"'
    return store.connection.execute(query).fetchall()


# Lives -----------------------------------------------------------------------------------------------------


def test_orders_live_plausible_lives(dsn: str, store: PlatformStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.examples.shop.simulator.MOST_LIVES", 8)
    report = run(dsn, 1500, seed=1)
    events = stored(store)
    lives = defaultdict[str, list[tuple[str, dict[str, Any]]]](list)
    for decider, decider_id, event, data, _ in events:
        if decider != "customer":
            lives[decider_id.split("-", 1)[1]].append((event, data))
    for life in lives.values():
        begins_with_its_lines_and_is_confirmed_for_their_sum(life)
        is_paid_before_it_is_shipped_and_ends(life)
    ends = [life[-1][0] for life in lives.values()]
    # the last ones are those of orders that are never paid
    over_with = {"order_cancelled", "shipment_delivered", "payment_requested"}
    assert over_with <= set(ends)
    # finished lives are dropped from memory
    over = sum(end in over_with for end in ends)
    assert report.orders - 8 <= over <= report.orders
    each_event_has_the_data_that_it_promises(events)
    # lives are interleaved, and customers order again
    orders = [decider_id.split("-", 1)[1] for decider, decider_id, _, _, _ in events if decider != "customer"]
    switches = sum(one != other for one, other in pairwise(orders))
    assert switches > len(orders) / 3  # an order begins with up to six events at once
    customers = [data["customer_id"] for _, _, event, data, _ in events if event == "order_placed"]
    assert len(set(customers)) < len(customers)
    assert all(re.fullmatch(r"customer-\d{3}", customer) for customer in customers)


def begins_with_its_lines_and_is_confirmed_for_their_sum(life: list[tuple[str, dict[str, Any]]]) -> None:
    assert life[0][0] == "order_placed"
    lines = [data for event, data in life if event == "order_line_added"]
    assert {event for event, _ in life[1 : 1 + len(lines)]} <= {"order_line_added"}
    total = round(sum(line["amount"] for line in lines), 2)
    for event, data in life:
        if event == "order_confirmed":
            assert data["total"] == total
        elif event in {"payment_requested", "payment_received"}:
            assert data["amount"] == total


def is_paid_before_it_is_shipped_and_ends(life: list[tuple[str, dict[str, Any]]]) -> None:
    names = [event for event, _ in life]
    if "shipment_prepared" in names:
        assert names.index("payment_received") < names.index("order_confirmed") < names.index("shipment_prepared")
    assert "order_cancelled" not in names[:-1]
    assert "shipment_delivered" not in names[:-1]


def each_event_has_the_data_that_it_promises(events: list[tuple[str, str, str, dict[str, Any], bool]]) -> None:
    fields: dict[str, set[str]] = defaultdict(set)
    for _, _, event, data, _ in events:
        fields[event] |= set(data)
        assert all(round(data[key], 2) == data[key] for key in ("amount", "total") if key in data)
    whose = {"order_id", "customer_id"}
    assert fields == {
        "customer_registered": {"name"}, "order_placed": {"customer_id", "channel"}, "order_confirmed": {"total"},
        "order_line_added": {"product", "quantity", "amount"}, "order_cancelled": {"reason"},
        "payment_requested": {*whose, "amount", "method"}, "payment_received": {*whose, "amount"},
        "payment_failed": {*whose, "reason"}, "shipment_prepared": {*whose, "carrier"},
        "shipment_dispatched": whose, "shipment_delivered": whose,
    }  # fmt: skip
    final = {event for _, _, event, _, closes in events if closes}
    assert final == {"order_cancelled", "payment_received", "shipment_delivered"}


# Counts and ids --------------------------------------------------------------------------------------------


def test_as_many_events_are_appended_as_were_asked_for(dsn: str, store: PlatformStore) -> None:
    for events in (1, 2, 7):
        before = len(stored(store))
        assert run(dsn, events, seed=events).events == len(stored(store)) - before == events


def test_a_seed_repeats_the_lives_under_new_ids(dsn: str, store: PlatformStore) -> None:
    run(dsn, 100, seed=5)
    run(dsn, 100, seed=5)
    events = stored(store)
    halves = [[event for event in half if event[0] != "customer"] for half in (events[:100], events[100:])]
    strip = re.compile(r"-[0-9a-f]{12}-")
    first, second = ([strip.sub("-", repr(event)) for event in half] for half in halves)
    # the first run registered the customers: the second one has room for more events
    assert first == second[: len(first)] != second
    first_ids, second_ids = ({event[1] for event in half} for half in halves)
    assert not first_ids & second_ids


def test_a_rate_is_kept_by_waiting_on_stop(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Standing:
        monotonic = staticmethod(lambda: 0.0)

    monkeypatch.setattr(simulator, "time", Standing)
    waits: list[float] = []

    class Impatient(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            return False

    simulate(dsn, rate=50, events=40, seed=6, stop=Impatient())
    # no time passes, so the debt only grows: the last wait is for 40 events at 50 per second
    assert waits[-1] == pytest.approx(0.8)
    assert waits == sorted(waits)


# Others ----------------------------------------------------------------------------------------------------


def test_each_customer_is_registered_once_by_runs_at_once(dsn: str, store: PlatformStore, connect: Connect) -> None:
    register_shop(store)
    first = plan_life(random.Random(3), "").customer
    other = PlatformStore(connect(autocommit=False))
    append_events(
        other, [BatchEvent(first.decider, first.decider_id, first.event, data=first.data, expected_version=0)]
    )
    running = start(lambda: run(dsn, 300, seed=3))
    waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    wait_until(lambda: bool(value(store.connection, waiting)), "the run waits for the other one's customer")
    other.connection.commit()
    assert running.result(patience()).events == 300 == len(stored(store)) - 1
    seen: list[str] = []
    for _, decider_id, event, data, _ in stored(store):
        if event == "customer_registered":
            assert decider_id not in seen
            seen.append(decider_id)
        assert data.get("customer_id") in {None, *seen}


def test_a_lost_answer_leaves_one_customer(dsn: str, store: PlatformStore, monkeypatch: pytest.MonkeyPatch) -> None:
    answered = EventStore.append
    lost: list[str] = []

    def lose_the_first(
        self: EventStore, decider: str, decider_id: str, event: NewEvent, expected_version: int
    ) -> Appended:
        done = answered(self, decider, decider_id, event, expected_version=expected_version)
        if not lost:
            lost.append(event.event)
            raise psycopg.OperationalError("the connection is lost")
        return done

    monkeypatch.setattr(EventStore, "append", lose_the_first)
    assert run(dsn, 20, seed=4).events == 20 == len(stored(store))
    assert lost == ["customer_registered"]


LINE: dict[str, object] = {"product": "whisk", "quantity": 1, "amount": 9.95}
CLOSED: dict[str, object] = {"reason": "called in"}


class Meddler(threading.Event):
    """Appends its own event to the newest open order before each event of the simulator."""

    def __init__(self, store: PlatformStore, event: str, data: dict[str, object], *, final: bool) -> None:
        super().__init__()
        self.store, self.event, self.data, self.final = store, event, data, final
        self.appended = 0

    def is_set(self) -> bool:
        open_order = self.store.connection.execute(
            "select decider_id, last_event_id from event_store.streams"
            " where decider = 'order' and not final order by last_offset desc limit 1"
        ).fetchone()
        if open_order:
            order, last = open_order
            append_event(self.store, self.event, uuid4(), "order", order, self.data, uuid4(), last, final=self.final)
            self.appended += 1
        return super().is_set()


@pytest.mark.parametrize(("seed", "event", "data"), [(7, "order_line_added", LINE), (8, "order_cancelled", CLOSED)])
def test_it_goes_on_where_another_writer_was_first(
    dsn: str, store: PlatformStore, seed: int, event: str, data: dict[str, object]
) -> None:
    """The simulator rereads a stream with new events, and drops the life of a closed stream."""
    meddler = Meddler(store, event, data, final=data is CLOSED)
    report = run(dsn, 200, seed=seed, stop=meddler)
    assert report.events == 200
    assert report.conflicts > 0 or data is CLOSED
    assert len(stored(store)) == 200 + meddler.appended


class Purger(Meddler):
    """Also deletes the other writer's events, after they are archived."""

    def is_set(self) -> bool:
        stopped = super().is_set()
        purge_all(self.store)
        return stopped


def test_it_goes_on_where_the_last_event_of_a_stream_was_purged(dsn: str, store: PlatformStore) -> None:
    purger = Purger(store, "order_line_added", LINE, final=False)
    report = run(dsn, 30, seed=7, stop=purger)
    assert (report.events, stored(store)[1:]) == (30, [])
    assert report.conflicts > 0
