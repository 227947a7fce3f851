"""Events and their registrations are facts."""

from typing import LiteralString

import psycopg
import pytest

from millrace.resources.errors import ForbiddenChange
from millrace.resources.event_store import EventStore
from millrace.resources.event_store.refusals import refusals
from tests.support.factories import append, rows

CHANGES: list[LiteralString] = [
    "update event_store.events set data = '{}'",
    "update event_store.events set data = '{}' where false",
    "update event_store.events set transaction_id = '3'",
    "delete from event_store.events",
    "update event_store.deciders set description = ''",
    "delete from event_store.deciders",
]


def facts(store: EventStore) -> object:
    return (
        rows(store.connection, "select * from event_store.events"),
        rows(store.connection, "select * from event_store.deciders order by 1, 2"),
    )


@pytest.mark.parametrize("change", [*CHANGES, "truncate event_store.events", "truncate event_store.deciders"])
def test_a_change_raises_and_changes_nothing(orders: EventStore, change: LiteralString) -> None:
    append(orders)
    before = facts(orders)
    with pytest.raises(ForbiddenChange, match="is forbidden"), refusals():
        orders.connection.execute(change)
    assert facts(orders) == before


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_does_nothing_with_a_warning_where_changes_are_ignored(
    orders: EventStore, change: LiteralString
) -> None:
    append(orders)
    before = facts(orders)
    notices: list[str | None] = []
    orders.connection.add_notice_handler(lambda notice: notices.append(notice.message_primary))
    orders.connection.execute("set event_store.on_forbidden_change = 'ignore'")
    assert orders.connection.execute(change).rowcount == 0
    assert facts(orders) == before
    assert len(notices) == 1
    assert "was ignored" in str(notices[0])


def test_truncate_raises_where_changes_are_ignored_too(orders: EventStore) -> None:
    append(orders)
    orders.connection.execute("set event_store.on_forbidden_change = 'ignore'")
    with pytest.raises(ForbiddenChange), refusals():
        orders.connection.execute("truncate event_store.events")


def test_an_unknown_setting_does_not_allow_a_change(orders: EventStore) -> None:
    append(orders)
    orders.connection.execute("set event_store.on_forbidden_change = 'allow'")
    with pytest.raises(psycopg.DatabaseError) as refused:
        orders.connection.execute("delete from event_store.events")
    assert refused.value.sqlstate == "MR006"


@pytest.mark.parametrize(
    "change",
    ["truncate event_store.events", "delete from event_store.events", "update event_store.events set data = '1'"],
)
def test_no_setting_of_the_store_lets_a_change_through(orders: EventStore, change: LiteralString) -> None:
    append(orders)
    before = facts(orders)
    orders.connection.execute("set event_store.rebasing = 'on'")
    with pytest.raises(ForbiddenChange), refusals():
        orders.connection.execute(change)
    assert facts(orders) == before
