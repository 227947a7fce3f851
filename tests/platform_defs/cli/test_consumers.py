"""`millrace run handlers` as a process: its output, and the state after a kill and after a stop."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millrace.errors import MillraceError
from millrace.event_store.platform import PlatformStore
from millrace.platform_defs.cli.run import subscriptions_of
from tests.support.customers import SECRET, People, moved, people
from tests.support.factories import Connect, register_orders, rows, value
from tests.support.patience import patience, wait_until
from tests.support.running.ending import ending_with_us
from tests.support.views.consuming import fill, owed, wait_locked, wait_waking

__all__ = ["people"]

MODULE = """
import os
import psycopg
from millrace import Delivery, subscription


@subscription(view="mails", start="-infinity", concurrency=8, lock_timeout_s=1, max_attempts=100)
def send(event: Delivery) -> None:
    with psycopg.connect(os.environ["MILLRACE_DSN"], autocommit=True) as connection:
        connection.execute("insert into sent (decider_id, version) values (%s, %s)", (event.decider_id, event.version))
        connection.execute("select pg_advisory_xact_lock_shared(1)")


@subscription(view="nothing", deciders=["nobody"])
def ignore(event: Delivery) -> None: ...


@subscription(view="personal", deciders=["customer"], start="-infinity")
def personal(event: Delivery, connection: psycopg.Connection) -> None:
    if event.version == 2:
        raise ValueError(event.data["email"])
    connection.execute("insert into sent (decider_id) values (%s)", (event.data["email"],))


other = 1
"""


@pytest.fixture
def orders(store: PlatformStore) -> PlatformStore:
    store.connection.execute("create table sent (n bigint generated always as identity, decider_id text, version int)")
    return register_orders(store)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop_mails.py").write_text(MODULE)
    return tmp_path


@contextmanager
def process(folder: Path, dsn: str, place: str = "shop_mails:send") -> Iterator["subprocess.Popen[str]"]:
    command: list[str | Path] = [Path(sys.executable).parent / "millrace", "run", "handlers", place]
    with (folder / "log").open("w") as log:
        running = subprocess.Popen(
            ending_with_us(command), cwd=folder, env={**os.environ, "MILLRACE_DSN": dsn}, stderr=log, text=True
        )
        try:
            yield running
        finally:
            running.kill()
            running.wait(patience())


@contextmanager
def held(connect: Connect) -> Iterator[Callable[[int], None]]:
    """Block every handler meanwhile; yield a function that waits until a number of handlers are at work."""
    with connect(autocommit=False) as holder:
        holder.execute("select pg_advisory_xact_lock(1)")
        observer = connect()

        def wait_working(number: int) -> None:
            waiting = "select count(*) from pg_locks where locktype = 'advisory' and not granted and database ="
            query = f"{waiting} (select oid from pg_database where datname = current_database())"
            wait_until(lambda: value(observer, query) == number, f"{number} handlers at work")

        yield wait_working


def said(folder: Path) -> str:
    return (folder / "log").read_text()


def sent(store: PlatformStore) -> dict[str, list[int]]:
    return dict(rows(store.connection, "select decider_id, array_agg(version order by n) from sent group by 1"))


def test_a_kill_with_handlers_at_work_loses_none(
    orders: PlatformStore, dsn: str, folder: Path, connect: Connect
) -> None:
    fill(orders, 20, 3)
    with held(connect) as wait_working, process(folder, dsn) as killed:
        wait_working(8)
        killed.kill()
        killed.wait(patience())
    begun = value(orders.connection, "select count(*) from sent")
    assert begun == 8
    with process(folder, dsn):
        wait_waking(orders, lambda: owed(orders, "mails") == 0, "all is consumed")
        wait_locked(orders, "mails", 0)
    streams = sent(orders)
    assert len(streams) == 20
    assert all(versions == sorted(versions) and set(versions) == {1, 2, 3} for versions in streams.values())
    assert sum(map(len, streams.values())) == 60 + begun
    assert orders.dead_letters("mails") == []


def test_a_stop_handles_no_event_twice(orders: PlatformStore, dsn: str, folder: Path, connect: Connect) -> None:
    fill(orders, 20, 3)
    with process(folder, dsn) as stopped:
        with held(connect) as wait_working:
            wait_working(8)
            stopped.send_signal(signal.SIGTERM)
            wait_until(lambda: "draining view=mails running=8" in said(folder), "it drains")
            assert stopped.poll() is None
        assert stopped.wait(patience()) == 0
    assert rows(orders.connection, "select from event_store.stream_locks where in_flight is not null") == []
    assert "ended view=mails" in said(folder)
    assert "failed=0" in said(folder)
    before = value(orders.connection, "select count(*) from sent")
    with process(folder, dsn):
        wait_until(lambda: owed(orders, "mails") == 0, "all is consumed")
    assert 8 <= before < 60
    assert all(versions == [1, 2, 3] for versions in sent(orders).values())


def test_with_the_keys_values_are_opened_and_never_logged(
    orders: PlatformStore, people: People, dsn: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_KEYS", str(people.folder))
    people.client().append("customer", "a", moved(), moved())
    with process(folder, dsn, "shop_mails:personal"):
        wait_until(lambda: "handler failed" in said(folder), "the second event has failed")
    assert rows(orders.connection, "select decider_id from sent") == [(SECRET,)]
    assert 'error="ValueError (shop_mails.personal, line 21)"' in said(folder)
    assert SECRET not in said(folder)


def test_a_module_or_one_of_its_subscriptions_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder)
    assert [each.view for each in subscriptions_of("shop_mails")] == ["mails", "nothing", "personal"]
    assert [each.view for each in subscriptions_of("shop_mails:ignore")] == ["nothing"]
    (folder / "shop_room").mkdir()
    (folder / "shop_room" / "first.py").write_text("from shop_mails import ignore, send")
    (folder / "shop_room" / "second.py").write_text("from shop_mails import ignore")
    assert [each.view for each in subscriptions_of("shop_room")] == ["nothing", "mails"]
    (folder / "shop_empty.py").write_text("x = 1")
    (folder / "shop_broken.py").write_text("import no_such_module_at_all")
    for place, text in (
        ("shop_mails:other", "shop_mails:other is no subscription"),
        ("shop_mails:missing", "is no subscription"),
        ("shop_empty", "has no subscriptions"),
        ("shop_broken", "No module named 'no_such_module_at_all'"),
        ("shop_absent", "No module named 'shop_absent'"),
    ):
        with pytest.raises(MillraceError, match=text):
            subscriptions_of(place)


def test_a_declaration_that_cannot_work_is_one_red_text(folder: Path, dsn: str) -> None:
    (folder / "shop_wrong.py").write_text(
        "from millrace import subscription\n@subscription(view='v', concurrency=0)\ndef f(event): ...\n"
    )
    with process(folder, dsn, "shop_wrong") as running:
        assert running.wait(patience()) == 1
    assert "concurrency is from 1 to 256" in said(folder)
    assert "Traceback" not in said(folder)
