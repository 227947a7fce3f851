"""The helpers of all tests: stores without leftovers, CPU seconds of daemons, waits that grow with the load."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.event_store.platform import PlatformStore
from tests.support.cpu_seconds import Group, own_group
from tests.support.databases import Databases
from tests.support.factories import append, register_orders, set_clock, value
from tests.support.patience import patience, wait_until


def test_rows_are_gone_and_what_every_store_has_is_back(databases: Databases) -> None:
    left = databases.take()
    connection = databases.connect(left, autocommit=True)
    turns = value(connection, "select count(*) from event_store.append_turns")
    append(register_orders(PlatformStore(connection)))
    connection.execute("set session_replication_role = replica")
    set_clock(connection, "2030-01-01 00:00:00+00")
    connection.execute("truncate event_store.append_turns")
    databases.give_back(left)
    found = databases.take()
    connection = databases.connect(found, autocommit=True)
    assert found is left
    assert value(connection, "show event_store.clock") == ""
    assert value(connection, "select count(*) from event_store.append_turns") == turns > 0
    assert value(connection, "select count(*) from event_store.events") == 0
    assert append(register_orders(PlatformStore(connection))).offset == 1
    databases.give_back(found)


def test_a_store_with_more_than_other_rows_is_not_used_again(databases: Databases) -> None:
    left = databases.take()
    databases.connect(left, autocommit=True).execute("create table event_store.of_a_test ()")
    databases.give_back(left)
    found = databases.take()
    assert found.name != left.name
    databases.give_back(found)


USES_CPU = """
import subprocess, sys, time
if "daemon" not in sys.argv:
    sys.stdin.read()
    subprocess.Popen([sys.executable, "-c", sys.argv[1], "-", "daemon"], start_new_session=True)
while time.process_time() < 0.5:
    pass
"""


def test_cpu_seconds_of_what_a_process_leaves_running_are_counted() -> None:
    home = own_group()
    if home is None or not os.access(home, os.W_OK):
        pytest.skip("nothing is counted here: it takes a cgroup2 that can be written")
    group = Group(home, "counted")
    with subprocess.Popen([sys.executable, "-c", USES_CPU, USES_CPU], stdin=subprocess.PIPE) as process:
        group.take(process.pid)
    wait_until(lambda: group.seconds() > 0.95, "both have used half a second")
    group.remove()
    assert not list(Path(home).glob("counted-*"))


def test_a_wait_is_as_long_as_the_machine_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (0.1, 9.0, 9.0))
    quiet = patience()
    monkeypatch.setattr(os, "getloadavg", lambda: (5.0 * (os.cpu_count() or 1), 0.0, 0.0))
    assert patience() == 5 * quiet
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    assert patience() == 5 * quiet
    monkeypatch.setattr("tests.support.patience._longest", {})
    monkeypatch.setattr("tests.support.patience._QUIET_S", 0.05)
    with pytest.raises(AssertionError, match="never happened: the moon"):
        wait_until(lambda: False, "the moon")
