"""Events and their registrations are facts."""

from typing import LiteralString

import pytest

from millrace.errors import ForbiddenChange
from millrace.event_store.platform import PlatformStore
from millrace.event_store.refusals import refusals
from tests.support.factories import append, refusal, rows

TABLES: list[LiteralString] = ["events", "deciders", "event_schemas", "event_upcasts"]
TRUNCATIONS: list[LiteralString] = ["truncate event_store." + table for table in TABLES]
CHANGES: list[LiteralString] = [
    "update event_store.events set data = '{}'",
    "update event_store.events set data = '{}' where false",
    "update event_store.events set transaction_id = '3'",
    "update event_store.deciders set description = ''",
    "update event_store.deciders set accepts = null",
    "update event_store.event_schemas set checks = '[]'",
    "update event_store.event_upcasts set moves = '[]'",
    *("delete from event_store." + table for table in TABLES),
]


def facts(store: PlatformStore) -> object:
    return [rows(store.connection, "select * from event_store." + table + " order by 1, 2") for table in TABLES]


@pytest.fixture
def orders(orders: PlatformStore) -> PlatformStore:
    """Return a store with a row in each table of facts."""
    append(orders)
    orders.register_event_schema("order", "placed", {"type": "object"})
    orders.register_event_upcast("order", "placed", 2, [])
    return orders


def change(store: PlatformStore, statement: LiteralString) -> int:
    with refusals():
        return store.connection.execute(statement).rowcount


def test_a_change_raises_and_changes_nothing_whatever_is_set(orders: PlatformStore) -> None:
    before = facts(orders)
    for setting in ("", "event_store.on_forbidden_change = 'allow'", "event_store.rebasing = 'on'"):
        orders.connection.execute(f"set {setting}".encode() if setting else "select")
        for statement in (*CHANGES, *TRUNCATIONS):
            # a re-base writes the transaction stamps, and only the store's owner can call it
            if "transaction_id" not in statement or "rebasing" not in setting:
                refusal(ForbiddenChange, lambda statement=statement: change(orders, statement))  # type: ignore[misc]
    assert facts(orders) == before


def test_where_changes_are_ignored_they_warn_and_truncate_still_raises(orders: PlatformStore) -> None:
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
