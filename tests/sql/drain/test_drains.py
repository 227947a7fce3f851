"""The store's records of drains: owner, whether it is alive, outcomes of tries, and the earliest next start."""

from collections import Counter
from functools import partial

import pytest

from millrace.capture.store import CaptureStore
from millrace.event_store import DrainState
from millrace.event_store.platform import PlatformStore
from tests.support.capturing.captures import table
from tests.support.factories import Connect, at_once, rows, set_clock, start, terminate, value, wait_blocked
from tests.support.logins import Login


@pytest.fixture
def drains(store: PlatformStore) -> PlatformStore:
    store.register_view("v", "-infinity", mode="bulk")
    set_clock(store.connection, "2030-01-01 00:00:00+00")
    return store


def pass_time(store: PlatformStore, seconds: float) -> None:
    later = value(store.connection, "select event_store_private.clock() + make_interval(secs => %s)", seconds)
    set_clock(store.connection, str(later))


def of(store: PlatformStore, drain: str = "v") -> DrainState:
    return store.drain_states(drain)[drain]


def test_one_who_asks_gets_a_drain_and_the_next_one_when_that_has_ended(drains: PlatformStore) -> None:
    assert of(drains) == DrainState("v")
    assert drains.begin_drain("v")
    # each name is a drain of its own, with or without a view
    assert drains.begin_drain("")
    pass_time(drains, 7)
    assert not drains.begin_drain("v")
    assert of(drains) == DrainState("v", since_s=7.0)
    assert drains.begin_drain("v", "run")
    assert drains.begin_drain("v", "run")
    assert not drains.begin_drain("v")
    assert not drains.begin_drain("v", "another run")
    assert of(drains) == DrainState("v", "run", since_s=0.0)
    drains.end_drain("v", "run")
    pass_time(drains, 3)
    assert of(drains) == DrainState("v", ended_s=3.0)
    assert list(drains.drain_states("", "v", "x")) == ["", "v", "x"]
    assert drains.begin_drain("v")
    # a run started by hand needs no request
    assert drains.begin_drain("by hand", "run")
    assert not drains.begin_drain("by hand")


def test_failures_count_and_the_next_try_waits_until_one_ends_well(drains: PlatformStore) -> None:
    for failures, wait_s in enumerate((5, 10, 20, 40, 60, 60), start=1):
        assert drains.begin_drain("v")
        drains.begin_drain("v", "run")
        drains.end_drain("v", "run", "a bad value" + "!" * 1000)
        state = of(drains)
        assert (state.failures, state.wait_s, state.since_s) == (failures, wait_s, None)
        assert (state.error or "").startswith("a bad value!")
        assert len(state.error or "") == 500
        pass_time(drains, wait_s - 1)
        assert not drains.begin_drain("v")
        pass_time(drains, 1)
    # a run started by hand does not wait for the backoff
    drains.end_drain("v", "run", "no")
    assert drains.begin_drain("v", "by hand")
    drains.end_drain("v", "by hand")
    assert of(drains) == DrainState("v", ended_s=0.0)


# its run died before it began, or before it was attached, or could not start
@pytest.mark.parametrize(("owner", "in_time_s"), [("", 30), ("run", 120)])
def test_a_drain_that_attaches_to_nothing_in_time_failed(drains: PlatformStore, owner: str, in_time_s: int) -> None:
    assert drains.begin_drain("v")
    assert not owner or drains.begin_drain("v", owner)
    pass_time(drains, in_time_s - 1)
    assert of(drains).since_s == in_time_s - 1
    assert not drains.begin_drain("v")
    pass_time(drains, 1)
    assert of(drains) == DrainState("v", failures=1, error="Its run died, or did not begin in time.", ended_s=in_time_s)
    # the failure is counted once
    assert drains.begin_drain("v")
    assert (of(drains).failures, of(drains).since_s) == (1, 0.0)
    # a run that begins late gets the drain nevertheless
    assert drains.begin_drain("v", "run")
    drains.end_drain("v", "run")
    assert of(drains) == DrainState("v", ended_s=0.0)


def test_a_drain_lives_while_its_session_does_and_is_dead_at_once_without(
    drains: PlatformStore, connect: Connect
) -> None:
    drains.begin_drain("v", "run")
    connection = connect()
    set_clock(connection, "2030-01-01 00:00:00+00")
    run = PlatformStore(connection)
    run.attach_consumer("v", "run", 3600)
    pass_time(drains, 3000)
    assert of(drains) == DrainState("v", "run", since_s=3000.0, lives=True)
    assert not drains.begin_drain("v")
    terminate(drains.connection, connection.info.backend_pid)
    assert (of(drains).lives, of(drains).since_s, of(drains).failures) == (False, None, 1)
    assert drains.begin_drain("v")
    # attachments of the dead drain do not count for the next one
    assert of(drains) == DrainState("v", "run", since_s=0.0, failures=1, error=of(drains).error, ended_s=3000.0)


def test_a_consumer_of_another_view_says_nothing_of_a_drain(drains: PlatformStore, login: Login) -> None:
    set_clock(drains.connection, "")
    drains.begin_drain("v", "run")
    evil = PlatformStore(login("event_store_consumer"))
    evil.register_view("evil")
    evil.attach_consumer("evil", "run", 3600)
    assert not of(drains).lives
    # a drain that is not attached yet is not one that has lost its attachment
    evil.attach_consumer("evil", "run", 1)
    pass_time(drains, 2)
    assert of(drains).failures == 0


def test_a_drain_has_time_to_come_back_after_a_restart_of_the_server(drains: PlatformStore, connect: Connect) -> None:
    before = value(drains.connection, "select (pg_postmaster_start_time() - interval '10 s')::text")
    set_clock(drains.connection, before)
    drains.begin_drain("v", "run")
    lost = connect()
    set_clock(lost, before)
    PlatformStore(lost).attach_consumer("v", "run")
    terminate(drains.connection, lost.info.backend_pid)
    pass_time(drains, 129)
    assert (of(drains).lives, of(drains).since_s, of(drains).failures) == (False, 129.0, 0)
    assert not drains.begin_drain("v")
    assert not drains.begin_drain("v", "another run")
    pass_time(drains, 1)
    assert (of(drains).since_s, of(drains).failures) == (None, 1)
    assert drains.begin_drain("v")


def test_a_drain_that_lost_its_connection_and_comes_back_keeps_its_place(
    drains: PlatformStore, connect: Connect
) -> None:
    # the view of a read model
    drains.register_view("m", "-infinity", mode="bulk", owner="event_store_owner")
    drains.begin_drain("", "old")
    lost = connect()
    PlatformStore(lost).attach_consumer("m", "old")
    terminate(drains.connection, lost.info.backend_pid)
    pass_time(drains, 5)
    assert drains.begin_drain("")
    drains.attach_consumer("m", "old")
    assert of(drains, "").lives
    assert not drains.begin_drain("", "new")
    # once the old run is detached, the new run gets the drain
    drains.detach_consumer("m", "old")
    assert drains.begin_drain("", "new")
    # the end of the old run does not end the new one
    drains.end_drain("", "old")
    assert of(drains, "") == DrainState("", "new", since_s=0.0, ended_s=0.0)


def test_a_capture_lives_while_it_holds_its_lease(drains: PlatformStore) -> None:
    captures = CaptureStore(drains.connection)
    captures.register_capture("c", "slot_c", "pub_c", [table()])
    drains.begin_drain("c", "run")
    captures.claim_capture("c", "run", 60)
    pass_time(drains, 59)
    assert of(drains, "c").lives
    pass_time(drains, 1)
    assert (of(drains, "c").lives, of(drains, "c").failures) == (False, 1)


def test_the_drain_of_all_views_says_how_a_view_went_and_ends_no_own_one(drains: PlatformStore) -> None:
    drains.begin_drain("v")
    drains.end_drain("v", "shared")
    assert of(drains).since_s == 0.0
    drains.begin_drain("v", "own")
    drains.end_drain("v", "shared", "too slow")
    assert of(drains) == DrainState("v", "own", since_s=0.0, failures=1, error="too slow", wait_s=5.0, ended_s=0.0)
    drains.end_drain("v", "shared")
    assert of(drains) == DrainState("v", "own", since_s=0.0, ended_s=0.0)


def test_of_two_who_ask_at_once_one_gets_it(drains: PlatformStore, connect: Connect) -> None:
    drains.end_drain("v", "nobody")
    holder, *askers = connect(autocommit=False), connect(), connect()
    holder.execute("select from event_store.drains for update")
    asked = [start(partial(PlatformStore(each).begin_drain, "v")) for each in askers]
    for each in askers:
        wait_blocked(drains.connection, each.info.backend_pid)
    holder.commit()
    assert Counter(each.result() for each in asked) == {True: 1, False: 1}


def test_of_many_who_ask_at_once_one_gets_it(connect: Connect) -> None:
    sensors = [PlatformStore(connect()) for _ in range(4)]
    for drain in map(str, range(20)):
        answers = at_once([partial(sensor.begin_drain, drain) for sensor in sensors])
        assert Counter(each.result() for each in answers) == {True: 1, False: 3}


def test_what_is_known_of_a_views_drain_goes_with_the_view(drains: PlatformStore) -> None:
    drains.begin_drain("v")
    drains.unregister_view("v")
    assert rows(drains.connection, "select * from event_store.drains") == []
    assert value(drains.connection, "select count(*) from event_store_platform.drain_states('{v}')") == 1
