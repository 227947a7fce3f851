"""Both simulators: they wait for a lost database, stop on signals, and name faults clearly."""

import logging
import signal
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psycopg
import pytest

from millrace.errors import SchemaMismatch, Unreachable
from millrace.examples.shop.customers import make_crm
from millrace.examples.shop.customers_simulator import simulate_crm
from millrace.examples.shop.simulator import simulate
from millrace.postgres.embedded import EmbeddedPostgres
from tests.support.capturing.sources import new_source
from tests.support.factories import away, start
from tests.support.patience import patience, wait_until
from tests.support.running.deployment import MILLRACE

__all__ = ["new_source"]

NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"


@dataclass(frozen=True)
class Simulator:
    """A simulator that writes into the test's database, with its command, its stop and its last output."""

    dsn: str
    counting: str
    run: Callable[..., int]
    command: tuple[str, ...]
    ended_by: signal.Signals
    said: str

    def done(self) -> int:
        with psycopg.connect(self.dsn) as connection:
            return int((connection.execute(self.counting.encode()).fetchone() or (0,))[0])

    @property
    def database(self) -> str:
        return str(psycopg.conninfo.conninfo_to_dict(self.dsn)["dbname"])


def events_of(dsn: str, **options: object) -> int:
    return simulate(dsn, **options).events  # type: ignore[arg-type]


@pytest.fixture(params=["shop", "customers"])
def simulator(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Simulator:
    if request.param == "shop":
        dsn = request.getfixturevalue("dsn")
        command: tuple[str, ...] = ("simulate", "--rate", "200", "--dsn", dsn)
        counting = "select count(*) from event_store.events"
        return Simulator(dsn, counting, partial(events_of, dsn), command, signal.SIGTERM, "Appended {} events of ")
    dsn = request.getfixturevalue("new_source")().dsn
    make_crm(dsn)
    monkeypatch.setenv("MILLRACE_CRM_DSN", dsn)
    counting = "select coalesce(max(customer_id), 0) from customers"
    command = ("simulate-crm", "--rate", "100")
    return Simulator(dsn, counting, partial(simulate_crm, dsn), command, signal.SIGINT, "Changed customers in ")


def test_it_waits_while_its_database_is_away(
    simulator: Simulator, postgres: EmbeddedPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    stop = threading.Event()
    stop.set()
    assert simulator.run(rate=1, stop=stop) == 0
    stop.clear()
    with caplog.at_level(logging.WARNING, "millrace.examples.shop"):
        running = start(lambda: simulator.run(rate=None, seed=9, stop=stop))
        try:
            wait_until(lambda: simulator.done() > 10, "it does something")
            with away(postgres, simulator.database):
                wait_until(lambda: bool(caplog.records), "it notices")
            before = simulator.done()
            wait_until(lambda: simulator.done() > before + 10, "it goes on")
            caplog.clear()
            with away(postgres, simulator.database):
                wait_until(lambda: bool(caplog.records), "it notices again")
                stop.set()
                done = running.result(patience())
        finally:
            stop.set()
    # some changes are of customers that were there before
    assert done == simulator.done() if "events" in simulator.counting else done > simulator.done()
    assert "Retrying" in caplog.text


def test_the_command_ends_cleanly_on_a_signal(simulator: Simulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_DECLARATIONS", "millrace.examples.shop")
    with subprocess.Popen([MILLRACE, "dev", *simulator.command], stdout=subprocess.PIPE, text=True) as child:
        try:
            wait_until(lambda: simulator.done() > 10, "it does something")
            child.send_signal(simulator.ended_by)
            output, _ = child.communicate(timeout=patience())
        finally:
            child.kill()
    assert child.returncode == 0
    assert output.startswith(simulator.said.format(simulator.done()))


def test_who_does_not_answer_is_named(
    postgres: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away, stop = f"postgresql://postgres@/none?host={tmp_path}", threading.Event()
    with pytest.raises(Unreachable, match="does not answer"):
        simulate(away, rate=None, events=1, stop=stop)
    with pytest.raises(SchemaMismatch, match="millrace migrate"):
        simulate(postgres.dsn("postgres"), rate=None, events=1, stop=stop)
    with pytest.raises(Unreachable, match="The customer database does not answer"):
        simulate_crm(away, rate=None, changes=1, stop=stop)
    monkeypatch.setenv("MILLRACE_DSN", NOWHERE)
    monkeypatch.setenv("MILLRACE_DECLARATIONS", "millrace.examples.shop")
    monkeypatch.delenv("MILLRACE_CRM_DSN", raising=False)
    for command, said in (("simulate", "The database does not answer."), ("simulate-crm", "Set MILLRACE_CRM_DSN")):
        child = subprocess.run([MILLRACE, "dev", command], capture_output=True, text=True, check=False)
        assert child.returncode == 1
        assert said in child.stderr
        assert "Traceback" not in child.stderr
