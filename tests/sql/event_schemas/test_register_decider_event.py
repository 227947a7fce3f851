"""Registering the events that a decider may append: one, or many at once."""

from functools import partial

from millrace.errors import NotDeciderOwner
from millrace.event_store import DeciderEvent
from millrace.event_store.platform import PlatformStore
from tests.support.factories import Connect, append, at_once, refusal, start_blocked, value
from tests.support.patience import patience

MANY = [
    DeciderEvent(decider, event, 1, f"{decider} {event}") for decider in ("order", "invoice") for event in ("a", "b")
]


def registered(store: PlatformStore) -> int:
    return int(value(store.connection, "select count(*) from event_store.deciders"))


def test_to_register_again_is_a_no_op(store: PlatformStore) -> None:
    first = store.register_decider_event("order", "placed", "first")
    assert first == DeciderEvent("order", "placed", 1, "first")
    assert append(store).event_version == 1
    assert store.register_decider_event("order", "placed", "second") == first
    assert registered(store) == 1
    # versions are registered side by side
    assert store.register_decider_event("order", "placed", "two", 2).event_version == 2
    assert registered(store) == 2


def test_registering_at_once_registers_once(store: PlatformStore, connect: Connect) -> None:
    stores = [PlatformStore(connect()) for _ in range(4)]
    results = at_once([partial(s.register_decider_event, "order", "placed", "x") for s in stores])
    assert {result.result() for result in results} == {DeciderEvent("order", "placed", 1, "x")}
    first, second = connect(autocommit=False), connect()
    PlatformStore(first).register_decider_event("order", "paid", "first")
    # registering a known event never waits
    assert PlatformStore(connect()).register_decider_event("order", "placed", "y").description == "x"
    late = start_blocked(store, second, lambda: PlatformStore(second).register_decider_event("order", "paid", "second"))
    first.commit()
    assert late.result(patience()).description == "first"


def test_many_are_returned_in_the_order_given_and_what_is_there_stays(store: PlatformStore) -> None:
    store.register_decider_event("order", "a", "first")
    many = [DeciderEvent("order", "a", 1, "first"), *MANY[1:]]
    assert store.register_decider_events(MANY) == many
    assert store.register_decider_events(reversed(MANY)) == many[::-1]
    assert registered(store) == 4
    assert append(store, event="b").event == "b"


def test_the_version_is_1_if_it_is_left_out(store: PlatformStore) -> None:
    store.connection.execute(
        """select event_store.register_decider_events('[
          {"decider": "d", "event": "e", "description": "one"}, {"decider": "d", "event": "e", "description": "two", "event_version": 2}
        ]')"""
    )
    assert value(store.connection, "select array_agg(event_version order by 1) from event_store.deciders") == [1, 2]


def test_the_owner_is_that_of_all(store: PlatformStore) -> None:
    store.register_decider_events(MANY, "event_store_owner")
    owners = value(store.connection, "select array_agg(distinct owner) from event_store.deciders")
    assert owners == ["event_store_owner"]
    refusal(NotDeciderOwner, lambda: store.register_decider_events(MANY, "event_store_writer"))


def test_registrations_in_opposite_order_do_not_deadlock(store: PlatformStore, connect: Connect) -> None:
    for done in at_once(
        partial(PlatformStore(connect()).register_decider_events, order) for order in (MANY, MANY[::-1]) * 2
    ):
        assert len(done.result(patience())) == 4
    assert registered(store) == 4
