"""Scheduled events: appended when they are due, unless something came first; moved, cancelled, refused, held."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import LiteralString
from uuid import UUID

from millrace import errors
from millrace.event_store import NewEvent
from millrace.event_store.platform import PlatformStore
from millrace.event_store.status_rows import ScheduledStatistics, WaitingTimers
from tests.support.factories import Connect, append, at_once, purge_all, reading_more, refusal, set_clock, value
from tests.support.logins import Login

DAY = timedelta(days=1)


def fire(store: PlatformStore) -> int:
    """Append all that is due; a slow machine takes several calls."""
    return sum(iter(lambda: store.fire_scheduled_events().done, 0))


def later(store: PlatformStore, days: int) -> None:
    """Move the clock of the store's session, for ever further ahead."""
    now = value(store.connection, "select event_store_private.clock()")
    set_clock(store.connection, str(now + timedelta(days=days, seconds=1)))


def remind(store: PlatformStore, stream: str = "o-1", name: str = "pay", **stated: object) -> UUID:
    event = NewEvent("paid", {"late": True})
    return store.schedule("order", stream, event, name=name, **{"after": DAY, **stated}).event_id  # type: ignore[arg-type]


def events(store: PlatformStore, stream: str = "o-1") -> list[str]:
    return [event.event for event in store.read("order", stream)]


def outcomes(store: PlatformStore, stream: str = "o-1") -> dict[str, str | None]:
    return {each.name: each.outcome for each in store.scheduled_events("order", stream)}


def test_it_is_appended_once_it_is_due_and_not_before(orders: PlatformStore) -> None:
    append(orders, "o-1")
    event_id = remind(orders)
    assert fire(orders) == 0
    assert events(orders) == ["placed"]
    later(orders, 1)
    assert [fire(orders), fire(orders)] == [1, 0]
    stored = [*orders.read("order", "o-1")][1]
    due = value(orders.connection, "select to_jsonb(due_at) #>> '{}' from event_store.scheduled_events")
    assert (stored.event_id, stored.data, stored.metadata) == (event_id, {"late": True}, {"due_at": due})
    assert outcomes(orders) == {"pay": "fired"}


def test_what_it_waits_for_came_first(orders: PlatformStore) -> None:
    append(orders, "o-1")
    append(orders, "o-2", event="paid")
    remind(orders, unless="paid")
    remind(orders, "o-2", unless="paid")  # paid before it was scheduled
    remind(orders, "o-2", name="quiet", unless=1)
    orders.append("order", "o-1", NewEvent("paid"))
    orders.append("order", "o-2", NewEvent("placed"))
    later(orders, 1)
    assert fire(orders) == 3
    assert events(orders) == ["placed", "paid"]
    assert events(orders, "o-2") == ["paid", "placed", "paid"]
    assert (outcomes(orders), outcomes(orders, "o-2")) == ({"pay": "unless"}, {"pay": "fired", "quiet": "unless"})


def test_the_same_again_changes_nothing_and_another_one_moves_it(orders: PlatformStore) -> None:
    append(orders, "o-1")
    first = NewEvent("paid", {"n": 1})
    assert orders.schedule("order", "o-1", first, name="pay", after=DAY).scheduled
    again = orders.schedule("order", "o-1", first, name="pay", after=2 * DAY)
    assert (again.scheduled, again.outcome) == (False, None)
    other = NewEvent("paid", {"n": 2}, event_id=first.event_id, command_id=first.command_id)
    refusal(errors.EventIdReused, lambda: orders.schedule("order", "o-1", other, name="pay", after=DAY))
    moved = orders.schedule("order", "o-1", NewEvent("paid", {"n": 3}), name="pay", after=3 * DAY)
    assert moved.due_at > again.due_at
    later(orders, 2)
    assert fire(orders) == 0
    later(orders, 2)
    assert fire(orders) == 1
    assert [*orders.read("order", "o-1")][1].data == {"n": 3}
    # the name is free, and what fired stays done
    assert orders.schedule("order", "o-1", NewEvent("paid"), name="pay", after=DAY).scheduled


def test_it_is_cancelled_and_closed_streams_and_missing_ones_get_nothing(orders: PlatformStore) -> None:
    append(orders, "o-1")
    append(orders, "closed")
    for stream in ("o-1", "closed", "none"):
        remind(orders, stream)
    remind(orders, "new", opens=True)
    assert [orders.cancel_scheduled("order", "o-1", "pay") for _ in range(2)] == [True, False]
    orders.append("order", "closed", NewEvent("paid", final=True))
    later(orders, 1)
    assert fire(orders) == 3
    found = [outcomes(orders, stream)["pay"] for stream in ("o-1", "closed", "none", "new")]
    assert found == ["cancelled", "closed", "no_stream", "fired"]
    assert [events(orders, stream) for stream in ("o-1", "none", "new")] == [["placed"], [], ["paid"]]


def test_a_lost_right_is_refused_and_tried_again_on_demand(orders: PlatformStore) -> None:
    append(orders, "o-1")
    remind(orders)
    orders.connection.execute("update event_store.scheduled_events set made_by = 'nobody'")
    later(orders, 1)
    assert fire(orders) == 1
    (problem,) = [each for each in orders.standing() if each.kind == "refused_events"]
    assert (problem.subject, "role nobody may not append to decider order" in problem.cause) == ("order", True)
    orders.connection.execute("update event_store.scheduled_events set made_by = 'postgres'")
    assert [orders.retry_scheduled_events("order", reason="again"), fire(orders)] == [1, 1]
    assert events(orders) == ["placed", "paid"]


def test_whether_a_purged_event_came_is_not_guessed(orders: PlatformStore) -> None:
    for _ in range(3):
        orders.append("order", "o-1", NewEvent("placed"))
    remind(orders, unless="paid", since_version=1)
    orders.append("order", "o-2", NewEvent("placed"))
    remind(orders, "o-2", unless="paid")
    purge_all(orders)
    later(orders, 1)
    assert fire(orders) == 2
    assert (outcomes(orders), outcomes(orders, "o-2")) == ({"pay": "refused"}, {"pay": "fired"})


def test_events_come_in_the_order_of_their_times_within_a_stream(orders: PlatformStore, connect: Connect) -> None:
    """A stream that another transaction holds waits, and no other one does."""
    append(orders, "held")
    append(orders, "free")
    for stream in ("held", "free"):
        for number in range(3):
            event = NewEvent("paid", {"n": number})
            orders.schedule("order", stream, event, name=f"{9 - number}", after=DAY + timedelta(seconds=number))
    later(orders, 2)
    with connect(autocommit=False) as other:
        PlatformStore(other).append("order", "held", NewEvent("placed"))
        assert fire(orders) == 3
        assert outcomes(orders, "held") == {"9": None, "8": None, "7": None}
        other.commit()
    later(orders, 1)
    assert fire(orders) == 3
    for stream in ("held", "free"):
        paid = [event.data["n"] for event in orders.read("order", stream) if event.event == "paid"]
        assert paid == [0, 1, 2]


def test_a_clock_that_jumps_and_a_hold_stop_all(orders: PlatformStore) -> None:
    append(orders, "o-1")
    remind(orders)
    first = orders.fire_scheduled_events()
    set_clock(orders.connection, str(first.clock + DAY + timedelta(minutes=3)))
    assert orders.fire_scheduled_events(first.clock + timedelta(seconds=1)).done == 0
    assert orders.fire_scheduled_events().done == 0
    (problem,) = [each for each in orders.standing() if each.kind == "not_fired"]
    assert "held back: the server's clock jumped ahead" in problem.cause
    set_clock(orders.connection, str(first.clock + DAY + timedelta(minutes=9)))
    assert orders.fire_scheduled_events().done == 1


def test_neither_both_nor_none_of_a_scheduled_event_and_what_it_waits_for(
    orders: PlatformStore, connect: Connect
) -> None:
    """The awaited event is appended at the moment at which the other one is due."""
    payer, firing = PlatformStore(connect()), PlatformStore(connect())
    for number in range(100):
        stream = f"race-{number}"
        append(orders, stream)
        orders.schedule("order", stream, NewEvent("paid", {"late": True}), name="pay", after=-DAY, unless="paid")
        pay: Callable[[], object] = partial(payer.append, "order", stream, NewEvent("paid"))
        at_once([pay, firing.fire_scheduled_events])
    fire(orders)
    for number in range(100):
        stream = f"race-{number}"
        late = [event.data == {"late": True} for event in orders.read("order", stream) if event.event == "paid"]
        # the awaited one is always there; the late one only where it came first
        assert late in ([False], [True, False]), stream
        assert outcomes(orders, stream)["pay"] == ("fired" if True in late else "unless")


def test_many_events_of_one_role_delay_no_other_roles(orders: PlatformStore, login: Login) -> None:
    service = PlatformStore(login("event_store_writer"))
    append(orders, "o-1")
    append(orders, "o-2")
    for number in range(300):
        remind(orders, name=f"{number}", after=-DAY)
    remind(service, "o-2", after=timedelta(0))
    # each call draws a role: thirty would have to draw the same one
    while outcomes(orders, "o-2") == {"pay": None}:
        assert orders.fire_scheduled_events(limit=10).done
    assert len(events(orders)) < 300


def test_a_copy_of_the_database_holds_them_until_an_operator_resumes(orders: PlatformStore) -> None:
    append(orders, "o-1")
    # a dump has another database, logical replication leads to another cluster
    for other in ("database = 1", "cluster = 1"):
        remind(orders, after=-DAY)
        orders.connection.execute(f"update event_store.schedule set {other}".encode())
        assert fire(orders) == 0
        orders.hold_scheduled_events(None, "it is the store now")
        assert fire(orders) == 1


def test_what_waits_and_how_late_it_comes_is_counted(orders: PlatformStore) -> None:
    assert orders.scheduled_statistics() == ScheduledStatistics(0, None, 0, None)
    append(orders, "o-1")
    append(orders, "o-2")
    remind(orders, "o-2", name="refused", after=-DAY)
    for name, after in (("late", timedelta(seconds=1)), ("pay", DAY), ("cancelled", DAY)):
        remind(orders, name=name, after=after)
    append(orders, "i-1", decider="invoice")
    for stream in ("i-1", "i-2"):
        orders.schedule("invoice", stream, NewEvent("paid"), name="pay", after=2 * DAY)
    orders.connection.execute("update event_store.scheduled_events set made_by = 'nobody' where name = 'refused'")
    orders.cancel_scheduled("order", "o-1", "cancelled")
    due = value(orders.connection, "select due_at from event_store.scheduled_events where name = 'late'")
    set_clock(orders.connection, str(due + timedelta(seconds=9)))
    assert fire(orders) == 2
    (pay,) = [each for each in orders.scheduled_events("order", "o-1") if each.name == "pay"]
    assert orders.scheduled_statistics() == ScheduledStatistics(3, pay.due_at, 1, 9)
    assert orders.waiting_timers("order") == [WaitingTimers("pay", 1, pay.due_at)]
    assert [(each.name, each.waiting) for each in orders.waiting_timers("invoice")] == [("pay", 2)]


def test_what_is_done_goes_after_a_week_and_what_was_refused_stays(orders: PlatformStore) -> None:
    for name in ("fires", "refused"):
        append(orders, name)
        remind(orders, name, name, after=-DAY)
    orders.connection.execute("update event_store.scheduled_events set made_by = 'nobody' where name = 'refused'")
    assert fire(orders) == 2
    later(orders, 8)
    assert fire(orders) == 0
    assert (outcomes(orders, "fires"), outcomes(orders, "refused")) == ({}, {"refused": "refused"})


def test_a_later_event_of_a_stream_waits_for_the_one_that_is_tried_again(
    orders: PlatformStore, connect: Connect
) -> None:
    append(orders, "o-1")
    start = value(orders.connection, "select event_store_private.clock()")
    for number in range(2):
        at = start + timedelta(seconds=0.5 * number)
        orders.schedule("order", "o-1", NewEvent("paid", {"n": number}), name=f"{9 - number}", at=at)
    with connect(autocommit=False) as other:
        PlatformStore(other).append("order", "o-1", NewEvent("placed"))
        set_clock(orders.connection, str(start))
        assert fire(orders) == 0
        other.commit()
    for seconds, fired in ((0.7, 0), (60, 2)):
        set_clock(orders.connection, str(start + timedelta(seconds=seconds)))
        assert fire(orders) == fired
    assert [event.data["n"] for event in orders.read("order", "o-1") if event.event == "paid"] == [0, 1]


def test_no_call_reads_more_pages_where_many_wait(orders: PlatformStore) -> None:
    append(orders, "o-1")
    for name in ("first", "second"):
        remind(orders, name=name, after=-DAY)
    orders.connection.execute(
        """
        insert into event_store.scheduled_events
        select (jsonb_populate_record(s, jsonb_build_object(
          'name', n, 'decider_id', case when n % 2 = 0 then 'o-1' else n::text end, 'due_at', s.due_at + interval '9 days',
          'next_at', s.due_at + interval '9 days'
        ))).*
        from event_store.scheduled_events s, generate_series(1, 10000) n
        where s.name = 'first'
        """
    )
    most: dict[LiteralString, int] = {
        "select event_store_platform.fire_scheduled_events(1)": 200,
        "select event_store.cancel_scheduled_event('order', 'o-1', '70')": 50,
        "select event_store.scheduled_events_of('order', '77')": 20,
        "select event_store.scheduled_events_of('order', null, 10)": 50,
    }
    assert reading_more(orders.connection, most) == {}
    assert events(orders) == ["placed", "paid", "paid"]


def test_one_is_appended_however_long_the_look_for_it_takes(orders: PlatformStore) -> None:
    orders.connection.execute(
        "create or replace function event_store_private.held_because() returns text language sql volatile"
        " as 'select null::text from pg_sleep(0.06)'"
    )
    append(orders, "o-1")
    for number in range(2):
        remind(orders, name=f"{number}", after=-DAY)
    assert [orders.fire_scheduled_events().done for _ in range(3)] == [1, 1, 0]


def test_what_no_event_can_wait_for_is_refused(orders: PlatformStore) -> None:
    refusal(errors.Malformed, lambda: remind(orders, since_version=1))
    refusal(errors.EventNotRegistered, lambda: remind(orders, unless="nothing"))


def test_a_moved_event_is_as_if_it_were_new(orders: PlatformStore, login: Login) -> None:
    """Its role, the version that it counts from, and its tries."""
    service = PlatformStore(login("event_store_writer"))
    append(orders, "o-1")
    remind(orders, unless="paid")
    orders.connection.execute("update event_store.scheduled_events set tries = 5, last_error = 'locked'")
    orders.append("order", "o-1", NewEvent("paid"))
    remind(service, unless="paid")
    (found,) = orders.scheduled_events("order", "o-1")
    assert (found.made_by, found.tries, found.last_error) == (service.connection.info.user, 0, None)
    later(orders, 1)
    assert fire(orders) == 1
    assert outcomes(orders) == {"pay": "fired"}


def test_it_comes_in_the_newest_version_and_up_to_as_many_events(orders: PlatformStore) -> None:
    append(orders, "o-1")
    remind(orders, unless=1)
    orders.register_event_upcast("order", "paid", 2, [{"move": "rename", "path": ["late"], "to": ["is_late"]}])
    later(orders, 1)
    assert fire(orders) == 1
    stored = [*orders.read("order", "o-1")][1]
    assert (stored.event_version, stored.data) == (2, {"is_late": True})


def test_another_roles_decider_gets_nothing_and_loses_nothing(orders: PlatformStore, login: Login) -> None:
    service, other = PlatformStore(login("event_store_writer")), PlatformStore(login("event_store_writer"))
    for store, stream in ((service, "o-1"), (other, "o-2")):
        append(orders, stream)
        remind(store, stream)
    orders.set_decider_owner("order", service.connection.info.user)
    refusal(errors.NotDeciderOwner, lambda: other.cancel_scheduled("order", "o-1", "pay"))
    later(orders, 1)
    assert fire(orders) == 2
    assert (outcomes(orders), outcomes(orders, "o-2")) == ({"pay": "fired"}, {"pay": "refused"})


def test_a_stream_that_stays_locked_is_tried_ever_more_rarely(orders: PlatformStore, connect: Connect) -> None:
    append(orders, "o-1")
    remind(orders)
    orders.connection.execute("update event_store.scheduled_events set tries = 3")
    later(orders, 1)
    with connect(autocommit=False) as other:
        PlatformStore(other).append("order", "o-1", NewEvent("placed"))
        assert fire(orders) == 0
    wait = value(orders.connection, "select next_at - event_store_private.clock() from event_store.scheduled_events")
    assert wait == timedelta(seconds=8)


def test_a_retry_and_a_list_are_of_what_is_named(orders: PlatformStore) -> None:
    for decider in ("order", "invoice"):
        orders.append(decider, "o-1", NewEvent("placed"))
        orders.schedule(decider, "o-1", NewEvent("paid"), name="pay", after=DAY)
    orders.connection.execute("update event_store.scheduled_events set made_by = 'nobody', tries = 5")
    later(orders, 1)
    assert fire(orders) == 2
    assert orders.retry_scheduled_events("invoice", reason="again") == 1
    assert [each.tries for each in orders.scheduled_events("invoice", "o-1")] == [0]
    assert outcomes(orders) == {"pay": "refused"}
    assert orders.cancel_scheduled("order", "o-1", "pay")
    assert [each.decider for each in orders.scheduled_events()] == ["invoice"]
