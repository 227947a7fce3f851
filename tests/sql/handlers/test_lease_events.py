"""Fenced deliveries: each has a token, and a late answer does not count."""

from collections.abc import Callable, Iterator
from functools import partial
from uuid import uuid4

from millrace.errors import NotInFlight
from millrace.event_store import Delivery
from millrace.event_store.platform import PlatformStore
from tests.sql.handlers.test_answers import locks
from tests.support import factories
from tests.support.factories import Connect
from tests.support.patience import patience

Answer = Callable[[PlatformStore, Delivery, int | None], object]

ANSWERS: dict[str, Answer] = {
    "ack_event": lambda s, e, token: s.ack_event("v", e.decider_id, e.offset, token),
    "nack_event": lambda s, e, token: s.nack_event("v", e.decider_id, e.offset, token),
    "schedule_nack_event": lambda s, e, token: s.schedule_nack_event("v", e.decider_id, 1000, e.offset, token),
    "fail_event": lambda s, e, token: s.fail_event("v", e.decider_id, e.offset, "late", token),
    "extend_lock": lambda s, e, token: s.extend_lock("v", e.decider_id, e.offset, 60, token),
}


def settle(store: PlatformStore) -> None:
    """Let every lock and backoff end, acknowledge the rest, and return to the wall clock."""
    factories.set_clock(store.connection, "2040-01-01 00:00:00+00")
    while events := store.lease_events("v", 100, 1):
        store.ack_events("v", [event.offset for event in events], [event.lease_token for event in events])
    factories.set_clock(store.connection, "")


def each_answer(store: PlatformStore, **more: Answer) -> Iterator[tuple[str, Answer]]:
    """Yield each answer, with a new stream that has one event to deliver."""
    for name, answer in {**ANSWERS, **more}.items():
        settle(store)
        factories.pump(store, "v", name)
        yield name, answer


def test_a_late_answer_changes_nothing_and_the_new_holders_counts(view: PlatformStore, connect: Connect) -> None:
    for with_token in (True, False):
        for name, answer in each_answer(view):
            holder, third = PlatformStore(connect()), PlatformStore(connect())
            late, held = factories.take_over(view, holder)
            before = locks(view)
            refused = factories.refusal(NotInFlight, partial(answer, view, late, late.lease_token))
            assert f"in flight {held.offset} for another consumer" in str(refused.detail)
            # without its offset too: the event in flight now was never delivered to the late consumer
            factories.refusal(NotInFlight, partial(view.nack_event, "v", name, None, late.lease_token))
            factories.refusal(NotInFlight, partial(view.schedule_nack_event, "v", name, 0, None, late.lease_token))
            assert view.ack_events("v", [late.offset], [late.lease_token]) == set()
            assert locks(view) == before
            # behind a connection pool a session does not identify the consumer
            factories.set_clock(third.connection, "2030-01-01 00:10:59+00")
            assert answer(third, held, held.lease_token if with_token else None), name


def test_after_the_lock_ended_an_answer_needs_its_token(view: PlatformStore) -> None:
    for name, answer in each_answer(view):
        factories.set_clock(view.connection, "2030-01-01 00:00:00+00")
        (event,) = view.lease_events("v", 1, 60)
        before = locks(view)
        for token in (event.lease_token + 1, 0, -1, 2**63 - 1):  # tokens never issued
            refused = factories.refusal(NotInFlight, partial(answer, view, event, token))
            assert f"lease token {token}" in str(refused.detail)
        factories.set_clock(view.connection, "2030-01-01 00:01:00+00")
        refused = factories.refusal(NotInFlight, partial(answer, view, event, None))
        assert "but its lock ended at 2030-01-01 00:01:00" in str(refused.detail)
        assert locks(view) == before
        factories.set_clock(view.connection, "2030-01-02 00:00:00+00")
        assert answer(view, event, event.lease_token), name


def test_an_answer_during_a_takeover_counts_only_if_that_is_rolled_back(view: PlatformStore, connect: Connect) -> None:
    for ends in ("commit", "rollback"):
        for _, answer in each_answer(view):
            former, holder = PlatformStore(connect()), PlatformStore(connect(autocommit=False))
            factories.set_clock(former.connection, "2030-01-01 00:00:00+00")
            (late,) = former.lease_events("v", 1, 60)
            factories.set_clock(holder.connection, "2030-01-01 00:01:00+00")
            holder.connection.commit()
            (held,) = holder.lease_events("v", 1, 60)
            answered = factories.start_blocked(view, former, partial(answer, former, late, late.lease_token))
            if ends == "commit":
                holder.connection.commit()
                factories.refusal(NotInFlight, partial(answered.result, patience()))
                holder.ack_event("v", late.decider_id, held.offset)
                holder.connection.commit()
            else:
                holder.connection.rollback()
                assert answered.result(patience())


def test_an_event_that_its_consumers_die_of_is_parked_after_max_attempts(view: PlatformStore, connect: Connect) -> None:
    view.register_view("v", max_attempts=3)
    factories.pump(view, "v", "poison", "poison", "other")
    for attempt in (1, 2, 3):
        consumer = connect()
        factories.set_clock(consumer, f"2030-01-0{attempt} 00:00:00+00")
        events = {event.decider_id: event for event in PlatformStore(consumer).lease_events("v", 10, 60)}
        event = events.pop("poison")
        assert event.attempt == attempt
        for other in events.values():
            PlatformStore(consumer).ack_event("v", other.decider_id, other.offset, other.lease_token)
        factories.terminate(view.connection, consumer.info.backend_pid)
        factories.pump(view, "v", "other")
    factories.set_clock(view.connection, "2030-01-04 00:00:00+00")
    assert [event.decider_id for event in view.lease_events("v", 10)] == ["other"]
    (letter,) = view.dead_letters("v")
    assert (letter.decider_id, letter.offset, letter.attempts, letter.waiting) == ("poison", event.offset, 3, 2)
    assert letter.last_error == "The lock ended without an answer, at delivery 3."
    refused = factories.refusal(NotInFlight, lambda: view.ack_event("v", "poison", event.offset, event.lease_token))
    assert "parked" in str(refused.detail)


def test_of_what_is_leased_ahead_a_delivery_begun_is_an_attempt(view: PlatformStore) -> None:
    view.register_view("v", max_attempts=2)
    factories.pump(view, "v", "poison", "innocent")

    def leased(day: int) -> dict[str, Delivery]:
        """Lease all free events, a day after the earlier locks have ended."""
        factories.set_clock(view.connection, f"2030-01-0{day} 00:00:00+00")
        return {event.decider_id: event for event in view.lease_events("v", 10, 60, ahead=True)}

    def said(events: dict[str, Delivery]) -> dict[str, tuple[int, bool]]:
        return {stream: (event.attempt, event.suspect) for stream, event in events.items()}

    assert said(leased(1)) == {"poison": (1, False), "innocent": (1, False)}
    for day, attempt in ((2, 1), (3, 1), (4, 2)):
        events = leased(day)
        assert said(events) == {"poison": (attempt, True), "innocent": (1, True)}
        if day > 2:
            # twice, as if the answer to the first call were lost
            for _ in range(2):
                view.extend_lock("v", "poison", events["poison"].offset, 60, events["poison"].lease_token)
    events = leased(5)
    assert said(events) == {"innocent": (1, True)}
    (letter,) = view.dead_letters("v")
    assert (letter.decider_id, letter.attempts) == ("poison", 2)

    view.fail_event("v", "innocent", events["innocent"].offset, "no such customer", events["innocent"].lease_token)
    assert said(leased(6)) == {"innocent": (2, False)}
    # an expired lock does not use up its last attempt either
    events = leased(7)
    assert said(events) == {"innocent": (2, True)}
    view.nack_event("v", "innocent", events["innocent"].offset, events["innocent"].lease_token)
    # leased by a caller that handles its leases at once, it counts as an attempt
    (event,) = view.lease_events("v")
    assert (event.attempt, event.suspect) == (2, False)
    assert leased(8) == {}
    assert len(view.dead_letters("v")) == 2


def test_a_dead_letter_says_what_failed_before_its_last_consumer_died(view: PlatformStore) -> None:
    view.register_view("v", max_attempts=2)
    factories.pump(view, "v", "a")
    for day in (1, 2, 3):
        factories.set_clock(view.connection, f"2030-01-0{day} 00:00:00+00")
        for event in view.lease_events("v", 1, 60):
            if day == 1:
                view.fail_event("v", "a", event.offset, "no such customer", event.lease_token)
    (letter,) = view.dead_letters("v")
    assert letter.last_error == "The lock ended without an answer, at delivery 2. Before that: no such customer"


def test_a_stream_that_is_parked_leaves_its_turn_to_the_next(view: PlatformStore) -> None:
    view.register_view("v", max_attempts=1)
    factories.pump(view, "v", "dies", "waits")
    factories.set_clock(view.connection, "2030-01-01 00:00:00+00")
    view.lease_events("v", 2, 60)
    factories.set_clock(view.connection, "2030-01-01 00:01:00+00")
    factories.pump(view, "v", "new")
    # an empty answer would tell the consumer that no event is due
    assert [event.decider_id for event in view.lease_events("v", 1)] == ["new"]
    assert len(view.dead_letters("v")) == 2


def test_a_session_killed_in_its_answer_changes_nothing(view: PlatformStore, connect: Connect) -> None:
    many: Answer = lambda store, event, token: store.ack_events("v", [event.offset], [token or 0])  # noqa: E731
    for _, answer in each_answer(view, ack_events=many):
        consumer, gate = connect(), connect(autocommit=False)
        (event,) = PlatformStore(consumer).lease_events("v")
        before = locks(view)
        gate.execute("select from event_store.stream_locks for update")
        answered = factories.start_blocked(
            view, consumer, partial(answer, PlatformStore(consumer), event, event.lease_token)
        )
        factories.terminate(view.connection, consumer.info.backend_pid)
        assert answered.exception(patience()) is not None
        gate.rollback()
        assert locks(view) == before
        assert answer(view, event, event.lease_token)


def test_an_answer_that_is_given_twice_at_once_counts_once(view: PlatformStore, connect: Connect) -> None:
    for answer in (ANSWERS["ack_event"], ANSWERS["nack_event"], ANSWERS["fail_event"]):
        factories.append(view, decider_id := str(uuid4()))
        factories.pump(view, "v")
        (event,) = [e for e in view.lease_events("v", 100) if e.decider_id == decider_id]
        stores = [PlatformStore(connect()) for _ in range(3)]
        results = factories.at_once([partial(answer, s, event, event.lease_token) for s in stores])
        errors = [result.exception() for result in results]
        assert sorted(type(error).__name__ for error in errors) == ["NoneType", "NotInFlight", "NotInFlight"]
