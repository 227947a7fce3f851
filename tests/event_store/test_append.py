"""`append`, `append_all` and their arguments. Not here: the stored rows and the refusals (tests/sql/event_store)."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from pydantic import BaseModel

from millrace.errors import Conflict, Malformed
from millrace.event_schemas.model import event
from millrace.event_store import NO_STREAM, EventStore, NewEvent, on
from millrace.event_store.ids import uuid7
from millrace.event_store.platform import PlatformStore
from millrace.event_store.views import Views
from tests.support.factories import append


@event(decider="order", name="paid")
class Paid(BaseModel):
    """An order was paid."""

    cents: int


@event(decider="invoice", name="shipped")
class Shipped(BaseModel):
    """An invoice was shipped."""


def test_events_are_appended_and_read(orders: PlatformStore) -> None:
    first = orders.append("order", "o-1", NewEvent("placed"), expected_version=NO_STREAM)
    more = orders.append(
        "order", "o-1", Paid(cents=5), NewEvent("shipped", {"by": "van"}), expected_version=first.version
    )
    assert (first.version, more.version, first.appended, more.appended) == (1, 3, True, True)
    stored = [*orders.read("order", "o-1")]
    assert [(each.event, each.version, each.data) for each in stored] == [
        ("placed", 1, {}),
        ("paid", 2, {"cents": 5}),
        ("shipped", 3, {"by": "van"}),
    ]
    assert stored[1].as_(Paid) == Paid(cents=5)
    assert [each.event_id for each in stored] == [*first.event_ids, *more.event_ids]
    assert (stored[0].offset, stored[-1].offset) == (first.offset, more.offset)
    head = orders.head("order", "o-1")
    assert head is not None
    assert (head.version, head.last_offset) == (3, more.offset)
    assert orders.head("order", "o-2") is None


def test_a_stated_version_is_met_or_nothing_is_stored(orders: PlatformStore) -> None:
    append(orders)
    for events in [NewEvent("paid")], [NewEvent("paid"), NewEvent("shipped")]:
        for version in (NO_STREAM, 2):
            with pytest.raises(Conflict):
                orders.append("order", "o-1", *events, expected_version=version)
    assert len([*orders.read("order", "o-1")]) == 1
    assert orders.append("order", "o-1", NewEvent("paid")).version == 2
    assert orders.append("order", "o-1", NewEvent("paid"), NewEvent("shipped")).version == 4


def test_an_event_sent_again_with_its_id_is_stored_once(orders: PlatformStore) -> None:
    one, two = (NewEvent("placed", event_id=uuid4()) for _ in range(2))
    for events in ((one,), (one, two)):
        first = orders.append("order", "o-1", *events)
        again = orders.append("order", "o-1", *events)
        assert (first.appended, again.appended) == (True, False)
        assert (first.version, first.offset, first.event_ids) == (again.version, again.offset, again.event_ids)
    assert len([*orders.read("order", "o-1")]) == 2


def test_several_streams_are_appended_to_together(orders: PlatformStore) -> None:
    told = orders.append_all(
        [
            on("order", "o-1", NewEvent("placed"), Paid(cents=1), expected_version=NO_STREAM),
            on("invoice", "o-1", Shipped(), metadata={"user": "ann"}),
        ]
    )
    assert [(each.decider, each.version, len(each.event_ids)) for each in told] == [("order", 2, 2), ("invoice", 1, 1)]
    with pytest.raises(Conflict):
        orders.append_all([on("order", "o-2", Paid(cents=1)), on("invoice", "o-1", Shipped(), expected_version=3)])
    assert orders.head("order", "o-2") is None
    assert [each.metadata for each in orders.read("invoice", "o-1")] == [{"user": "ann"}]


def test_metadata_of_a_call_are_all_events_and_their_own_win(orders: PlatformStore) -> None:
    own = NewEvent("paid", metadata={"user": "bob"})
    orders.append("order", "o-1", NewEvent("placed"), own, metadata={"user": "ann", "correlation_id": "r-7"})
    assert [each.metadata for each in orders.read("order", "o-1")] == [
        {"user": "ann", "correlation_id": "r-7"},
        {"user": "bob", "correlation_id": "r-7"},
    ]


WRONG: tuple[tuple[Callable[[Any], Any], str], ...] = (
    (lambda store: store.append("order", "o-1"), "There is no event"),
    (lambda store: store.append("order", "o-1", ["paid"]), "list is no event"),
    (lambda store: store.append("order", "o-1", b"paid"), "bytes is no event"),
    (lambda store: store.append("order", "o-1", uuid4()), "UUID is no event"),
    (lambda store: store.append("order", "o-1", "paid"), "str is no event"),
    (lambda store: store.append("order", "o-1", Paid), "is no event"),
    (lambda store: store.append("order", "o-1", Shipped()), "Event 1 is shipped of decider invoice"),
    (lambda store: store.append("order", "o-1", NewEvent("paid", float("nan"))), "no JSON that Postgres takes"),
    (lambda store: store.append("order", "o-1", NewEvent("paid"), NewEvent("paid", float("nan"))), "no JSON"),
    (lambda store: store.append("order", "o-1", NewEvent("paid"), expected_version=-2), "malformed"),
    (lambda store: store.append("order", "", NewEvent("paid")), "malformed"),
    (lambda store: store.append("order", None, NewEvent("paid")), "no decider and decider_id"),
    (lambda store: store.append("order", b"o-1", NewEvent("paid")), "no decider and decider_id"),
    (lambda store: store.append(None, "o-1", NewEvent("paid")), "no decider and decider_id"),
    (lambda store: store.append_all([]), "malformed"),
)


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_what_is_no_event_is_refused_in_one_sentence(orders: PlatformStore, number: int) -> None:
    call, said = WRONG[number]
    with pytest.raises(Malformed, match=said) as refused:
        call(orders)
    assert refused.value.hint or refused.value.detail
    assert orders.latest_events() == []


def test_a_uuid_names_a_stream_as_its_text_does(orders: PlatformStore) -> None:
    name = uuid7()
    orders.append("order", name, NewEvent("placed"))
    assert [each.decider_id for each in orders.read("order", name)] == [str(name)]
    assert orders.append("order", str(name), NewEvent("paid")).version == 2


def test_a_service_meets_few_methods() -> None:
    public = [name for name in dir(EventStore) if not name.startswith("_")]
    # schedule, cancel and look are three
    assert len(public) <= 29
    assert not set(public) & {name for name in vars(Views) if not name.startswith("_")}
