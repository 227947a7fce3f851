"""A process whose handlers, sequencer and server are killed ends as a run without kills does: every effect once."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest

from millrace.commands.processes import Process
from millrace.event_store import NewEvent, StreamEvents, on
from millrace.event_store.platform import PlatformStore
from millrace.testing import given
from tests.conftest import in_memory
from tests.processes.commands.deliveries import SOON, Delivery
from tests.support.factories import assert_log_holds_every_event_once, value
from tests.support.patience import patience, wait_until
from tests.support.project import PROJECT
from tests.support.running.own_server import own_server
from tests.support.views.consuming import owed

ORDERS = 8  # before each kill
COMMANDS = {"handlers": ("run", "handlers", "tests.processes.commands.deliveries"), "sequencer": ("run", "sequencer")}


def orders(first: int) -> list[StreamEvents]:
    """Return orders; every second one is paid."""
    numbers = range(first, first + ORDERS)
    placed = [on("order", f"o-{n}", NewEvent("placed", {"n": n, "pays": n % 2 == 0})) for n in numbers]
    return placed + [on("payment", f"p-{n}", NewEvent("taken", {"order": f"o-{n}"})) for n in numbers if n % 2 == 0]


@contextmanager
def running(dsn: str, **environment: str) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Run handlers and a sequencer; at the end ask them to stop."""
    programs: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name in COMMANDS:
            programs[name] = begun(name, dsn, environment)
        yield programs
    finally:
        for program in programs.values():
            program.terminate()
        for program in programs.values():
            program.wait(patience())


def begun(name: str, dsn: str, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    command = [f"{Path(sys.executable).parent}/millrace", *COMMANDS[name]]
    return subprocess.Popen(command, cwd=PROJECT, env={**os.environ, "MILLRACE_DSN": dsn, **environment})


def registered(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        store = PlatformStore(connection)
        for decider, names in {
            "order": ["placed"],
            "payment": ["taken"],
            "ledger": ["booked", "counted"],
            "stock": ["booked", "counted"],
        }.items():
            for name in names:
                store.register_decider_event(decider, name, "")


def stored(store: PlatformStore) -> int:
    return int(value(store.connection, "select count(*) from event_store.events"))


def reached(store: PlatformStore, goal: int) -> bool:
    return stored(store) >= goal


def ended(store: PlatformStore) -> int:
    return int(value(store.connection, "select count(*) from event_store.events where data ->> 'ended' = 'true'"))


def outcome(dsn: str) -> dict[tuple[str, str], list[Any]]:
    """Return each stream's events without their ids; of streams that instances share, in no order."""
    found: dict[tuple[str, str], list[Any]] = {}
    with psycopg.connect(dsn, autocommit=True) as connection:
        for decider, stream, event, data in connection.execute(
            'select decider, decider_id, event, data from event_store.events order by "offset"'
        ):
            if event == "step":
                data["heard"] = data["heard"].split()[0]
            found.setdefault((decider, stream), []).append((event, data))
    return {key: sorted(events, key=repr) if key[0] in {"ledger", "stock"} else events for key, events in found.items()}


@pytest.mark.timeout(3600)
def test_after_kills_of_all_every_effect_is_there_once(pytestconfig: pytest.Config) -> None:
    kills = 3 * max(1, pytestconfig.getoption("kills") // 40)
    dice = random.Random(7)
    victims = ["handlers", "sequencer", "server"] * (kills // 3)
    dice.shuffle(victims)
    programs = pytestconfig.getoption("postgres")
    with own_server("killed", "clean", programs=programs, home=in_memory()) as server:
        dsn, clean = server.dsn("killed"), server.dsn("clean")
        registered(dsn)
        registered(clean)
        with running(dsn) as alive:
            for number, victim in enumerate(victims):
                with psycopg.connect(dsn, autocommit=True) as connection:
                    store = PlatformStore(connection)
                    store.append_all(orders(number * ORDERS))
                    goal = stored(store) + dice.randrange(5, 6 * ORDERS)
                    wait_until(partial(reached, store, goal), "work began")
                if victim == "server":
                    os.kill(cast("int", server.pid()), signal.SIGKILL)
                    server.start()
                else:
                    alive[victim].kill()
                    alive[victim].wait(patience())
                    alive[victim] = begun(victim, dsn, {})
            placed = len(victims) * ORDERS
            with psycopg.connect(dsn, autocommit=True) as connection:
                store = PlatformStore(connection)
                wait_until(lambda: ended(store) == placed, "all instances ended")
                wait_until(lambda: owed(store, "delivery") == 0, "all is heard")
        with psycopg.connect(dsn, autocommit=True) as connection:
            store = PlatformStore(connection)
            killed = outcome(dsn)
            done = {each.outcome for each in store.scheduled_events()}
            assert (store.dead_letters("delivery"), done) == ([], set())
            alone = replace(cast("Process", Delivery), concurrency=1)
            shop = given(*(each for number in range(len(victims)) for each in orders(number * ORDERS)), dsn=clean)
            with psycopg.connect(clean, autocommit=True) as other:
                while ended(PlatformStore(other)) < placed:
                    shop.when(alone)
                    shop.later(SOON)
            assert killed == outcome(clean)
            # the next version of the code hears everything again, and does nothing
            store.seek_view("delivery", "RESET_TO_EARLIEST")
            assert owed(store, "delivery") > 0
            with running(dsn, EXTRA="1"):
                wait_until(lambda: owed(store, "delivery") == 0, "all was heard again")
            assert outcome(dsn) == killed
            assert_log_holds_every_event_once(connection)
