"""observe_incidents, claim_alert, settle_alert: from the first look to the last message, by a clock that tests move."""

from datetime import datetime, timedelta
from functools import partial
from typing import LiteralString
from uuid import uuid4

import psycopg
import pytest

from millrace.resources.alerts.store import AlertStore, ClaimedIncident
from millrace.resources.archive.store import ArchiveStore
from millrace.resources.capture.store import CaptureStore
from millrace.resources.errors import CaptureInUse, Malformed
from millrace.resources.event_store import EventStore
from tests.support.capturing.captures import table
from tests.support.factories import (
    Connect,
    append_to,
    buffers,
    pump,
    refusal,
    register_orders,
    rows,
    set_clock,
    start,
    terminate,
    value,
    wait_blocked,
)
from tests.support.patience import patience

START = datetime.fromisoformat("2030-01-01T00:00:00+00:00")
MINUTE, HOUR, DAY = 60, 3600, 86_400
HOLD_S = 120
LEASE_S = 120


class Watched:
    """A store, what is wrong in it, and the seconds since the beginning."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self.store = AlertStore(connection)
        self.at(0)

    def at(self, seconds: float) -> None:
        set_clock(self.store.connection, (START + timedelta(seconds=seconds)).isoformat())

    def look(self, *subjects: str, at: float | None = None, sources: tuple[str, ...] = ("a",), wait_s: int = 0) -> int:
        """Look once: these are late, as the first of the sources says."""
        if at is not None:
            self.at(at)
        return self.store.observe_incidents([seen(each, sources[0], wait_s) for each in subjects], sources, HOLD_S)

    def send(self, at: float | None = None, *, error: str | None = None) -> list[tuple[str, list[str]]]:
        """Claim and settle all that is due; return phase and subjects of each message."""
        if at is not None:
            self.at(at)
        sent = []
        while claimed := self.store.claim_alert(LEASE_S):
            assert self.store.settle_alert(claimed[0].message_id, claimed[0].lease_token, error)
            sent.append((claimed[0].phase, [each.subject for each in claimed]))
        return sent


def seen(subject: str, source: str = "a", wait_s: int = 0, **other: object) -> dict[str, object]:
    return {
        "source": source,
        "kind": "late",
        "subject": subject,
        "severity": "ticket",
        "cause": f"first cause of {subject}",
        "remedy": "look",
        "page": "",
        "wait_s": wait_s,
        **other,
    }


@pytest.fixture
def watched(connect: Connect) -> Watched:
    return Watched(connect())


def test_one_message_when_it_begins_and_one_when_it_is_over(watched: Watched) -> None:
    version: LiteralString = "select xmin::text, cause from event_store.incidents"
    assert watched.look("orders") == 1
    assert watched.send() == [("began", ["orders"])]
    # it is open, and was told
    assert watched.store.alert_state().undelivered_since is None
    before = rows(watched.store.connection, version)
    for minute in range(1, 10):
        assert watched.look("orders", at=minute * MINUTE) == 1
        assert watched.send() == []
    # a look that finds nothing new writes no incident, and the cause is the first one
    watched.store.observe_incidents([seen("orders", cause="another one")], ["a"], HOLD_S)
    assert rows(watched.store.connection, version) == before
    assert before[0][1] == "first cause of orders"
    # what comes back at once was not over
    for back in (False, True):
        watched.look(*(["orders"] if back else []), at=9 * MINUTE + 30 + back)
        assert watched.send() == []
    watched.look(at=10 * MINUTE)
    assert watched.send() == []
    assert watched.look(at=10 * MINUTE + HOLD_S) == 0
    assert watched.send() == [("over", ["orders"])]
    watched.look(at=DAY)
    assert watched.send() == []
    (kept,) = rows(watched.store.connection, "select began_at, over_at, told from event_store.incidents")
    assert kept == (START, START + timedelta(minutes=10), "over")
    # nothing that is old is kept
    for days, number in ((29, 1), (32, 0)):
        watched.look(at=days * DAY)
        assert value(watched.store.connection, "select count(*) from event_store.incidents") == number


def test_what_is_not_seen_for_long_enough_vanishes_without_a_trace(watched: Watched) -> None:
    watched.look("orders", wait_s=120)
    watched.look("orders", at=119, wait_s=120)
    assert watched.send() == []
    watched.look(at=119.5)
    assert watched.send(at=HOUR) == []
    assert rows(watched.store.connection, "select from event_store.incidents") == []
    watched.look("orders", wait_s=120)
    watched.look("orders", at=HOUR + 120, wait_s=120)
    assert watched.send() == [("began", ["orders"])]


def test_what_vanished_while_nobody_looked_is_not_told(watched: Watched) -> None:
    watched.look("v", "w", wait_s=MINUTE)
    # the alerter was away for an hour, and v was over before it was due, for all that anybody knows
    watched.look("w", at=HOUR, wait_s=MINUTE)
    assert watched.send() == [("began", ["w"])]
    watched.look(at=HOUR + 1)
    watched.look(at=HOUR + HOLD_S + 1)
    assert watched.send() == [("over", ["w"])]
    assert rows(watched.store.connection, "select subject from event_store.incidents") == [("w",)]


def test_the_time_until_it_is_over_doubles_with_each_return_within_two_hours(watched: Watched) -> None:
    now, sent, lasted = 0.0, 0, []
    for _ in range(8):
        watched.look("orders", at=now)
        sent += len(watched.send())
        gone = now + MINUTE
        now = gone
        watched.look(at=now)
        while watched.look(at=now):
            now += 120
        sent += len(watched.send())
        lasted.append(now - gone)
        now += MINUTE
    # to an hour
    assert lasted == [120, 240, 480, 960, 1920, 3600, 3600, 3600]
    assert sent == 16
    watched.look("orders", at=now + 3 * HOUR)
    assert value(watched.store.connection, "select flaps from event_store.incidents where over_at is null") == 0


def test_those_of_a_kind_that_begin_together_are_one_message(watched: Watched) -> None:
    watched.look("orders", "customers", "shipments")
    watched.store.observe_incidents(
        [*map(seen, ("orders", "customers", "shipments")), seen("orders", kind="dead_letters")], ["a"], HOLD_S
    )
    assert sorted((phase, sorted(subjects)) for phase, subjects in watched.send()) == [
        ("began", ["customers", "orders", "shipments"]),
        ("began", ["orders"]),
    ]
    watched.look("orders", "customers", "shipments", "returns", at=MINUTE)
    assert watched.send() == [("began", ["returns"])]
    watched.look(at=HOUR)
    watched.look(at=2 * HOUR)
    assert sum(len(subjects) for _, subjects in watched.send()) == 5


def test_a_message_has_fifty_incidents_at_most_and_what_could_not_be_told_is_told_from_beginning_to_end(
    watched: Watched,
) -> None:
    watched.look(*(f"view_{n:03}" for n in range(120)))
    began = watched.send(error="HTTP 500")
    assert [len(subjects) for _, subjects in began] == [50, 50, 20]
    assert len({subject for _, subjects in began for subject in subjects}) == 120
    watched.look(at=HOUR)
    watched.look(at=2 * HOUR)
    told = watched.send()
    for phase in ("began", "over"):
        assert sum(len(subjects) for found, subjects in told if found == phase) == 120


def test_a_try_that_fails_comes_again_later_each_time_with_the_same_message(watched: Watched) -> None:
    watched.look("orders", "customers")
    now, tries = 0.0, []
    first = watched.store.claim_alert(LEASE_S)
    assert watched.store.settle_alert(first[0].message_id, first[0].lease_token, "HTTP 500")
    for _ in range(9):
        before = now
        watched.look("orders", "customers", "returns", at=now)
        while not (again := [each for each in claim(watched) if each.message_id == first[0].message_id]):
            now += 10
            watched.at(now)
        assert [each.incident_id for each in again] == [each.incident_id for each in first]
        assert watched.store.settle_alert(again[0].message_id, again[0].lease_token, "HTTP 500")
        tries.append(now - before)
    assert tries == [10, 20, 40, 80, 160, 320, 600, 600, 600]
    state = watched.store.alert_state()
    assert state.undelivered_since == START
    (orders,) = [each for each in watched.store.open_incidents() if each.subject == "orders"]
    assert (orders.tries, orders.last_error, orders.told) == (10, "HTTP 500", "nothing")


def claim(watched: Watched) -> list[ClaimedIncident]:
    """Claim what is due; another message arrives at once."""
    claimed = watched.store.claim_alert(LEASE_S)
    if claimed and claimed[0].subject == "returns":
        watched.store.settle_alert(claimed[0].message_id, claimed[0].lease_token)
        return watched.store.claim_alert(LEASE_S)
    return claimed


def test_a_message_is_given_up_after_a_day_and_the_next_one_is_tried(watched: Watched) -> None:
    watched.look("orders")
    now, tries = 0, 0
    while now < 2 * DAY:
        tries += len(watched.send(now, error="No answer."))
        now += 5 * MINUTE
    assert 144 < tries < 155
    (orders,) = watched.store.open_incidents()
    assert (orders.told, orders.undelivered, orders.tries, orders.last_error) == ("began", 1, 0, "No answer.")
    # nobody was told, and the rule that says so goes on
    undelivered_since = watched.store.alert_state().undelivered_since
    assert undelivered_since is not None
    assert DAY <= (undelivered_since - START).total_seconds() <= DAY + HOUR
    watched.look(at=now)
    watched.look(at=now + HOUR)
    assert watched.send() == [("over", ["orders"])]
    assert watched.store.alert_state().undelivered_since is None


@pytest.mark.parametrize("looked_at", [0, DAY], ids=["now", "before the clock was set back"])
def test_a_message_that_is_leased_is_nobody_elses_until_its_lease_ends(watched: Watched, looked_at: int) -> None:
    watched.look("orders", at=looked_at)
    (held,) = watched.store.claim_alert(LEASE_S)
    watched.look("orders", at=0)
    assert watched.send(at=LEASE_S - 1) == []
    watched.at(LEASE_S)
    (again,) = watched.store.claim_alert(LEASE_S)
    assert (again.message_id, again.incident_id) == (held.message_id, held.incident_id)
    # a failure of before counts for nothing, and a success for all: the receiver was told
    assert not watched.store.settle_alert(held.message_id, held.lease_token, "No answer.")
    assert watched.store.settle_alert(held.message_id, held.lease_token)
    assert not watched.store.settle_alert(again.message_id, again.lease_token)
    assert watched.send(at=HOUR) == []


@pytest.mark.parametrize("ends", ["commit", "kill"])
def test_of_two_that_claim_at_once_one_gets_the_message_the_second_if_the_first_is_killed_before_its_commit(
    watched: Watched, connect: Connect, ends: str
) -> None:
    watched.look("orders")
    first, second = connect(autocommit=False), connect()
    for connection in (first, second):
        set_clock(connection, START.isoformat())
    (claimed,) = AlertStore(first).claim_alert(LEASE_S)
    late = start(lambda: AlertStore(second).claim_alert(LEASE_S))
    wait_blocked(watched.store.connection, second.info.backend_pid)
    if ends == "kill":
        terminate(watched.store.connection, first.info.backend_pid)
    else:
        first.commit()
    assert [each.subject for each in late.result(patience())] == (["orders"] if ends == "kill" else [])
    assert claimed.tries == 1


def test_arguments_out_of_range_are_refused(watched: Watched) -> None:
    for found in (
        seen("orders", "unread"), seen("orders", severity="fatal"), seen("orders", wait_s=-1), seen("x" * 1025),
        seen("orders", cause=None), {},
    ):  # fmt: skip
        refusal(Malformed, partial(watched.store.observe_incidents, [found], ["a"], HOLD_S))
    assert watched.store.alert_state().observed_at is None
    refusal(Malformed, lambda: watched.store.observe_incidents([], ["a"], -1))
    refusal(Malformed, lambda: watched.store.claim_look(-1, ["a"]))
    refusal(Malformed, lambda: watched.store.claim_look(15, [""]))
    refusal(Malformed, lambda: watched.store.claim_look(15, ["a" * 201]))
    refusal(Malformed, lambda: watched.store.claim_alert(0))
    assert not watched.store.settle_alert(uuid4(), 1)


def test_what_is_over_costs_who_looks_nothing(watched: Watched) -> None:
    connection = watched.store.connection
    connection.execute(
        """
        insert into event_store.incidents (
          kind, subject, severity, cause, remedy, page, sources, began_at, missing_since, over_at, flaps, told, due_at
        )
        select 'late', 'view ' || n, 'page', repeat('x', 500), '', '', '{}', _at, _at, _at, 0, 'over', _at
        from generate_series(1, 20000) n, (select timestamptz '2029-12-20' as _at) t
        """
    )
    for statistics in (False, True):
        if statistics:
            connection.execute("vacuum analyze event_store.incidents")
        for call in (
            "select * from event_store.claim_alert(60)",
            "select * from event_store.open_incidents()",
            "select * from event_store.alert_state()",
            "select event_store.observe_incidents('[]', '{a}')",
            "select event_store.settle_alert('00000000-0000-4000-8000-000000000000', 1, 'x')",
        ):
            for _ in range(2):
                read = buffers(connection, call)
            assert read < 100, call


def test_what_two_sources_see_is_over_when_neither_does(watched: Watched) -> None:
    both = [seen("orders", "store"), seen("orders", "dagster")]
    assert watched.store.observe_incidents(both, ["store", "dagster"], HOLD_S) == 1
    assert watched.send() == [("began", ["orders"])]
    # one of them sees it no more, the other one is not read, which ends nothing
    assert [watched.look(at=hour * HOUR, sources=("store",)) for hour in (1, 2, 10)] == [1, 1, 1]
    assert watched.send() == []
    (open_one,) = watched.store.open_incidents()
    assert (open_one.sources, open_one.missing_since) == (["dagster"], None)
    watched.look(at=11 * HOUR, sources=("dagster",))
    assert watched.look(at=12 * HOUR, sources=("store",)) == 0
    assert watched.send() == [("over", ["orders"])]


def claimed(store: AlertStore, every_s: int, sources: list[str]) -> set[str]:
    return {each.source for each in store.claim_look(every_s, sources)}


def test_who_looks_has_the_turn_for_a_while(watched: Watched, connect: Connect) -> None:
    other = AlertStore(connect())
    assert claimed(watched.store, 15, ["a", "b", "a"]) == {"a", "b"}
    set_clock(other.connection, (START + timedelta(seconds=14)).isoformat())
    assert claimed(other, 15, ["a"]) == set()
    # who knows one source more keeps nobody from it, nor is kept
    assert claimed(other, 15, ["a", "c"]) == {"c"}
    assert claimed(other, 15, []) == set()
    set_clock(other.connection, (START + timedelta(seconds=15)).isoformat())
    assert claimed(other, 15, ["a", "b", "c"]) == {"a", "b"}
    # a clock that was set back a day
    set_clock(other.connection, (START - timedelta(days=1)).isoformat())
    assert claimed(other, 15, ["a"]) == {"a"}


def test_a_look_that_took_long_says_nothing_of_what_a_later_one_saw(watched: Watched) -> None:
    (slow,) = watched.store.claim_look(0, ["a"])
    watched.at(MINUTE)
    (quick,) = watched.store.claim_look(0, ["a"])
    assert slow.looked_at < quick.looked_at
    watched.store.observe_incidents([], ["a"], HOLD_S, quick.looked_at)
    # it saw what was repaired meanwhile, and what another source has
    late = [seen("orders", "a"), seen("mails", "b")]
    assert watched.store.observe_incidents(late, ["a", "b"], HOLD_S, slow.looked_at) == 1
    assert [each.subject for each in watched.store.open_incidents()] == ["mails"]
    # nor does it end anything
    watched.look("orders", "mails", at=HOUR)
    watched.store.observe_incidents([], ["a"], HOLD_S, quick.looked_at)
    assert [each.missing_since for each in watched.store.open_incidents()] == [None, None]
    # when it is stored does not matter, but when it began
    (slow,) = watched.store.claim_look(0, ["a"])
    watched.at(HOUR + 1)
    (quick,) = watched.store.claim_look(0, ["a"])
    watched.at(HOUR + 2)
    watched.store.observe_incidents([seen("orders"), seen("mails")], ["a"], HOLD_S, slow.looked_at)
    watched.store.observe_incidents([seen("mails")], ["a"], HOLD_S, quick.looked_at)
    assert {each.subject for each in watched.store.open_incidents() if each.missing_since} == {"orders"}
    # after a clock was set back, those of before it are later in vain
    watched.at(-DAY)
    (again,) = watched.store.claim_look(0, ["a"])
    assert watched.store.observe_incidents([seen("new")], ["a"], HOLD_S, again.looked_at) == 3


def test_a_source_that_nobody_asks_for_a_week_is_forgotten_with_what_it_saw(watched: Watched) -> None:
    both = [seen("of both", "store"), seen("of both", "dagster"), seen("of dagster", "dagster")]
    watched.store.observe_incidents(both, ["store", "dagster"], HOLD_S)
    # asked all the time, and it cannot be read: nobody knows that anything is over
    for day in range(20):
        watched.at(day * DAY)
        watched.store.claim_look(15, ["store", "dagster"])
        assert watched.look("of both", sources=("store",)) == 2
    # its DAGSTER_HOME is taken away
    asked_until = 19 * DAY + 15
    assert watched.look("of both", at=asked_until + 7 * DAY, sources=("store",)) == 2
    watched.look("of both", at=asked_until + 7 * DAY + 1, sources=("store",))
    assert {each.subject: each.sources for each in watched.store.open_incidents()} == {
        "of both": ["store"],
        "of dagster": [],
    }
    assert watched.look("of both", at=asked_until + 7 * DAY + HOUR, sources=("store",)) == 1
    assert rows(watched.store.connection, "select source from event_store.alert_sources") == [("store",)]


def test_a_clock_that_is_set_back_holds_nothing_up_for_longer(watched: Watched) -> None:
    now, back = 10 * DAY, 5 * DAY
    watched.look("told", "tried", "held", at=now)
    (tried, *_) = watched.store.claim_alert(LEASE_S)
    watched.store.settle_alert(tried.message_id, tried.lease_token)
    watched.look("told", at=now)
    watched.store.observe_incidents([seen("told"), seen("later", wait_s=HOUR)], ["a"], HOLD_S)
    watched.look("told", "later", at=back)
    open_ones = {each.subject: each for each in watched.store.open_incidents()}
    assert open_ones["tried"].missing_since == START + timedelta(seconds=back)
    assert not open_ones["later"].confirmed
    # what was missing is over when it would have been, and what waits is told when it would have been
    watched.look("told", "later", at=back + HOLD_S - 1)
    assert watched.send() == []
    watched.look("told", "later", at=back + HOLD_S)
    ((phase, subjects),) = watched.send()
    assert (phase, sorted(subjects)) == ("over", ["held", "tried"])
    assert watched.send(at=back + HOUR) == [("began", ["later"])]


def test_what_is_leased_and_waits_ends_as_it_would_have_where_a_look_sees_that_the_clock_was_set_back(
    watched: Watched,
) -> None:
    connection = watched.store.connection
    store, captures, archive = EventStore(connection), CaptureStore(connection), ArchiveStore(connection)
    for view in ("bulk", "rows"):
        register_orders(store).register_view(view, "-infinity", mode=view)
    captures.register_capture("c", "s", "p", [table()])

    def free() -> dict[str, bool]:
        """Take all that can be taken, and undo it."""
        taken = {}
        with connection.transaction(force_rollback=True):
            taken["partition"] = store.claim_batch("bulk", "you") != []
            taken["consumer"] = store.view_info("bulk")[0].consumers == 0
            taken["stream"] = "o-1" in {event.decider_id for event in store.lease_events("rows", 10)}
            taken["archive"] = archive.lock_archive(0, "you")
        try:
            captures.release_capture("c", captures.claim_capture("c", "you", 60).lease_token)
            taken["capture"] = True
        except CaptureInUse:
            taken["capture"] = False
        return taken

    def take() -> None:
        append_to(store, "o-1")
        pump(store, "rows")
        assert store.lease_events("rows", 1, MINUTE)
        assert store.claim_batch("bulk", "me", lease_s=MINUTE)
        store.attach_consumer("bulk", "me", MINUTE)
        captures.claim_capture("c", "me", MINUTE)
        assert archive.lock_archive(0, "me")

    watched.look(at=DAY)
    take()
    watched.look(at=0)
    watched.at(MINUTE - 1)
    assert not any(free().values())
    watched.at(MINUTE)
    assert free() == {"partition": True, "consumer": True, "stream": True, "archive": False, "capture": True}
    watched.at(15 * MINUTE)
    assert free()["archive"]
