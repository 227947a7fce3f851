"""From a dead letter to the message, and to the one when it is over; whoever is killed, hangs or is away meanwhile."""

import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from millrace.platform_defs.local.supervisor import Service, Supervisor
from millrace.resources.alerts.alerter import Alerter, Unreadable, connected, run_alerter
from millrace.resources.alerts.incidents import Finding
from millrace.resources.alerts.receiver import AlertReceiver
from millrace.resources.alerts.standing import Keys
from millrace.resources.alerts.store import AlertStore
from millrace.resources.event_store import EventStore
from millrace.resources.postgres.embedded import EmbeddedPostgres
from millrace.resources.settings import PROJECT
from tests.alerts.hook import IMPATIENT, STUCK, Alert, Hook, environment, sequencing, settings_for
from tests.support.factories import Connect, append_to, pump, rows, start, value
from tests.support.logins import logins
from tests.support.patience import patience, wait_until
from tests.support.running.deployment import MILLRACE

TOLD = [("began", ["mails"])]
ALERTERS = (
    "select state, xact_start from pg_stat_activity"
    " where application_name = 'millrace alerts' and datname = current_database()"
)


class Elsewhere:
    """A source whose findings the test sets; None for one that cannot be read."""

    name = "elsewhere"

    def __init__(self) -> None:
        self.says: list[Finding] | None = []

    def found(self, known: Keys) -> list[Finding]:
        assert isinstance(known, set)
        if self.says is None:
            raise Unreadable("its storage is gone")
        return self.says


def park(store: EventStore, decider_id: str = "o-1") -> None:
    """Let a stream of `mails` be given up."""
    append_to(store, decider_id)
    pump(store, "mails")
    (event,) = store.stream_events("mails", 1)
    store.fail_event("mails", event.decider_id, event.offset, "no such address")


def repair(store: EventStore) -> None:
    """Let all dead letters of `mails` be tried again, and done."""
    store.retry_dead_letters("mails", reason="mended")
    for event in store.stream_events("mails", 10):
        store.ack_event("mails", event.decider_id, event.offset)


@contextmanager
def alerting(dsn: str, hook: Hook, *sources: Elsewhere, tick_s: float = 0.02) -> Iterator[None]:
    """Run an alerter that waits for nothing."""
    stop = threading.Event()
    running = start(lambda: run_alerter(dsn, stop, settings_for(hook), sources, every_s=0, hold_s=0, tick_s=tick_s))
    try:
        yield
    finally:
        stop.set()
        assert running.result(patience()) is None


def sequenced(store: EventStore, number: int) -> None:
    """Wait until so many events are in the log."""
    wait_until(lambda: value(store.connection, "select count(*) from event_store.event_log") == number, "sequenced")


def looks(connection: psycopg.Connection) -> Callable[[], bool]:
    """Return what says whether somebody has looked since now."""
    before = value(connection, "select clock_timestamp()")
    return lambda: bool(rows(connection, "select from event_store.alerting where observed_at > %s", before))


def test_a_sequencer_tells_of_a_dead_letter_once_and_when_it_is_over(mails: EventStore, dsn: str, hook: Hook) -> None:
    park(mails)
    with sequencing(environment(dsn, hook.url)) as process:
        assert hook.until(1) == TOLD
        (first,) = hook.alerts[0].body["data"]["incidents"]
        assert first["cause"] == "order o-1 was given up after attempt 1: no such address"
        assert "millrace dead-letters mails --show" in first["remedy"]
        park(mails, "o-2")
        looked = looks(mails.connection)
        wait_until(looked, "it looked again")
        repair(mails)
        assert hook.until(2) == [*TOLD, ("over", ["mails"])]
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
    assert len(hook.told()) == 2
    assert len({alert.webhook_id for alert in hook.alerts}) == 2


def test_who_is_killed_before_it_sends_or_before_the_answer_leaves_the_message_to_the_next_one(
    mails: EventStore, dsn: str, hook: Hook
) -> None:
    park(mails)
    with sequencing(environment(dsn, hook.url), STUCK) as process:
        assert process.stdout is not None
        assert any("CLAIMED" in line for line in process.stdout)
        process.kill()
        process.wait()
    assert hook.alerts == []
    asked, over = threading.Event(), threading.Event()

    def hang(_: Alert) -> int:
        asked.set()
        over.wait(patience())
        return 204

    hook.answer = hang
    with sequencing(environment(dsn, hook.url)) as process:
        assert asked.wait(patience())
        # the receiver has the message and says nothing; the sequencer does not wait for it
        append_to(mails, "o-9")
        sequenced(mails, 2)
        process.kill()
        process.wait()
    hook.answer = lambda _: 204
    over.set()
    with sequencing(environment(dsn, hook.url)):
        assert hook.until(2) == [*TOLD, *TOLD]
        wait_until(lambda: AlertStore(mails.connection).open_incidents()[0].told == "began", "it arrived")
        wait_until(looks(mails.connection), "it looked again")
    assert hook.told() == [*TOLD, *TOLD]
    assert hook.alerts[0].webhook_id == hook.alerts[1].webhook_id
    assert hook.alerts[0].text == hook.alerts[1].text


def test_a_dagster_that_hangs_holds_up_neither_the_log_nor_alerts_nor_the_end(
    mails: EventStore, dsn: str, hook: Hook, tmp_path: Path
) -> None:
    shutil.copy(PROJECT / "platform_defs" / "dagster.yaml", tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        storage = f"postgresql://d@127.0.0.1:{silent.getsockname()[1]}/d"
        environ = environment(dsn, hook.url, DAGSTER_HOME=str(tmp_path), MILLRACE_DAGSTER_DSN=storage)
        with sequencing(environ, IMPATIENT) as process:
            asked, _ = silent.accept()
            park(mails)
            assert hook.until(1) == TOLD
            append_to(mails, "o-9")
            sequenced(mails, 2)
            open_ones = AlertStore(mails.connection).open_incidents()
            assert ("unreadable", "dagster") in {(each.kind, each.subject) for each in open_ones}
            process.terminate()
            assert process.wait(patience()) == 0
        asked.close()


def test_a_service_of_millrace_up_that_is_not_up_is_an_incident(
    mails: EventStore, dsn: str, hook: Hook, tmp_path: Path
) -> None:
    environ = environment(dsn, hook.url, MILLRACE_HOME=str(tmp_path))
    sequence = Service("sequence", [str(MILLRACE), "sequence"], environ, lambda: True)
    supervisor = Supervisor(tmp_path, [sequence, Service("spark", ["false"], environ, lambda: False)])

    def found() -> list[tuple[str, str]]:
        supervisor.poll()
        open_ones = AlertStore(mails.connection).open_incidents()
        return [(each.subject, each.cause) for each in open_ones if each.kind == "service"]

    try:
        supervisor.start()
        wait_until(lambda: "It ended with exit code 1. Its log:" in str(found()), "it is an incident with its cause")
        assert [subject for subject, _ in found()] == ["spark"]
    finally:
        supervisor.stop()


def test_bad_settings_are_said_and_the_log_goes_on(mails: EventStore, dsn: str, hook: Hook) -> None:
    said = "No alerts are sent. MILLRACE_ALERT_SECRET does not begin with whsec_"
    append_to(mails, "o-1")
    with sequencing(environment(dsn, hook.url, MILLRACE_ALERT_SECRET="hunter2")) as process:
        sequenced(mails, 1)
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if said in line:
                break
    assert said in "".join(lines)
    assert "hunter2" not in "".join(lines)
    assert hook.alerts == []


def test_two_at_once_tell_once(mails: EventStore, dsn: str, hook: Hook) -> None:
    with alerting(dsn, hook), alerting(dsn, hook), alerting(dsn, hook):
        for number in range(5):
            park(mails)
            hook.until(2 * number + 1)
            repair(mails)
            hook.until(2 * number + 2)
    assert hook.told() == [*TOLD, ("over", ["mails"])] * 5
    assert len({alert.webhook_id for alert in hook.alerts}) == 10


def test_a_receiver_that_fails_is_told_when_it_is_back(
    mails: EventStore, dsn: str, hook: Hook, caplog: pytest.LogCaptureFixture
) -> None:
    answers = iter([500, 302, 404])
    states: set[tuple[object, ...]] = set()

    def answer(_: Alert) -> int:
        with psycopg.connect(dsn) as other:
            states.update(rows(other, ALERTERS))
        return next(answers, 204)

    hook.answer = answer
    park(mails)
    with alerting(dsn, hook):
        for tries in (1, 2, 3):
            hook.until(tries)
            wait_until(lambda: bool(AlertStore(mails.connection).open_incidents()[0].last_error), "it is settled")
            # its time has come
            mails.connection.execute("update event_store.incidents set due_at = clock_timestamp(), last_error = null")
        assert hook.until(4) == TOLD * 4
    assert len({alert.webhook_id for alert in hook.alerts}) == 1
    assert caplog.text.count("did not arrive") == 3
    # nothing is open in the store while a receiver is asked
    assert states == {("idle", None)}
    assert "HTTP 404 Not Found" in caplog.text
    assert "hidden" not in caplog.text


def test_a_source_that_cannot_be_read_ends_nothing_and_is_told_itself(mails: EventStore, dsn: str, hook: Hook) -> None:
    source = Elsewhere()
    source.says = [Finding("elsewhere", "sensor", "the sensor poll_orders", "no such table")]
    with connected(dsn) as connection, AlertReceiver(settings_for(hook)) as receiver:
        alerter = Alerter(connection, receiver, [source], every_s=0, hold_s=0)
        alerter.tick()
        assert hook.until(1) == [("began", ["the sensor poll_orders"])]
        source.says = None
        for _ in range(3):
            alerter.tick()
        assert len(hook.alerts) == 1
        # it must be away for two minutes
        mails.connection.execute(
            "update event_store.incidents set due_at = clock_timestamp() where kind = 'unreadable'"
        )
        alerter.tick()
        assert hook.until(2)[1] == ("began", ["elsewhere"])
        assert hook.alerts[1].body["data"]["incidents"][0]["cause"] == "its storage is gone"
        source.says = []
        alerter.tick()
        assert sorted(hook.until(4)[2:]) == [("over", ["elsewhere"]), ("over", ["the sensor poll_orders"])]


def test_who_knows_no_source_but_the_store_keeps_nobody_from_another_one(
    mails: EventStore, dsn: str, hook: Hook
) -> None:
    elsewhere = Elsewhere()
    elsewhere.says = None
    with connected(dsn) as connection, connected(dsn) as other, AlertReceiver(settings_for(hook)) as receiver:
        bare, knowing = Alerter(connection, receiver), Alerter(other, receiver, [elsewhere])

        def kinds() -> set[str]:
            return {each.kind for each in AlertStore(mails.connection).open_incidents() if each.missing_since is None}

        bare.tick()
        park(mails)
        # another one has the turn to look at the store
        knowing.tick()
        assert kinds() == {"unreadable"}
        # who does not know the source cannot say that it is readable
        bare.look()
        assert kinds() == {"unreadable", "dead_letters"}


def test_a_source_that_fails_keeps_no_other_one_back(mails: EventStore, dsn: str, hook: Hook) -> None:
    class Faulty(Elsewhere):
        def found(self, known: Keys) -> list[Finding]:
            return [*super().found(known), Finding("elsewhere", "run", str(1 // len(self.says or [])), "")]

    park(mails)
    with connected(dsn) as connection, AlertReceiver(settings_for(hook)) as receiver:
        Alerter(connection, receiver, [Faulty()], every_s=0, hold_s=0).tick()
        assert hook.told() == TOLD
        (faulty,) = [each for each in AlertStore(connection).open_incidents() if each.kind == "unreadable"]
    assert (faulty.subject, faulty.cause.partition(":")[0]) == ("elsewhere", "ZeroDivisionError")


def test_a_store_that_is_locked_is_no_store_without_incidents(
    mails: EventStore, connect: Connect, dsn: str, hook: Hook
) -> None:
    park(mails)
    with connected(dsn) as connection, AlertReceiver(settings_for(hook)) as receiver:
        alerter = Alerter(connection, receiver, every_s=0, hold_s=0)
        alerter.tick()
        assert hook.until(1) == TOLD
        connection.execute("set lock_timeout = '50ms'")
        holder = connect(autocommit=False)
        holder.execute("lock table event_store.stream_locks in access exclusive mode")
        for _ in range(2):
            alerter.tick()
        assert [(each.kind, each.missing_since) for each in AlertStore(mails.connection).open_incidents()] == [
            ("dead_letters", None),
            ("unreadable", None),
        ]
    assert len(hook.alerts) == 1


def test_it_goes_on_after_the_database_was_away(
    mails: EventStore, dsn: str, postgres: EmbeddedPostgres, hook: Hook, caplog: pytest.LogCaptureFixture
) -> None:
    name = value(mails.connection, "select current_database()")
    park(mails)
    with alerting(dsn, hook, tick_s=0.05), psycopg.connect(postgres.dsn("postgres"), autocommit=True) as admin:
        hook.until(1)
        admin.execute(f"alter database {name} allow_connections false".encode())
        admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", (name,))
        wait_until(lambda: "Alerts wait: " in caplog.text, "it noticed")
        admin.execute(f"alter database {name} allow_connections true".encode())
        with psycopg.connect(dsn, autocommit=True) as connection:
            repair(EventStore(connection))
            assert hook.until(2) == [*TOLD, ("over", ["mails"])]


def test_a_login_that_may_not_is_told_which_one_may(
    mails: EventStore, dsn: str, hook: Hook, caplog: pytest.LogCaptureFixture
) -> None:
    with logins(mails.connection) as login:
        reader = login("event_store_reader")
        stop = threading.Event()
        other = f"{dsn}&user={reader.info.user}"
        running = start(lambda: run_alerter(other, stop, settings_for(hook), tick_s=0.05))
        wait_until(lambda: "a member of event_store_owner" in caplog.text, "it is said")
        stop.set()
        running.result(patience())
    # once, however often it is tried
    assert caplog.text.count("Alerts wait: ") == 1


def test_a_message_that_never_arrives_does_not_keep_the_others_back(mails: EventStore, dsn: str, hook: Hook) -> None:
    poison = "the sensor poison"
    hook.answer = lambda alert: 400 if "poison" in alert.text else 204
    source = Elsewhere()
    source.says = [Finding("elsewhere", "sensor", poison, "x")]
    with connected(dsn) as connection, AlertReceiver(settings_for(hook)) as receiver:
        alerter = Alerter(connection, receiver, [source], every_s=0, hold_s=0)
        alerter.tick()
        park(mails)
        alerter.tick()
        assert hook.told() == [("began", [poison]), *TOLD]
        states = {each.kind: each.told for each in AlertStore(mails.connection).open_incidents()}
        assert states == {"sensor": "nothing", "dead_letters": "began"}
