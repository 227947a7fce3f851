"""Requests to stop, and suspended server processes."""

import os
import sys
import threading
from signal import SIGCONT, SIGINT, SIGSTOP, SIGTERM, Signals
from subprocess import DEVNULL, PIPE, Popen

import psutil
import psycopg
import pytest

from millrace.event_store.platform import PlatformStore
from millrace.postgres import connecting
from millrace.processes import wait_ended
from millrace.sequencer import run_sequencer
from tests.conftest import in_memory
from tests.support.factories import append, register_orders, start, value
from tests.support.patience import patience, wait_until
from tests.support.running.own_server import own_server

# a command that is asked to stop, but does not end
STUBBORN = """
import signal
from millrace.platform_defs.cli.signals import stop_on_signals
with stop_on_signals() as stop:
    print("runs", flush=True)
    stop.wait()
    print("told", flush=True)
    signal.pause()
"""
SPARK = "from millrace.spark import spark_session; spark_session().__enter__()"
SEQUENCED = "select count(*) from event_store.event_log"


@pytest.mark.parametrize("second", [SIGINT, SIGTERM])
def test_a_second_request_to_stop_ends_a_command_at_once(second: Signals) -> None:
    with Popen([sys.executable, "-c", STUBBORN], stdout=PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "runs\n"
            process.send_signal(SIGTERM)
            assert process.stdout.readline() == "told\n"
            process.send_signal(second)
            assert process.wait(patience()) == -second
        finally:
            process.kill()


def test_ctrl_c_while_spark_begins_leaves_no_jvm() -> None:
    # a new Spark, not the one that PySpark has noted for other tests
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    with Popen([sys.executable, "-c", SPARK], stderr=DEVNULL, env=environment) as process:
        launched: list[psutil.Process] = []

        def launches() -> bool:
            assert process.poll() is None
            launched[:] = [each for each in psutil.Process(process.pid).children() if runs_spark(each)]
            return bool(launched)

        wait_until(launches, "a JVM begins, long before it answers")
        process.send_signal(SIGINT)
        process.wait(patience())
        assert wait_ended(launched, patience()) == []


def runs_spark(process: psutil.Process) -> bool:
    try:
        return "org.apache.spark.deploy.SparkSubmit" in process.cmdline()
    except psutil.NoSuchProcess:  # a short-lived process, such as a query of the Java version
        return False


def test_a_sequencer_goes_on_past_stopped_servers(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "ANSWER_S", 1)
    monkeypatch.setattr("millrace.event_store.wake_ups.ASK_S", 1)
    with own_server("own", programs=pytestconfig.getoption("postgres"), home=in_memory()) as server:
        stop = threading.Event()
        with psycopg.connect(server.dsn("own"), autocommit=True) as connection:
            store = register_orders(PlatformStore(connection))
            append(store, "a")
            running = start(lambda: run_sequencer(server.dsn("own"), stop, pause_s=0.2))
            stopped: list[int] = []

            def stand_still() -> bool:
                stopped[:] = stood_still(connection)
                return bool(stopped)

            try:
                wait_until(lambda: value(connection, SEQUENCED) == 1, "it sequences")
                wait_until(stand_still, "they stand still")
                append(store, "b")
                wait_until(lambda: value(connection, SEQUENCED) == 2, "it sequences with other ones")
            finally:
                for pid in stopped:
                    os.kill(pid, SIGCONT)
                stop.set()
            running.result(patience())


def stood_still(connection: psycopg.Connection) -> list[int]:
    """Suspend the other sessions' processes while all are idle; a working one may hold a lock that all need."""
    others = "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    pids = [pid for (pid,) in connection.execute(f"select pid {others}".encode())]
    for pid in pids:
        os.kill(pid, SIGSTOP)
    if value(connection, f"select count(*) {others} and state <> 'idle'") == 0:
        return pids
    for pid in pids:
        os.kill(pid, SIGCONT)
    return []
