"""Registering many events at once."""

from functools import partial

import pytest
from psycopg.types.json import Jsonb

from millrace.resources.errors import Malformed, NotDeciderOwner
from millrace.resources.event_store import DeciderEvent, EventStore, Json
from millrace.resources.event_store.refusals import refusals
from tests.support.factories import Connect, append, at_once, refusal, value

MANY = [
    DeciderEvent(decider, event, 1, f"{decider} {event}") for decider in ("order", "invoice") for event in ("a", "b")
]


def registered(store: EventStore) -> int:
    return int(value(store.connection, "select count(*) from event_store.deciders"))


def test_many_are_registered_and_returned_in_the_order_given(store: EventStore) -> None:
    assert store.register_decider_events(MANY) == MANY
    assert store.register_decider_events(reversed(MANY)) == MANY[::-1]
    assert registered(store) == 4
    assert append(store, event="b").event == "b"


def test_what_is_registered_stays_as_it_is_and_the_rest_is_added(store: EventStore) -> None:
    store.register_decider_event("order", "a", "first")
    assert [event.description for event in store.register_decider_events(MANY)] == [
        "first",
        "order b",
        "invoice a",
        "invoice b",
    ]


def test_the_version_is_1_if_it_is_left_out(store: EventStore) -> None:
    store.connection.execute(
        """select event_store.register_decider_events('[
          {"decider": "d", "event": "e", "description": "one"}, {"decider": "d", "event": "e", "description": "two", "event_version": 2}
        ]')"""
    )
    assert value(store.connection, "select array_agg(event_version order by 1) from event_store.deciders") == [1, 2]


@pytest.mark.parametrize(
    "last",
    [
        {"decider": "d", "event": "", "description": "x"},
        {"decider": "d", "event": "e"},
        {"decider": "d", "event": "e", "description": "x", "version": 2},
        {"decider": "d", "event": "e", "description": "x", "event_version": "two"},
        {"decider": "d", "event": "e", "description": "x", "event_version": 1.5},
        {"decider": "d", "event": "e", "description": "x", "event_version": 1e30},
        {"decider": "d" * 1025, "event": "e", "description": "x"},
        "no object",
    ],
)
def test_where_one_is_malformed_none_is_registered(store: EventStore, last: Json) -> None:
    events = Jsonb([{"decider": "d", "event": "e", "description": "good"}, last])

    def register() -> None:
        with refusals():
            store.connection.execute("select event_store.register_decider_events(%s)", (events,))

    refusal(Malformed, register)
    assert registered(store) == 0


@pytest.mark.parametrize("events", [None, Jsonb([]), Jsonb({}), Jsonb(None)])
def test_nothing_is_refused(store: EventStore, events: Jsonb | None) -> None:
    with pytest.raises(Malformed), refusals():
        store.connection.execute("select event_store.register_decider_events(%s::jsonb)", (events,))


def test_the_owner_is_that_of_all(store: EventStore) -> None:
    store.register_decider_events(MANY, "event_store_owner")
    assert value(store.connection, "select array_agg(distinct owner) from event_store.deciders") == [
        "event_store_owner"
    ]
    refusal(NotDeciderOwner, lambda: store.register_decider_events(MANY, "event_store_writer"))


def test_registrations_in_opposite_order_do_not_deadlock(store: EventStore, connect: Connect) -> None:
    stores = [EventStore(connect()) for _ in range(4)]
    orders = [MANY, MANY[::-1], MANY, MANY[::-1]]
    for done in at_once(
        [partial(each.register_decider_events, order) for each, order in zip(stores, orders, strict=True)]
    ):
        assert len(done.result(20)) == 4
    assert registered(store) == 4
