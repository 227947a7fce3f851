"""Whether one view may replace another one."""

from typing import LiteralString

import pytest

from millrace.event_store import StreamFailure
from millrace.event_store.platform import PlatformStore
from tests.support.factories import append_to, ids_of_one_partition, new_event
from tests.support.sql_calls import append_events, get_last_event
from tests.support.views.failing_streams import finish


@pytest.fixture
def views(orders: PlatformStore) -> PlatformStore:
    for name in ("old", "new"):
        orders.register_view(name, "-infinity", mode="bulk")
    return orders


@pytest.fixture
def stream(views: PlatformStore) -> str:
    return ids_of_one_partition(views.connection, 1)[0]


def consume(store: PlatformStore, view: str, *failing: str) -> None:
    finish(store, store.claim_batch(view, "me"), failing, view)


def test_a_view_that_stands_nowhere_behind_has_caught_up(views: PlatformStore) -> None:
    assert views.has_caught_up("new", "old")
    zero, three = (ids_of_one_partition(views.connection, 1, partition)[0] for partition in (0, 3))
    append_to(views, zero, three)
    views.sequence_events()
    assert views.has_caught_up("new", "old")  # neither has any event
    consume(views, "old")
    assert not views.has_caught_up("new", "old")
    assert views.has_caught_up("old", "new")
    (first, second) = views.claim_batch("new", "me")
    views.commit_batch("new", [first])
    assert not views.has_caught_up("new", "old")  # in one log partition it is behind
    views.commit_batch("new", [second])
    assert views.has_caught_up("new", "old")


def test_events_that_it_does_not_want_keep_no_view_behind(views: PlatformStore, stream: str) -> None:
    views.register_view("narrow", "-infinity", mode="bulk", events=["paid"])
    append_to(views, *[stream] * 1000)
    consume(views, "old")
    assert views.has_caught_up("narrow", "old")
    append_events(views, [new_event(stream, event="paid")])
    views.sequence_events()
    assert views.has_caught_up("narrow", "old")  # neither has the event
    consume(views, "old")
    assert not views.has_caught_up("narrow", "old")
    consume(views, "narrow")
    assert views.has_caught_up("narrow", "old")
    append_to(views, *[stream] * 1001)
    consume(views, "old")
    assert not views.has_caught_up("narrow", "old")  # the limit of one call
    views.pass_over_unwanted("narrow")
    assert views.has_caught_up("narrow", "old")


def test_a_stream_that_failed_in_it_alone_or_earlier_is_behind(views: PlatformStore, stream: str) -> None:
    append_to(views, stream, stream)
    consume(views, "new", stream)
    consume(views, "old")
    assert not views.has_caught_up("new", "old")
    assert views.has_caught_up("old", "new")
    append_to(views, stream)
    consume(views, "old", stream)  # an event later than in new
    consume(views, "new")
    assert not views.has_caught_up("new", "old")
    views.connection.execute(
        "update event_store.stream_locks k set last_offset = o.last_offset from event_store.stream_locks o"
        " where k.view = 'new' and o.view = 'old'"
    )
    assert views.has_caught_up("new", "old")


def test_a_stream_that_fails_where_the_other_has_not_been_is_not_behind(views: PlatformStore, stream: str) -> None:
    append_to(views, stream)
    consume(views, "old")
    consume(views, "new")
    append_to(views, stream)
    consume(views, "new", stream)
    assert views.has_caught_up("new", "old")
    consume(views, "old")
    assert not views.has_caught_up("new", "old")


def test_what_the_other_acknowledged_beyond_its_checkpoint_counts(views: PlatformStore, stream: str) -> None:
    append_to(views, stream)
    consume(views, "new")
    append_to(views, stream, stream)
    (lease,) = views.claim_batch("old", "me")
    last = get_last_event(views, stream, "order")
    assert last is not None
    with views.connection.transaction():
        views.fail_streams("old", lease, [StreamFailure("order", stream, "no", last.offset)])
        views.release_batch("old", [lease])
    assert not views.has_caught_up("new", "old")
    consume(views, "new")
    assert views.has_caught_up("new", "old")


def test_a_stream_that_has_nothing_left_is_not_behind(views: PlatformStore, stream: str) -> None:
    append_to(views, stream)
    consume(views, "new", stream)
    consume(views, "old")
    parked: LiteralString = "update event_store.stream_locks set parked_at = now(), locked_until = 'infinity'"
    views.connection.execute(parked)
    assert not views.has_caught_up("new", "old")
    views.discard_dead_letter("new", "order", stream, "a test")
    assert views.has_caught_up("new", "old")
