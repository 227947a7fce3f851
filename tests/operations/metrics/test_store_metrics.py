"""The metrics of an event store in a scrape, over HTTP as Prometheus asks."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import requests

from millrace.capture.store import CaptureStore, TableRegistration
from millrace.errors import MillraceError
from millrace.event_store import NewEvent
from millrace.event_store.platform import PlatformStore
from millrace.operations.alerts.findings import unreadable
from millrace.operations.alerts.store import AlertStore
from millrace.platform_defs.metrics.serve import metrics_beside, serving_metrics
from millrace.postgres.embedded import EmbeddedPostgres
from millrace.producers import ProducerStore
from tests.support.factories import Connect, append_to, away, new_event, pump, register_orders
from tests.support.patience import patience
from tests.support.scrapes import of, scraped


@pytest.fixture(autouse=True)
def _no_dagster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)


@pytest.fixture
def port(dsn: str) -> Iterator[int]:
    with serving_metrics(dsn, 0) as taken:
        yield taken


def test_the_log_and_its_views_are_counted(store: PlatformStore, port: int) -> None:
    register_orders(store)
    store.register_view("mails", "-infinity")
    store.register_view('rows of\n"all"', "-infinity", mode="bulk")
    append_to(store, "o-1", "o-2", "o-2")
    pump(store, "mails")
    (first, *_) = store.lease_events("mails", 1)
    store.fail_event("mails", first.decider_id, first.offset, "no such address")
    samples = scraped(port)
    assert of(samples, "millrace_up") == 1
    assert sum(number for (name, _), number in samples.items() if name == "millrace_log_positions_total") == 3
    assert of(samples, "millrace_view_enabled", view="mails", mode="rows") == 1
    assert of(samples, "millrace_view_position", view="mails") == 3
    assert of(samples, "millrace_view_position", view='rows of\n"all"', mode="bulk") == 0
    assert of(samples, "millrace_view_waiting_streams", view="mails") == 1
    assert of(samples, "millrace_view_lag_events", view="mails") == 3
    assert 0 < of(samples, "millrace_view_lag_seconds", view="mails") < patience()
    assert of(samples, "millrace_view_in_flight_streams", view="mails") == 0
    store.enable_view("mails", enabled=False, reason="repair")
    assert of(scraped(port), "millrace_view_enabled", view="mails") == 0


def test_a_scrape_tells_how_long_nobody_has_sequenced(store: PlatformStore, port: int) -> None:
    store.sequence_events()
    assert of(scraped(port), "millrace_sequencer_idle_seconds") < patience()
    store.connection.execute("update event_store.sequencer set sequenced_at = now() - interval '1 hour'")
    assert 3600 <= of(scraped(port), "millrace_sequencer_idle_seconds") < 3600 + patience()


def test_a_scrape_names_the_oldest_writer_and_who_holds_the_sequencer(
    store: PlatformStore, connect: Connect, port: int
) -> None:
    register_orders(store)
    assert not [
        name for name, _ in scraped(port) if name.startswith(("millrace_oldest_writer", "millrace_sequencer_held"))
    ]
    first, second = connect(autocommit=False), connect(autocommit=False)
    append_to(PlatformStore(first), "o-1")
    append_to(PlatformStore(second), "o-2")
    append_to(store, "o-3")
    second.execute("select event_store_platform.sequence_events()")
    samples = scraped(port)
    pids = [str(connection.info.backend_pid) for connection in (first, second)]
    assert of(samples, "millrace_oldest_writer_seconds", pid=pids[0], prepared="") >= 0
    assert of(samples, "millrace_sequencer_held_seconds", pid=pids[1]) >= 0
    second.rollback()
    first.execute("prepare transaction 'left behind'")
    assert of(scraped(port), "millrace_oldest_writer_seconds", pid="", prepared="left behind") >= 0
    first.autocommit = True
    first.execute("rollback prepared 'left behind'")


def test_producers_are_counted_together(store: PlatformStore, port: int) -> None:
    register_orders(store)
    producers = ProducerStore(store.connection)
    epochs = {name: producers.register_producer(name).epoch for name in ("a", "b")}
    for name, epoch in epochs.items():
        producers.ingest_events(name, 0, epoch, 0, [new_event(name).alone])
        producers.ingest_events(name, 0, epoch, 0, [new_event(name).alone])
    samples = scraped(port)
    assert of(samples, "millrace_producers") == 2
    assert of(samples, "millrace_producer_messages_total", outcome="committed") == 2
    assert of(samples, "millrace_producer_messages_total", outcome="duplicates") == 2


def test_scheduled_events_are_counted_and_late_ones_timed(store: PlatformStore, port: int) -> None:
    register_orders(store)
    append_to(store, "o-1")
    day = timedelta(days=1)
    store.schedule("order", "o-1", NewEvent("paid"), name="past", after=-day)
    store.fire_scheduled_events()
    for after in (-day, day):
        store.schedule("order", "o-1", NewEvent("paid"), name=f"{after}", after=after)
    samples = scraped(port)
    assert of(samples, "millrace_scheduled_waiting_events") == 2
    assert of(samples, "millrace_scheduled_refused_events") == 0
    assert of(samples, "millrace_scheduled_overdue_seconds") >= 86_400
    # it came at once after it was scheduled
    assert 0 <= of(samples, "millrace_scheduled_late_seconds") < 86_400


def test_a_capture_is_told_of(store: PlatformStore, port: int) -> None:
    table = TableRegistration("public", "customer", "customer", ["id"], "fingerprint")
    CaptureStore(store.connection).register_capture("crm", "slot", "publication", [table])
    samples = scraped(port)
    assert of(samples, "millrace_capture_leased", capture="crm") == 0
    assert of(samples, "millrace_capture_open_gaps", capture="crm") == 0


def test_what_the_store_says_is_wrong_is_there_while_it_is(store: PlatformStore, port: int) -> None:
    assert not [name for name, _ in scraped(port) if name == "millrace_standing_seconds"]
    register_orders(store).register_view("mails", "-infinity")
    store.set_max_lag("mails", 0)
    append_to(store, "o-1")
    pump(store, "mails")
    assert of(scraped(port), "millrace_standing_seconds", kind="late", subject="mails", severity="ticket") > 0


def test_whether_somebody_looks_for_incidents_and_tells_of_them(store: PlatformStore, port: int) -> None:
    alerts = AlertStore(store.connection)
    # where alerts are off, no rule may fire for their silence
    assert ("millrace_alerts_idle_seconds", frozenset()) not in scraped(port)
    problem = unreadable("elsewhere", OSError("gone"))
    alerts.observe_incidents("elsewhere", [{**problem.fields(), "wait_s": 0}])
    samples = scraped(port)
    assert of(samples, "millrace_alerts_idle_seconds") < patience()
    assert of(samples, "millrace_alerts_open_incidents") == 1
    assert of(samples, "millrace_alerts_undelivered_seconds") == 0
    alerts.claim_alert()
    hour = "update event_store.incidents set failing_since = failing_since - interval '1 hour'"
    store.connection.execute(hour)
    assert of(scraped(port), "millrace_alerts_undelivered_seconds") >= 3600


def test_a_store_that_went_away_is_down_and_comes_back(
    postgres: EmbeddedPostgres, store: PlatformStore, port: int
) -> None:
    assert of(scraped(port), "millrace_up") == 1
    with away(postgres, store.connection.info.dbname):
        gone = scraped(port)
    assert {name: number for (name, _), number in gone.items()} == {"millrace_up": 0}
    assert of(scraped(port), "millrace_up") == 1


def test_a_scrape_waits_for_nobody_s_lock_for_long(connect: Connect, port: int) -> None:
    holder = connect(autocommit=False)
    holder.execute("lock table event_store.views in access exclusive mode")
    assert of(scraped(port), "millrace_up") == 0
    holder.rollback()
    assert of(scraped(port), "millrace_up") == 1


def test_work_beside_metrics_goes_on_where_these_cannot_be_served(
    dsn: str, port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # without a Dagster, too
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "nowhere"))
    with metrics_beside(dsn, port):
        assert "in use" in caplog.text
    with serving_metrics(dsn, 0) as other:
        samples = scraped(other)
    assert of(samples, "millrace_up") == 1
    assert of(samples, "millrace_dagster_up") == 0


def test_only_requests_to_names_of_ours_are_answered(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_UI_HOSTS", "proxy.example.com")
    ours = ("127.0.0.1:9918", "localhost", "LOCALHOST:9918", "[::1]:9918", "10.1.2.3", "proxy.example.com:443")
    others = ("rebound.example.com", "rebound.example.com:9918", "localhost.example.com", "[::1", "a:b:c", "")
    with serving_metrics(dsn, 0) as port:
        answers = {
            name: requests.get(f"http://127.0.0.1:{port}/metrics", headers={"Host": name}, timeout=patience())
            for name in (*ours, *others)
        }
    assert {name: answer.status_code for name, answer in answers.items()} == {
        **dict.fromkeys(ours, 200),
        **dict.fromkeys(others, 421),
    }
    assert "MILLRACE_UI_HOSTS" in answers["rebound.example.com"].text


def test_a_port_that_is_taken_is_said(dsn: str, port: int) -> None:
    with pytest.raises(MillraceError, match=f"127.0.0.1:{port}.*in use"), serving_metrics(dsn, port):
        pass
