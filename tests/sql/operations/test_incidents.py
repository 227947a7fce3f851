"""observe_incidents, claim_alert, settle_alert: from the first check to the last alert, by a clock that tests move."""

from contextlib import suppress
from datetime import datetime, timedelta
from itertools import pairwise
from typing import LiteralString
from uuid import uuid4

import psycopg
import pytest

from millrace.archive.store import ArchiveStore
from millrace.capture.store import CaptureStore
from millrace.errors import CaptureInUse
from millrace.event_store.platform import PlatformStore
from millrace.operations.alerts.store import AlertStore
from tests.support import factories
from tests.support.capturing.captures import table
from tests.support.patience import patience

START = datetime.fromisoformat("2030-01-01T00:00:00+00:00")
MINUTE, HOUR, DAY = 60, 3600, 86_400
HOLD_S = 120
Sent = list[tuple[str, str]]


class Watched:
    """A store, its current findings, and the seconds since the beginning."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self.store = AlertStore(connection)
        self.at(0)

    def at(self, seconds: float) -> None:
        factories.set_clock(self.store.connection, time(seconds))

    def look(
        self, *late: str, at: float | None = None, source: str = "a", wait_s: int = 0, complete: bool = True
    ) -> int:
        """Observe a source once."""
        if at is not None:
            self.at(at)
        return self.store.observe_incidents(source, [seen(each, wait_s) for each in late], complete, HOLD_S)

    def send(self, at: float | None = None, *, error: str | None = None) -> Sent:
        """Claim and settle all due alerts; return for each the state told before it, and the subject."""
        if at is not None:
            self.at(at)
        sent = []
        while claimed := self.store.claim_alert():
            assert self.store.settle_alert(claimed.incident_id, claimed.told, error)
            sent.append((claimed.told, claimed.subject))
        return sent


def time(seconds: float) -> str:
    return (START + timedelta(seconds=seconds)).isoformat()


def seen(subject: str, wait_s: int = 0, **other: object) -> dict[str, object]:
    texts = dict.fromkeys(("what", "remedy", "page"), "") | {"cause": f"first cause of {subject}"}
    return {"kind": "late", "subject": subject, "severity": "ticket", "wait_s": wait_s, **texts, **other}


@pytest.fixture
def watched(connect: factories.Connect) -> Watched:
    return Watched(connect())


def test_one_message_when_it_begins_and_one_when_it_is_over(watched: Watched) -> None:
    assert watched.look("orders") == 1
    assert watched.send() == [("nothing", "orders")]
    version: LiteralString = "select xmin::text from event_store.incidents"
    before = factories.rows(watched.store.connection, version)
    for minute in range(1, 10):
        assert watched.look("orders", at=minute * MINUTE) == 1
        assert watched.send() == []
    # a check without a new finding writes no incident
    assert factories.rows(watched.store.connection, version) == before
    watched.look(at=10 * MINUTE)
    assert watched.send() == []
    assert watched.look(at=10 * MINUTE + HOLD_S) == 0
    assert watched.send() == [("began", "orders")]
    (kept,) = factories.rows(watched.store.connection, "select began_at, over_at, told from event_store.incidents")
    assert kept == (START, START + timedelta(minutes=10), "over")
    assert watched.send(at=DAY) == []
    # the incident is kept for a month
    watched.look(at=30 * DAY)
    assert len(factories.rows(watched.store.connection, version)) == 1
    watched.look(at=31 * DAY)
    assert factories.rows(watched.store.connection, version) == []


def test_it_began_when_its_source_says_and_its_cause_is_the_first_one(watched: Watched) -> None:
    watched.store.observe_incidents("a", [seen("orders", since=time(-HOUR)), seen("mails", since=time(HOUR))])
    watched.store.observe_incidents("a", [seen("orders", cause="another one"), seen("mails")])
    orders, mails = watched.store.open_incidents()
    assert (orders.cause, orders.began_at) == ("first cause of orders", START - timedelta(hours=1))
    assert mails.began_at == START


def test_what_is_not_seen_for_long_enough_vanishes_without_a_trace(watched: Watched) -> None:
    watched.look("orders", wait_s=120)
    watched.look("orders", at=119, wait_s=120)
    # even if no check ran when the alert would have been due
    assert watched.send(at=HOUR) == []
    watched.look(at=HOUR)
    assert watched.store.open_incidents() == []
    watched.look("orders", wait_s=120)
    watched.look("orders", at=HOUR + 120, wait_s=120)
    assert watched.send() == [("nothing", "orders")]


def test_what_comes_back_at_once_was_not_over(watched: Watched) -> None:
    watched.look("orders")
    assert watched.send() == [("nothing", "orders")]
    for minute in range(1, 30):
        watched.look(*(["orders"] if minute % 2 else []), at=minute * MINUTE)
        assert watched.send() == []
    # a finding that returns later is a new incident
    watched.look(at=HOUR)
    watched.look(at=2 * HOUR)
    watched.look("orders", at=2 * HOUR + 1)
    assert watched.send() == [("began", "orders"), ("nothing", "orders")]


def test_a_message_that_fails_comes_again_later_each_time_until_it_arrives(watched: Watched) -> None:
    watched.look("orders")
    now, tries = 0.0, list[float]()
    while len(tries) < 9:
        if watched.send(now, error="HTTP 500"):
            tries.append(now)
        now += 10
    assert [later - earlier for earlier, later in pairwise(tries)] == [30, 60, 120, 240, 480, 600, 600, 600]
    assert watched.store.alert_state().undelivered_since == START
    (orders,) = watched.store.open_incidents()
    assert (orders.tries, orders.last_error, orders.told) == (9, "HTTP 500", "nothing")
    # the incident has ended meanwhile; the alert covers its beginning and its end
    watched.look(at=2 * DAY)
    watched.look(at=2 * DAY + HOUR)
    assert watched.send() == [("nothing", "orders"), ("began", "orders")]
    assert watched.store.alert_state().undelivered_since is None


def test_a_message_is_ones_own_for_half_a_minute_and_a_late_answer_counts(watched: Watched) -> None:
    watched.look("orders", "mails")
    first, second = watched.store.claim_alert(), watched.store.claim_alert()
    assert first
    assert second
    assert {first.subject, second.subject} == {"orders", "mails"}
    assert watched.send(at=29) == []
    watched.at(30)
    again = watched.store.claim_alert()
    assert again
    assert again.incident_id == first.incident_id
    # a sender that was away for so long has still told the receiver
    assert watched.store.settle_alert(first.incident_id, first.told)
    assert not watched.store.settle_alert(again.incident_id, again.told)
    assert not watched.store.settle_alert(again.incident_id, again.told, "No answer.")
    assert watched.send(at=HOUR) == [("nothing", second.subject)]
    # and it does not settle the next alert
    watched.look(second.subject, at=HOUR)
    watched.look(second.subject, at=2 * HOUR)
    over = watched.store.claim_alert()
    assert over
    assert not watched.store.settle_alert(first.incident_id, first.told)
    assert watched.store.settle_alert(over.incident_id, over.told)
    assert not watched.store.settle_alert(uuid4(), "nothing")


def test_two_at_once_get_a_message_once_a_killed_one_leaves_it(watched: Watched, connect: factories.Connect) -> None:
    watched.look("orders")
    killed, other = connect(autocommit=False), connect()
    for connection in (killed, other):
        factories.set_clock(connection, START.isoformat())
    assert AlertStore(killed).claim_alert()
    assert AlertStore(other).claim_alert() is None
    factories.terminate(watched.store.connection, killed.info.backend_pid)
    assert watched.send() == [("nothing", "orders")]


def test_two_looks_at_a_source_take_turns(watched: Watched, connect: factories.Connect) -> None:
    first, second = connect(autocommit=False), connect()
    AlertStore(first).observe_incidents("a", [seen("orders")])
    late = factories.start(lambda: AlertStore(second).observe_incidents("a", [seen("orders")]))
    factories.wait_blocked(watched.store.connection, second.info.backend_pid)
    # a check does not wait for a check of another source
    assert watched.look("orders", source="b") == 1
    first.commit()
    assert late.result(patience()) == 2
    assert len(watched.store.open_incidents()) == 2


def test_a_source_that_is_not_read_ends_nothing(watched: Watched) -> None:
    watched.look("orders", source="dagster")
    assert watched.send() == [("nothing", "orders")]
    for hour in range(1, 10):
        assert watched.look(at=hour * HOUR, source="store") == 1
        assert watched.look(at=hour * HOUR, source="dagster", complete=False) == 1
    assert watched.send() == []
    watched.look(at=10 * HOUR, source="dagster")
    watched.look(at=11 * HOUR, source="dagster")
    assert watched.send() == [("began", "orders")]


def test_a_source_that_nobody_asks_for_a_week_is_forgotten(watched: Watched) -> None:
    watched.look("orders", source="dagster")
    for day in range(20):
        assert watched.look(at=day * DAY, source="dagster", complete=False) == 1
    assert watched.look(at=26 * DAY, source="store") == 1
    assert watched.look(at=26 * DAY + 1, source="store") == 0
    assert factories.rows(watched.store.connection, "select source from event_store.alert_sources") == [("store",)]


def test_a_clock_that_is_set_back_holds_nothing_up(watched: Watched) -> None:
    watched.look("tried", "gone", at=10 * DAY)
    assert len(watched.send(error="HTTP 500")) == 2
    watched.look("tried", "new", at=10 * DAY, wait_s=MINUTE)
    watched.look("tried", "new", at=0)
    over = {each.subject for each in watched.store.open_incidents() if each.over_at}
    assert (over, len(watched.store.open_incidents())) == ({"gone"}, 3)
    assert {subject for _, subject in watched.send()} == {"tried", "gone", "new"}


def test_what_is_over_costs_who_looks_nothing(watched: Watched) -> None:
    connection = watched.store.connection
    connection.execute(
        """
        insert into event_store.incidents (
          source, kind, subject, severity, what, cause, remedy, page, began_at, confirmed, missing_since, over_at, told, due_at
        )
        select 'a', 'late', 'view ' || n, 'page', repeat('x', 500), '', '', '', _at, true, _at, _at, 'over', _at
        from generate_series(1, 20000) n, (select timestamptz '2029-12-20' as _at) t
        """
    )
    for call in (
        "select * from event_store_platform.claim_alert()",
        "select * from event_store_platform.open_incidents()",
        "select * from event_store_platform.alert_state()",
        "select event_store_platform.observe_incidents('a', '[]')",
    ):
        for _ in range(2):
            read = factories.buffers(connection, call)
        assert read < 100, call
    assert factories.value(connection, "select count(*) from event_store.incidents") == 20_000


def test_leases_end_in_time_where_a_look_sees_that_the_clock_was_set_back(watched: Watched) -> None:
    connection = watched.store.connection
    store, captures, archive = PlatformStore(connection), CaptureStore(connection), ArchiveStore(connection)
    for view in ("bulk", "rows"):
        factories.register_orders(store).register_view(view, "-infinity", mode=view)
    captures.register_capture("c", "s", "p", [table()])

    def free() -> dict[str, bool]:
        """Try all locks, and undo them."""
        taken = {}
        with connection.transaction(force_rollback=True):
            taken["partition"] = store.claim_batch("bulk", "you") != []
            taken["consumer"] = store.view_info("bulk")[0].consumers == 0
            taken["stream"] = "o-1" in {event.decider_id for event in store.lease_events("rows", 10)}
            taken["archive"] = archive.lock_archive(0, "you")
        with suppress(CaptureInUse):
            captures.release_capture("c", captures.claim_capture("c", "you", 60).lease_token)
            taken["capture"] = True
        return taken

    watched.look(at=DAY)
    factories.append_to(store, "o-1")
    factories.pump(store, "rows")
    assert store.lease_events("rows", 1, MINUTE)
    assert store.claim_batch("bulk", "me", lease_s=MINUTE)
    store.attach_consumer("bulk", "me", MINUTE)
    captures.claim_capture("c", "me", MINUTE)
    assert archive.lock_archive(0, "me")
    watched.look(at=0)
    watched.at(MINUTE - 1)
    assert not any(free().values())
    watched.at(MINUTE)
    assert free() == {"partition": True, "consumer": True, "stream": True, "archive": False, "capture": True}
    watched.at(15 * MINUTE)
    assert free()["archive"]
