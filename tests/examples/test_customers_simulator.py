"""The simulated customer database: bounded, repeatable, patient; and where it is."""

import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from millrace.examples.shop import customers_simulator as crm_simulator
from millrace.examples.shop.customers import crm_dsn, make_crm
from millrace.examples.shop.customers_simulator import MOST_CUSTOMERS, simulate_crm
from millrace.resources.errors import Unreachable
from millrace.resources.postgres.embedded import EmbeddedPostgres
from millrace.resources.settings import PROJECT
from tests.examples.away import away
from tests.support.capturing.sources import Source, new_source
from tests.support.factories import start
from tests.support.patience import patience, wait_until

__all__ = ["new_source"]

CHILD = "from millrace.platform_defs.cli import main; main()"


@pytest.fixture
def crm(new_source: Callable[[], Source]) -> Source:
    return new_source()


def run(dsn: str, changes: int, seed: int | None = 1) -> int:
    return simulate_crm(dsn, rate=None, changes=changes, seed=seed, stop=threading.Event())


def customers(dsn: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(
            "select customer_id, name, email, city, newsletter from customers order by customer_id"
        ).fetchall()


def test_rows_come_change_and_go_as_often_as_was_asked_for(crm: Source) -> None:
    make_crm(crm.dsn)
    crm.listen()
    assert run(crm.dsn, 200) == 200
    done = [type(message).__name__ for message in crm.messages()]
    assert done.count("Commit") == 200
    assert min(done.count(kind) for kind in ("Insert", "Update", "Delete")) > 10
    # some transactions update a row twice
    assert done.count("Insert") + done.count("Update") + done.count("Delete") > 200


def test_a_seed_repeats_the_course_on_an_empty_table(new_source: Callable[[], Source]) -> None:
    first, second, other = new_source().dsn, new_source().dsn, new_source().dsn
    for dsn, seed in ((first, 1), (second, 1), (other, 2)):
        run(dsn, 150, seed)
    assert customers(first) == customers(second) != customers(other)


def test_there_are_never_more_customers_than_a_bound(crm: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crm_simulator, "MOST_CUSTOMERS", 5)
    run(crm.dsn, 300)
    assert 0 < len(customers(crm.dsn)) <= 5
    assert MOST_CUSTOMERS <= 1000


def test_a_table_that_is_there_is_gone_on_with(crm: Source) -> None:
    run(crm.dsn, 10)
    crm.run("alter table customers add column note text")
    assert run(crm.dsn, 10) == 10
    assert crm.connection.execute("select relreplident::text from pg_class where relname = 'customers'").fetchone() == (
        "f",
    )


def test_a_set_stop_ends_it_before_the_next_change(crm: Source) -> None:
    stop = threading.Event()
    stop.set()
    assert simulate_crm(crm.dsn, rate=1, stop=stop) == 0


def test_it_waits_for_a_database_that_is_away_and_says_so(
    crm: Source, postgres: EmbeddedPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    stop, name = threading.Event(), str(conninfo_to_dict(crm.dsn)["dbname"])
    with caplog.at_level(logging.WARNING, "millrace.examples.shop.customers_simulator"):
        running = start(lambda: simulate_crm(crm.dsn, rate=None, seed=3, stop=stop))
        try:
            wait_until(lambda: changed(crm.dsn) > 5, "it changes something")
            with away(postgres, name):
                wait_until(lambda: bool(caplog.records), "it notices")
            before = changed(crm.dsn)
            wait_until(lambda: changed(crm.dsn) > before + 5, "it goes on")
        finally:
            stop.set()
        assert running.result(patience()) > 10
    assert "Retrying" in caplog.text


def changed(dsn: str) -> int:
    """How many customers there ever were."""
    with psycopg.connect(dsn) as connection:
        if connection.execute("select to_regclass('customers') is not null").fetchone() == (False,):
            return 0
        return int((connection.execute("select coalesce(max(customer_id), 0) from customers").fetchone() or (0,))[0])


def test_the_command_ends_cleanly_on_a_signal(crm: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_CRM_DSN", crm.dsn)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, "simulate-crm", "--rate", "100"], cwd=PROJECT, stdout=subprocess.PIPE, text=True
    )
    try:
        wait_until(lambda: changed(crm.dsn) > 3, "it changes something")
        child.send_signal(signal.SIGINT)
        output, _ = child.communicate(timeout=patience())
    finally:
        child.kill()
    assert child.returncode == 0
    assert output.startswith("Changed customers in ")


def test_the_command_says_what_is_wrong_and_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_DSN", "postgresql://nobody@127.0.0.1:1/nothing")
    monkeypatch.setenv("MILLRACE_DECLARATIONS", "millrace.examples.shop")
    monkeypatch.delenv("MILLRACE_CRM_DSN", raising=False)
    child = subprocess.run(
        [sys.executable, "-c", CHILD, "simulate-crm"], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert child.returncode == 1
    assert "Set MILLRACE_CRM_DSN" in child.stderr
    assert "Traceback" not in child.stderr


def test_a_database_that_never_answered_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="The customer database does not answer"):
        run(f"postgresql://postgres@/none?host={tmp_path}", 1)


def test_the_customer_database_is_the_one_that_is_set_or_the_one_beside_the_embedded_store(
    postgres: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MILLRACE_DSN", raising=False)
    monkeypatch.delenv("MILLRACE_CRM_DSN", raising=False)
    monkeypatch.setenv("MILLRACE_HOME", str(tmp_path))
    with pytest.raises(Unreachable, match=r"(?s)no customer database.*MILLRACE_CRM_DSN"):
        crm_dsn()
    (tmp_path / "postgres").symlink_to(postgres.directory)
    assert crm_dsn().startswith("postgresql://owner_of_crm@/crm?host=")
    monkeypatch.setenv("MILLRACE_CRM_DSN", "postgresql://somewhere/else")
    assert crm_dsn() == "postgresql://somewhere/else"
