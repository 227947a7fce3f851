"""The simulated shop: plausible lives, exact counts, other writers, a database that goes away, signals."""

import logging
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from millrace.examples.shop import simulator
from millrace.examples.shop.events import SHOP
from millrace.examples.shop.lives import plan_life
from millrace.examples.shop.simulator import SimulationReport, simulate
from millrace.resources.archive.store import ArchiveStore
from millrace.resources.errors import SchemaMismatch, Unreachable
from millrace.resources.event_store import EventStore
from millrace.resources.event_store.migrations import migrate
from millrace.resources.postgres.embedded import EmbeddedPostgres
from millrace.resources.settings import PROJECT
from tests.support.patience import patience

CHILD = "from millrace.platform_defs.cli import main; main()"


def run(dsn: str, events: int, seed: int | None = None, stop: threading.Event | None = None) -> SimulationReport:
    return simulate(dsn, rate=None, events=events, seed=seed, stop=stop or threading.Event())


def stored(store: EventStore) -> list[tuple[str, str, str, dict[str, Any], bool]]:
    query = 'select decider, decider_id, event, data, final from event_store.events order by "offset"'
    return store.connection.execute(query).fetchall()


def count(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        row = connection.execute("select count(*) from event_store.events").fetchone()
        assert row is not None
        return int(row[0])


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + patience()
    while not condition():
        assert time.monotonic() < deadline, "it never came this far"


# Lives -----------------------------------------------------------------------------------------------------


@pytest.fixture
def simulated(dsn: str, store: EventStore) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Return the events of each order, its payment and its shipment, in the order they were appended."""
    run(dsn, 2000, seed=1)
    lives = defaultdict(list)
    for _, decider_id, event, data, _ in stored(store):
        lives[decider_id.split("-", 1)[1]].append((event, data))
    return lives


def test_an_order_begins_with_its_lines_and_is_confirmed_for_their_sum(
    simulated: dict[str, list[tuple[str, dict[str, Any]]]],
) -> None:
    for life in simulated.values():
        assert life[0][0] == "order_placed"
        lines = [data for event, data in life if event == "order_line_added"]
        assert {event for event, _ in life[1 : 1 + len(lines)]} <= {"order_line_added"}
        total = round(sum(line["amount"] for line in lines), 2)
        for event, data in life:
            if event == "order_confirmed":
                assert data["total"] == total
            elif event in {"payment_requested", "payment_received"}:
                assert data["amount"] == total


def test_nothing_is_shipped_before_it_is_paid_and_nothing_after_it_is_cancelled(
    simulated: dict[str, list[tuple[str, dict[str, Any]]]],
) -> None:
    ends = set()
    for life in simulated.values():
        names = [event for event, _ in life]
        ends.add(names[-1])
        if "shipment_prepared" in names:
            assert names.index("payment_received") < names.index("order_confirmed") < names.index("shipment_prepared")
        assert "order_cancelled" not in names[:-1]
        assert "shipment_delivered" not in names[:-1]
    assert {"order_cancelled", "shipment_delivered", "payment_failed"} <= {
        name for life in simulated.values() for name, _ in life
    }
    assert {"order_cancelled", "shipment_delivered"} <= ends


def test_every_event_of_the_shop_happens_with_the_data_it_promises(dsn: str, store: EventStore) -> None:
    run(dsn, 2000, seed=2)
    fields: dict[str, set[str]] = defaultdict(set)
    for _, _, event, data, _ in stored(store):
        fields[event] |= set(data)
        assert all(round(data[key], 2) == data[key] for key in ("amount", "total") if key in data)
    whose = {"order_id", "customer_id"}
    assert fields == {
        "order_placed": {"customer_id", "channel"},
        "order_line_added": {"product", "quantity", "amount"},
        "order_confirmed": {"total"},
        "order_cancelled": {"reason"},
        "payment_requested": {*whose, "amount", "method"},
        "payment_received": {*whose, "amount"},
        "payment_failed": {*whose, "reason"},
        "shipment_prepared": {*whose, "carrier"},
        "shipment_dispatched": whose,
        "shipment_delivered": whose,
    }
    final = {(decider, event) for decider, _, event, _, closes in stored(store) if closes}
    assert final == {(known.decider, known.event) for known in SHOP if known.final}


def test_lives_are_interleaved_and_customers_come_back(dsn: str, store: EventStore) -> None:
    run(dsn, 1500, seed=3)
    events = stored(store)
    orders = [decider_id.split("-", 1)[1] for _, decider_id, _, _, _ in events]
    switches = sum(one != other for one, other in pairwise(orders))
    assert switches > len(orders) / 3  # an order begins with up to six events at once
    customers = [data["customer_id"] for _, _, event, data, _ in events if event == "order_placed"]
    assert len(set(customers)) < len(customers)
    assert all(re.fullmatch(r"customer-\d{3}", customer) for customer in customers)


def test_finished_lives_are_forgotten(dsn: str, store: EventStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.examples.shop.simulator.MOST_LIVES", 3)
    report = run(dsn, 1000, seed=4)
    over = sum(event in {"order_cancelled", "shipment_delivered"} for _, _, event, _, _ in stored(store))
    assert report.orders - 3 <= over <= report.orders


# Counts and ids --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("events", [1, 2, 7, 100])
def test_as_many_events_are_appended_as_were_asked_for(dsn: str, store: EventStore, events: int) -> None:
    assert run(dsn, events, seed=events).events == len(stored(store)) == events


def test_a_seed_repeats_the_lives_under_new_ids(dsn: str, store: EventStore) -> None:
    run(dsn, 300, seed=5)
    run(dsn, 300, seed=5)
    events = stored(store)
    strip = re.compile(r"-[0-9a-f]{12}-")
    first, second = ([strip.sub("-", repr(event)) for event in half] for half in (events[:300], events[300:]))
    assert first == second
    assert not {event[1] for event in events[:300]} & {event[1] for event in events[300:]}


def test_a_plan_depends_on_the_chance_alone() -> None:
    assert plan_life(random.Random(1), "n") == plan_life(random.Random(1), "n")
    assert plan_life(random.Random(1), "n") != plan_life(random.Random(2), "n")


def test_a_set_stop_ends_it_before_the_next_event(dsn: str) -> None:
    stop = threading.Event()
    stop.set()
    assert simulate(dsn, rate=1, stop=stop).events == 0


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
    # nobody really waits here and no time passes, so the debt only grows: the last wait is all of 40 events at 50 a
    # second
    assert waits[-1] == pytest.approx(0.8)
    assert waits == sorted(waits)


# Others ----------------------------------------------------------------------------------------------------


class Meddler(threading.Event):
    """Appends an event of its own to the newest open order before each of the simulator's."""

    def __init__(self, store: EventStore, event: str, data: dict[str, object], *, final: bool) -> None:
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
            self.store.append_event(self.event, uuid4(), "order", order, self.data, uuid4(), last, final=self.final)
            self.appended += 1
        return super().is_set()


def test_it_reads_again_and_goes_on_where_another_writer_was_first(dsn: str, store: EventStore) -> None:
    line: dict[str, object] = {"product": "whisk", "quantity": 1, "amount": 9.95}
    meddler = Meddler(store, "order_line_added", line, final=False)
    report = run(dsn, 200, seed=7, stop=meddler)
    assert report.conflicts > 0
    assert report.events == 200
    assert len(stored(store)) == 200 + meddler.appended


class Purger(Meddler):
    """Deletes what the other writer appended, too, after it is kept elsewhere."""

    def is_set(self) -> bool:
        stopped = super().is_set()
        self.store.sequence_events()
        for info in self.store.partition_info():
            ArchiveStore(self.store.connection).mark_archived(info.partition, info.high_water_mark)
            ArchiveStore(self.store.connection).raise_low_water_mark(info.partition, info.high_water_mark)
            ArchiveStore(self.store.connection).purge_events(info.partition)
        return stopped


def test_it_goes_on_where_the_last_event_of_a_stream_was_purged(dsn: str, store: EventStore) -> None:
    line: dict[str, object] = {"product": "whisk", "quantity": 1, "amount": 9.95}
    purger = Purger(store, "order_line_added", line, final=False)
    report = run(dsn, 30, seed=7, stop=purger)
    assert (report.events, stored(store)[1:]) == (30, [])
    assert report.conflicts > 0


def test_it_drops_a_life_whose_stream_another_writer_closed(dsn: str, store: EventStore) -> None:
    meddler = Meddler(store, "order_cancelled", {"reason": "called in"}, final=True)
    report = run(dsn, 200, seed=8, stop=meddler)
    assert report.events == 200
    assert len(stored(store)) == 200 + meddler.appended


def test_it_waits_for_a_database_that_restarts_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with tempfile.TemporaryDirectory(prefix="millrace-sim-") as directory, EmbeddedPostgres(Path(directory)) as server:
        server.create_database("shop")
        dsn = server.dsn("shop")
        migrate(dsn)
        stop = threading.Event()
        with ThreadPoolExecutor(1) as pool, caplog.at_level(logging.WARNING, "millrace.examples.shop.simulator"):
            running = pool.submit(lambda: simulate(dsn, rate=None, seed=9, stop=stop))
            try:
                wait_until(lambda: count(dsn) > 100)
                server.stop()
                wait_until(lambda: bool(caplog.records))
                server.start()
                before = count(dsn)
                wait_until(lambda: count(dsn) > before + 100)
            finally:
                stop.set()
            report = running.result()
        assert report.events == count(dsn)
        assert "Retrying" in caplog.text


def test_a_stop_ends_it_while_the_database_is_away(caplog: pytest.LogCaptureFixture) -> None:
    with tempfile.TemporaryDirectory(prefix="millrace-sim-") as directory, EmbeddedPostgres(Path(directory)) as server:
        server.create_database("shop")
        dsn = server.dsn("shop")
        migrate(dsn)
        stop = threading.Event()
        with ThreadPoolExecutor(1) as pool, caplog.at_level(logging.WARNING, "millrace.examples.shop.simulator"):
            running = pool.submit(lambda: simulate(dsn, rate=None, seed=10, stop=stop))
            try:
                wait_until(lambda: count(dsn) > 10)
                server.stop()
                wait_until(lambda: bool(caplog.records))
            finally:
                stop.set()
            assert running.result(patience()).events > 10


def test_a_database_that_never_answered_or_has_no_event_store_is_named(
    postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    with pytest.raises(Unreachable, match="does not answer"):
        run(f"postgresql://postgres@/none?host={tmp_path}", 1)
    with pytest.raises(SchemaMismatch, match="millrace migrate"):
        run(postgres.dsn("postgres"), 1)


# The command -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_the_command_ends_cleanly_on_a_signal(dsn: str, sent: signal.Signals) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, "simulate", "--rate", "200", "--dsn", dsn],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: count(dsn) > 20)
        child.send_signal(sent)
        output, _ = child.communicate(timeout=patience())
    finally:
        child.kill()
    assert child.returncode == 0
    assert output.startswith(f"Appended {count(dsn)} events of ")


def test_the_command_says_in_red_what_is_wrong_and_fails(tmp_path: Path) -> None:
    child = subprocess.run(
        [sys.executable, "-c", CHILD, "simulate", "--dsn", f"postgresql://postgres@/none?host={tmp_path}"],
        cwd=PROJECT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert child.returncode == 1
    assert child.stderr.startswith("The database does not answer.")
