"""Who looks at which source of incidents, and what becomes of them where it is not read, or the clock is set back."""

from datetime import timedelta

from millrace.resources.alerts.store import AlertStore
from tests.sql.alerts.watched import DAY, HOLD_S, HOUR, LEASE_S, MINUTE, START, Watched, seen
from tests.support.factories import Connect, rows, set_clock


def test_a_source_that_is_not_read_ends_nothing(watched: Watched) -> None:
    watched.look("orders", sources=("dagster",))
    assert watched.send() == [("began", ["orders"])]
    for hour in range(1, 10):
        assert watched.look(at=hour * HOUR, sources=("store",)) == 1
    assert watched.send() == []
    watched.look(at=10 * HOUR, sources=("store", "dagster"))
    watched.look(at=11 * HOUR, sources=("store", "dagster"))
    assert watched.send() == [("over", ["orders"])]


def test_what_two_sources_see_is_over_when_neither_does(watched: Watched) -> None:
    both = [seen("orders", "store"), seen("orders", "dagster")]
    assert watched.store.observe_incidents(both, ["store", "dagster"], HOLD_S) == 1
    assert watched.send() == [("began", ["orders"])]
    # one of them sees it no more, the other one is not read
    assert watched.look(at=HOUR, sources=("store",)) == 1
    assert watched.look(at=2 * HOUR, sources=("store",)) == 1
    (open_one,) = watched.store.open_incidents()
    assert (open_one.sources, open_one.missing_since) == (["dagster"], None)
    watched.look(at=3 * HOUR, sources=("dagster",))
    assert watched.look(at=4 * HOUR, sources=("store",)) == 0


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


def test_a_lease_of_before_a_clock_was_set_back_ends_as_it_would_have(watched: Watched) -> None:
    watched.look("orders", at=DAY)
    (held,) = watched.store.claim_alert(LEASE_S)
    watched.look("orders", at=0)
    assert watched.send(at=LEASE_S - 1) == []
    watched.at(LEASE_S)
    (again,) = watched.store.claim_alert(LEASE_S)
    assert again.message_id == held.message_id
