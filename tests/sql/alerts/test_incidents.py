"""observe_incidents, claim_alert, settle_alert: from the first look to the last message, by a clock that tests move."""

from datetime import timedelta
from typing import LiteralString
from uuid import uuid4

import pytest

from millrace.resources.alerts.store import AlertStore, ClaimedIncident
from millrace.resources.errors import Malformed
from tests.sql.alerts.watched import DAY, HOLD_S, HOUR, LEASE_S, MINUTE, START, Watched, seen
from tests.support.factories import Connect, buffers, refusal, rows, set_clock, start, terminate, value, wait_blocked


def test_one_message_when_it_begins_and_one_when_it_is_over(watched: Watched) -> None:
    assert watched.look("orders") == 1
    assert watched.send() == [("began", ["orders"])]
    # it is open, and was told
    assert watched.store.alert_state().undelivered_since is None
    for minute in range(1, 10):
        assert watched.look("orders", at=minute * MINUTE) == 1
        assert watched.send() == []
    watched.look(at=10 * MINUTE)
    assert watched.send() == []
    assert watched.look(at=10 * MINUTE + HOLD_S) == 0
    assert watched.send() == [("over", ["orders"])]
    watched.look(at=DAY)
    assert watched.send() == []
    (kept,) = rows(watched.store.connection, "select began_at, over_at, told from event_store.incidents")
    assert kept == (START, START + timedelta(minutes=10), "over")


def test_the_cause_is_the_first_one(watched: Watched) -> None:
    watched.look("orders")
    watched.store.observe_incidents([seen("orders", cause="another one")], ["a"], HOLD_S)
    (claimed,) = watched.store.claim_alert(LEASE_S)
    assert claimed.cause == "first cause of orders"


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


def test_what_comes_back_at_once_was_not_over(watched: Watched) -> None:
    watched.look("orders")
    assert watched.send() == [("began", ["orders"])]
    for minute in range(1, 30):
        watched.look(*(["orders"] if minute % 2 else []), at=minute * MINUTE)
        assert watched.send() == []


def test_the_time_until_it_is_over_doubles_with_each_return_within_two_hours(watched: Watched) -> None:
    now, sent, lasted = 0.0, 0, []
    for _ in range(8):
        watched.look("orders", at=now)
        sent += len(watched.send())
        gone = now + MINUTE
        now = gone
        watched.look(at=now)
        while watched.look(at=now):
            now += 30
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


def test_a_message_has_fifty_incidents_at_most(watched: Watched) -> None:
    watched.look(*(f"view_{n:03}" for n in range(120)))
    sent = watched.send()
    assert [len(subjects) for _, subjects in sent] == [50, 50, 20]
    assert len({subject for _, subjects in sent for subject in subjects}) == 120


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
        now += MINUTE
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


def test_what_is_over_before_it_could_be_told_is_told_from_beginning_to_end(watched: Watched) -> None:
    watched.look("orders")
    assert watched.send(error="HTTP 500") == [("began", ["orders"])]
    watched.look(at=HOUR)
    watched.look(at=2 * HOUR)
    assert watched.send() == [("began", ["orders"]), ("over", ["orders"])]


def test_a_message_that_is_leased_is_nobody_elses_until_its_lease_ends(watched: Watched) -> None:
    watched.look("orders")
    (held,) = watched.store.claim_alert(LEASE_S)
    assert watched.send(at=LEASE_S - 1) == []
    watched.at(LEASE_S)
    (again,) = watched.store.claim_alert(LEASE_S)
    assert (again.message_id, again.incident_id) == (held.message_id, held.incident_id)
    # a failure of before counts for nothing, and a success for all: the receiver was told
    assert not watched.store.settle_alert(held.message_id, held.lease_token, "No answer.")
    assert watched.store.settle_alert(held.message_id, held.lease_token)
    assert not watched.store.settle_alert(again.message_id, again.lease_token)
    assert watched.send(at=HOUR) == []


def test_two_that_claim_at_once_get_a_message_once(watched: Watched, connect: Connect) -> None:
    watched.look("orders")
    first, second = connect(autocommit=False), connect()
    for connection in (first, second):
        set_clock(connection, START.isoformat())
    (claimed,) = AlertStore(first).claim_alert(LEASE_S)
    late = start(lambda: AlertStore(second).claim_alert(LEASE_S))
    wait_blocked(watched.store.connection, second.info.backend_pid)
    first.commit()
    assert late.result() == []
    assert claimed.tries == 1


def test_a_claim_whose_session_is_killed_before_its_commit_leaves_the_message_to_the_next(
    watched: Watched, connect: Connect
) -> None:
    watched.look("orders")
    killed = connect(autocommit=False)
    set_clock(killed, START.isoformat())
    assert AlertStore(killed).claim_alert(LEASE_S)
    terminate(watched.store.connection, killed.info.backend_pid)
    assert watched.send() == [("began", ["orders"])]


def test_nothing_that_is_old_is_kept(watched: Watched) -> None:
    watched.look("orders")
    watched.send()
    watched.look(at=HOUR)
    watched.look(at=2 * HOUR)
    watched.send()
    watched.look(at=29 * DAY)
    count: LiteralString = "select count(*) from event_store.incidents"
    assert value(watched.store.connection, count) == 1
    watched.look(at=32 * DAY)
    assert value(watched.store.connection, count) == 0


def test_a_look_that_finds_nothing_new_writes_no_incident(watched: Watched) -> None:
    watched.look("orders")
    watched.send()
    version: LiteralString = "select xmin::text from event_store.incidents"
    before = rows(watched.store.connection, version)
    watched.look("orders", at=MINUTE)
    assert watched.send() == []
    assert rows(watched.store.connection, version) == before


@pytest.mark.parametrize(
    "found",
    [
        [seen("orders", "unread")],
        [seen("orders", severity="fatal")],
        [seen("orders", wait_s=-1)],
        [seen("x" * 1025)],
        [seen("orders", cause=None)],
        [{}],
    ],
    ids=["source", "severity", "wait", "long", "null", "empty"],
)
def test_an_incident_that_lacks_something_is_refused(watched: Watched, found: list[dict[str, object]]) -> None:
    refusal(Malformed, lambda: watched.store.observe_incidents(found, ["a"], HOLD_S))
    assert watched.store.alert_state().observed_at is None


def test_arguments_out_of_range_are_refused(watched: Watched) -> None:
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
