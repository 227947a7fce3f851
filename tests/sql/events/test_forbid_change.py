"""Events and their registrations are facts."""

from typing import LiteralString

from millrace.resources.errors import ForbiddenChange
from millrace.resources.event_store import EventStore
from millrace.resources.event_store.refusals import refusals
from tests.support.factories import append, refusal, rows

TRUNCATIONS: list[LiteralString] = [
    "truncate event_store.events",
    "truncate event_store.deciders",
    "truncate event_store.event_schemas",
    "truncate event_store.event_upcasts",
]
CHANGES: list[LiteralString] = [
    "update event_store.events set data = '{}'",
    "update event_store.events set data = '{}' where false",
    "update event_store.events set transaction_id = '3'",
    "delete from event_store.events",
    "update event_store.deciders set description = ''",
    "update event_store.deciders set accepts = null",
    "delete from event_store.deciders",
    "update event_store.event_schemas set checks = '[]'",
    "delete from event_store.event_schemas",
    "update event_store.event_upcasts set moves = '[]'",
    "delete from event_store.event_upcasts",
]


def facts(store: EventStore) -> object:
    return (
        rows(store.connection, "select * from event_store.events"),
        rows(store.connection, "select * from event_store.deciders order by 1, 2"),
        rows(store.connection, "select * from event_store.event_schemas"),
        rows(store.connection, "select * from event_store.event_upcasts"),
    )


def change(store: EventStore, statement: LiteralString) -> int:
    with refusals():
        return store.connection.execute(statement).rowcount


def test_a_change_raises_and_changes_nothing_whatever_is_set(orders: EventStore) -> None:
    append(orders)
    orders.register_event_schema("order", "placed", {"type": "object"})
    orders.register_event_upcast("order", "placed", 2, [])
    before = facts(orders)
    settings: list[LiteralString] = [
        "select",
        "set event_store.on_forbidden_change = 'allow'",
        "set event_store.rebasing = 'on'",
    ]
    for setting in settings:
        orders.connection.execute(setting)
        for statement in (*CHANGES, *TRUNCATIONS):
            # stamps are what a re-base writes, and only the store's owner can call one
            if "transaction_id" not in statement or "rebasing" not in setting:
                refusal(ForbiddenChange, lambda statement=statement: change(orders, statement))  # type: ignore[misc]
    assert facts(orders) == before


def test_where_changes_are_ignored_a_change_does_nothing_with_a_warning_and_truncate_still_raises(
    orders: EventStore,
) -> None:
    append(orders)
    orders.register_event_schema("order", "placed", {"type": "object"})
    orders.register_event_upcast("order", "placed", 2, [])
    before = facts(orders)
    notices: list[str | None] = []
    orders.connection.add_notice_handler(lambda notice: notices.append(notice.message_primary))
    orders.connection.execute("set event_store.on_forbidden_change = 'ignore'")
    assert [change(orders, statement) for statement in CHANGES] == [0] * len(CHANGES)
    assert len(notices) == len(CHANGES)
    assert all("was ignored" in str(notice) for notice in notices)
    for statement in TRUNCATIONS:
        refusal(ForbiddenChange, lambda statement=statement: change(orders, statement))  # type: ignore[misc]
    assert facts(orders) == before
