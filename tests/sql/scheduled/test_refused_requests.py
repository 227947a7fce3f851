"""What cannot be scheduled is refused when it is asked for, with a reason, and nothing is stored."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from millrace import errors
from millrace.event_store import NewEvent
from millrace.event_store.platform import PlatformStore
from tests.support.factories import append, refusal
from tests.support.logins import Login

MALFORMED: list[dict[str, Any]] = [
    {"at": datetime(2030, 1, 1)},
    {"after": 3},
    {"after": timedelta.max},
    {"after": -timedelta(days=900_000)},
    {"at": datetime.min.replace(tzinfo=UTC)},
    {"at": datetime.max.replace(tzinfo=UTC)},
    {"at": datetime(2030, 1, 1, tzinfo=UTC), "after": timedelta(1)},
    {"after": None},
    {"name": ""},
    {"name": "é" * 101},
    {"name": "x" * 1_000_000},
    {"unless": -1},
    {"unless": True},
    {"unless": 10**30},
    {"unless": ["paid"]},
    {"unless": "paid", "since_version": 2},
    {"unless": "paid", "since_version": -1},
    {"event": NewEvent("paid", {"text": "x" * 2**20})},
    {"event": NewEvent("paid", metadata={"due_at": "now"})},
    {"decider_id": "k" * 1025},
    {"decider_id": ""},
]
TOMORROW: dict[str, Any] = {"decider_id": "o-1", "event": NewEvent("paid"), "name": "pay", "after": timedelta(1)}


@pytest.mark.parametrize("stated", MALFORMED, ids=lambda stated: " ".join(f"{k} {v}" for k, v in stated.items())[:40])
def test_a_request_that_is_malformed_stores_nothing(orders: PlatformStore, stated: dict[str, Any]) -> None:
    append(orders)
    asked = {**TOMORROW, **({"after": None} if "at" in stated else {}), **stated}
    refusal(errors.Malformed, lambda: orders.schedule("order", **asked))
    assert orders.scheduled_events() == []


@pytest.mark.parametrize("stated", [{"name": "a\0"}, {"name": "\ud800"}, {"unless": "a\0"}, {"decider_id": "\0"}])
def test_a_text_that_postgres_does_not_take_is_malformed(orders: PlatformStore, stated: dict[str, Any]) -> None:
    with pytest.raises(errors.Malformed):
        orders.schedule("order", **{**TOMORROW, **stated})
    assert orders.scheduled_events() == []


@pytest.mark.parametrize("due", ["infinity", "-infinity", "4713-01-01 BC", "294276-01-01"])
def test_a_time_that_python_cannot_read_is_refused(orders: PlatformStore, due: str) -> None:
    with pytest.raises(Exception, match="State a moment of the years 1900 to 9999"):
        orders.connection.execute(
            "select event_store.schedule_event('paid', gen_random_uuid(), 'order', 'o-1', '{}', gen_random_uuid(), %s, 'pay')",
            (due,),
        )


def test_what_is_not_registered_or_another_roles_is_refused(orders: PlatformStore, login: Login) -> None:
    for stated in ({"event": NewEvent("never")}, {"unless": "never"}, {"event": NewEvent("paid", event_version=2)}):
        refusal(errors.EventNotRegistered, lambda stated=stated: orders.schedule("order", **{**TOMORROW, **stated}))  # type: ignore[misc]
    service = PlatformStore(login("event_store_writer"))
    service.register_decider_event("bill", "sent", "", owner=service.connection.info.user)
    other = PlatformStore(login("event_store_writer"))
    for refused in (
        lambda: other.schedule("bill", **{**TOMORROW, "event": NewEvent("sent")}),
        lambda: other.cancel_scheduled("bill", "o-1", "pay"),
    ):
        refusal(errors.NotDeciderOwner, refused)
    assert orders.scheduled_events() == []


def test_events_of_1970_and_9999_are_scheduled_and_listed(orders: PlatformStore) -> None:
    append(orders)
    for year in (1970, 9999):
        at = datetime(year, 1, 1, tzinfo=UTC)
        orders.schedule("order", "o-1", NewEvent("paid"), name=f"{year}", at=at)
    assert [each.due_at.year for each in orders.scheduled_events()] == [1970, 9999]
    assert orders.fire_scheduled_events().done == 1
