"""From a dead letter to its message and the one at its end, while a process is killed, hangs or is away."""

import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from millrace.event_store import Event
from millrace.event_store.platform import PlatformStore
from millrace.operations.alerts.alerter import Alerter, connected, run_alerter
from millrace.operations.alerts.findings import Finding
from millrace.operations.alerts.receiver import AlertReceiver
from millrace.operations.alerts.store import AlertStore, Incident
from millrace.platform_defs.beside_store import DagsterSource, ServicesSource
from millrace.platform_defs.local.supervisor import Service, Supervisor
from millrace.postgres.embedded import EmbeddedPostgres
from tests.operations.alerts.hook import STUCK, Alert, Hook, environment, sequencing, settings_for
from tests.support.factories import Connect, append_to, away, pump, rows, start, value
from tests.support.logins import logins
from tests.support.patience import patience, wait_until
from tests.support.project import PROJECT

TOLD = [("began", "mails")]
ENDED = [("over", "mails")]
DUE = "update event_store.incidents set due_at = clock_timestamp(), confirmed = true"


class Elsewhere:
    """A source whose findings the test sets; an error for one that cannot be read."""

    name = "elsewhere"

    def __init__(self, *subjects: str) -> None:
        self.says: list[Finding] | Exception = [wrong(each) for each in subjects]

    def found(self) -> list[Finding]:
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


def wrong(subject: str) -> Finding:
    return Finding("sensor", "dagster", subject, None, "ticket", f"{subject} fails", "no such table", "look")


def park(store: PlatformStore, decider_id: str = "o-1") -> None:
    """Make a stream of `mails` a dead letter."""
    append_to(store, decider_id)
    pump(store, "mails")
    delivered: list[Event] = []

    def is_delivered() -> bool:
        delivered.extend(store.stream_events("mails", 1))
        return bool(delivered)

    # a concurrent sequencer may be about to dispatch it
    wait_until(is_delivered, f"{decider_id} is delivered")
    store.fail_event("mails", delivered[0].decider_id, delivered[0].offset, "no such address")


def repair(store: PlatformStore) -> None:
    """Retry all dead letters of `mails` with success."""
    store.retry_dead_letters("mails", reason="mended")
    for event in store.stream_events("mails", 10):
        store.ack_event("mails", event.decider_id, event.offset)


def opened(store: PlatformStore) -> dict[str, Incident]:
    return {each.kind: each for each in AlertStore(store.connection).open_incidents()}


@contextmanager
def alerting(dsn: str, hook: Hook) -> Iterator[None]:
    stop = threading.Event()
    running = start(lambda: run_alerter(dsn, stop, settings_for(hook), every_s=0.02, hold_s=0))
    try:
        yield
    finally:
        stop.set()
        assert running.result(patience()) is None


@contextmanager
def ticking(dsn: str, hook: Hook, *sources: Elsewhere | DagsterSource | ServicesSource) -> Iterator[Alerter]:
    with connected(dsn) as connection, AlertReceiver(settings_for(hook)) as receiver:
        yield Alerter(connection, receiver, sources, hold_s=0)


def looks(connection: psycopg.Connection) -> Callable[[], bool]:
    """Return a function that returns whether an alerter has looked twice since now; the first look may be older."""
    asked = "select asked_at from event_store.alert_sources where source = 'event_store'"
    seen = {*rows(connection, asked)}

    def look() -> bool:
        seen.update(rows(connection, asked))
        return len(seen) > 2

    return look


def is_sequenced(store: PlatformStore) -> Callable[[], bool]:
    """Append an event; return a function that returns whether all events have a position."""
    append_to(store, "o-9")
    count = value(store.connection, "select count(*) from event_store.events")
    return lambda: value(store.connection, "select count(*) from event_store.event_log") == count


def test_a_sequencer_tells_of_a_dead_letter_once_and_when_it_is_over(
    mails: PlatformStore, dsn: str, hook: Hook
) -> None:
    park(mails)
    with sequencing(environment(dsn, hook.url)) as process:
        assert hook.until(1) == TOLD
        first = hook.alerts[0].body["data"]
        assert "order o-1 was given up after attempt 1: no such address" in first["cause"]
        assert "millrace dead list mails --show" in first["remedy"]
        park(mails, "o-2")
        wait_until(looks(mails.connection), "it looked again")
        repair(mails)
        assert hook.until(2) == TOLD + ENDED
        process.terminate()
        assert process.wait(patience()) == 0
        assert process.stdout is not None
        said = process.stdout.read()
    assert "hidden" not in said
    assert "c2VjcmV0" not in said
    assert f"alerts go to http://127.0.0.1:{hook.server_address[1]} (standard, signed)" in said
    # a restart repeats nothing
    with sequencing(environment(dsn, hook.url)):
        wait_until(looks(mails.connection), "it looked")
    assert hook.told() == TOLD + ENDED
    assert len({alert.webhook_id for alert in hook.alerts}) == 2


def test_who_is_killed_leaves_the_message_to_the_next_one(mails: PlatformStore, dsn: str, hook: Hook) -> None:
    park(mails)
    with sequencing(environment(dsn, hook.url), STUCK) as process:
        assert process.stdout is not None
        assert any("CLAIMED" in line for line in process.stdout)
        process.kill()
        process.wait()
    assert hook.alerts == []
    # as if half a minute had passed
    mails.connection.execute(DUE)
    asked, over = threading.Event(), threading.Event()

    def hang(_: Alert) -> int:
        asked.set()
        over.wait(patience())
        return 204

    hook.answer = hang
    with sequencing(environment(dsn, hook.url)) as process:
        assert asked.wait(patience())
        # the receiver has the message but does not answer; the sequencer does not wait for it
        wait_until(is_sequenced(mails), "it is sequenced")
        process.kill()
        process.wait()
    hook.answer = lambda _: 204
    over.set()
    mails.connection.execute(DUE)
    with sequencing(environment(dsn, hook.url)):
        assert hook.until(2) == TOLD + TOLD
        wait_until(lambda: opened(mails)["dead_letters"].told == "began", "it arrived")
        wait_until(looks(mails.connection), "it looked again")
    assert hook.told() == TOLD + TOLD
    assert hook.alerts[0].webhook_id == hook.alerts[1].webhook_id
    assert hook.alerts[0].text == hook.alerts[1].text


def test_a_dagster_that_hangs_holds_nothing_up(mails: PlatformStore, dsn: str, hook: Hook, tmp_path: Path) -> None:
    shutil.copy(PROJECT / "platform_defs" / "dagster.yaml", tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        storage = f"postgresql://d@127.0.0.1:{silent.getsockname()[1]}/d"
        environ = environment(dsn, hook.url, DAGSTER_HOME=str(tmp_path), MILLRACE_DAGSTER_DSN=storage)
        with sequencing(environ) as process:
            asked, _ = silent.accept()
            park(mails)
            assert hook.until(1) == TOLD
            wait_until(is_sequenced(mails), "it goes on")
            assert opened(mails)["unreadable"].subject == "dagster"
            process.terminate()
            assert process.wait(patience()) == 0
        asked.close()


def test_a_service_that_is_not_up_is_an_incident(mails: PlatformStore, dsn: str, hook: Hook, tmp_path: Path) -> None:
    environ = environment(dsn, hook.url, MILLRACE_HOME=str(tmp_path))
    supervisor = Supervisor(tmp_path, [Service("spark", ["false"], environ, lambda: False)])
    with ticking(dsn, hook, ServicesSource(tmp_path)) as alerter:

        def cause() -> str:
            supervisor.poll()
            alerter.tick()
            return opened(mails)["service"].cause

        try:
            supervisor.start()
            alerter.tick()
            wait_until(lambda: "It ended with exit code 1. Its log:" in cause(), "it is an incident with its cause")
        finally:
            supervisor.stop()
        alerter.tick()
        assert opened(mails) == {}


def test_bad_settings_are_said_and_the_log_goes_on(mails: PlatformStore, dsn: str, hook: Hook) -> None:
    said = "No alerts are sent. MILLRACE_ALERT_SECRET does not begin with whsec_"
    with sequencing(environment(dsn, hook.url, MILLRACE_ALERT_SECRET="hunter2")) as process:
        wait_until(is_sequenced(mails), "it is sequenced")
        process.terminate()
        assert process.stdout is not None
        lines = process.stdout.read()
    assert said in lines
    assert "hunter2" not in lines
    assert hook.alerts == []


def test_several_at_once_tell_once(mails: PlatformStore, dsn: str, hook: Hook) -> None:
    with alerting(dsn, hook), alerting(dsn, hook), alerting(dsn, hook):
        for number in range(5):
            park(mails)
            hook.until(2 * number + 1)
            repair(mails)
            hook.until(2 * number + 2)
    assert hook.told() == (TOLD + ENDED) * 5
    assert len({alert.webhook_id for alert in hook.alerts}) == 10


def test_what_did_not_arrive_comes_again(
    mails: PlatformStore, dsn: str, hook: Hook, caplog: pytest.LogCaptureFixture
) -> None:
    answers = iter([500, 302, 404])
    hook.answer = lambda alert: next(answers, 204) if "poison" in alert.text else 204
    with ticking(dsn, hook, Elsewhere("poison")) as alerter:
        alerter.tick()
        park(mails)
        alerter.tick()
        assert hook.told() == [("began", "poison"), *TOLD]
        assert opened(mails)["sensor"].last_error
        for _ in range(3):
            mails.connection.execute(DUE)
            alerter.tick()
        alerter.tick()
    assert hook.told() == [("began", "poison"), *TOLD, *[("began", "poison")] * 3]
    assert len({alert.webhook_id for alert in hook.alerts}) == 2
    assert caplog.text.count("did not arrive") == 3
    assert "HTTP 404 Not Found" in caplog.text
    assert "hidden" not in caplog.text


def test_a_source_that_cannot_be_read_ends_nothing_and_is_told_itself(
    mails: PlatformStore, dsn: str, hook: Hook
) -> None:
    source = Elsewhere("poll_orders")
    park(mails)
    with ticking(dsn, hook, source) as alerter:
        alerter.tick()
        assert sorted(hook.told()) == [*TOLD, ("began", "poll_orders")]
        source.says = KeyError("its storage is gone")
        for _ in range(3):
            alerter.tick()
        # the source must be unreadable for two minutes
        assert len(hook.alerts) == 2
        mails.connection.execute(DUE)
        alerter.tick()
        assert hook.until(3)[2] == ("began", "elsewhere")
        assert hook.alerts[2].body["data"]["cause"] == "KeyError: 'its storage is gone'"
        source.says = []
        alerter.tick()
        assert sorted(hook.until(5)[3:]) == [("over", "elsewhere"), ("over", "poll_orders")]


def test_a_locked_store_is_none_without_incidents(mails: PlatformStore, connect: Connect, dsn: str, hook: Hook) -> None:
    park(mails)
    with connected(dsn) as connection, AlertReceiver(settings_for(hook)) as receiver:
        alerter = Alerter(connection, receiver, hold_s=0)
        alerter.tick()
        assert hook.until(1) == TOLD
        connection.execute("set lock_timeout = '50ms'")
        holder = connect(autocommit=False)
        holder.execute("lock table event_store.stream_locks in access exclusive mode")
        for _ in range(2):
            alerter.tick()
    assert {kind: each.missing_since for kind, each in opened(mails).items()} == {
        "dead_letters": None,
        "unreadable": None,
    }
    assert len(hook.alerts) == 1


def test_it_goes_on_after_the_database_was_away(
    mails: PlatformStore, dsn: str, postgres: EmbeddedPostgres, hook: Hook, caplog: pytest.LogCaptureFixture
) -> None:
    park(mails)
    with alerting(dsn, hook):
        hook.until(1)
        noted = "select bool_and(told = 'began') from event_store.incidents"
        wait_until(lambda: value(mails.connection, noted), "it is noted")
        with away(postgres, mails.connection.info.dbname):
            wait_until(lambda: "Alerts wait: " in caplog.text, "it noticed")
        with psycopg.connect(dsn, autocommit=True) as connection:
            repair(PlatformStore(connection))
            assert hook.until(2) == TOLD + ENDED


def test_who_may_not_is_told_who_may(
    mails: PlatformStore, dsn: str, hook: Hook, caplog: pytest.LogCaptureFixture
) -> None:
    with logins(mails.connection) as login:
        reader = login("event_store_reader")
        with alerting(f"{dsn}&user={reader.info.user}", hook):
            wait_until(lambda: "a member of event_store_owner" in caplog.text, "it is said")
    # logged once for all attempts
    assert caplog.text.count("Alerts wait: ") == 1


def test_nothing_is_open_in_the_store_while_a_receiver_is_asked(mails: PlatformStore, dsn: str, hook: Hook) -> None:
    park(mails)
    states: list[tuple[object, ...]] = []
    sessions = (
        "select state, xact_start from pg_stat_activity where datname = current_database() and application_name = %s"
    )

    def look(_: Alert) -> int:
        states.extend(rows(mails.connection, sessions, "millrace alerts"))
        return 204

    hook.answer = look
    with ticking(dsn, hook) as alerter:
        alerter.tick()
    assert states == [("idle", None)]
