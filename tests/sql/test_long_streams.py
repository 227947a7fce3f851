"""Acknowledged events of a stream are not read again: a long stream costs as few pages as a short one."""

import json
from collections.abc import Callable
from typing import LiteralString

import pytest

from millrace.event_store.platform import PlatformStore
from tests.support.factories import append_to, assert_locks_know_versions, buffers, ids_of_one_partition, rows

Call = Callable[..., None]
LONG = 20_000
# an index has more levels, and a bisection reads an event for each; a read of the whole stream is 500 pages
SLACK = 150
LEASE: LiteralString = "select * from event_store.lease_events('rows', 10)"
CLAIM: LiteralString = "select * from event_store.claim_batch('bulk', 'me')"


@pytest.mark.parametrize("analyzed", [True, False])
def test_a_long_stream_costs_as_few_pages_as_a_short_one(orders: PlatformStore, analyzed: bool) -> None:
    short, long = ids_of_one_partition(orders.connection, 2)
    append_to(orders, short)
    for _ in range(4):
        append_to(orders, *[long] * (LONG // 4))
    orders.sequence_events()
    if analyzed:
        orders.connection.execute("vacuum analyze")
    play(orders, short)  # the first call of a session reads the catalog too
    few = play(orders, short)
    assert {name: (few[name], pages) for name, pages in play(orders, long).items() if pages > few[name] + SLACK} == {}


def play(store: PlatformStore, stream: str) -> dict[str, int]:
    """Let two views that have consumed a stream consume six more events; return the pages that each call read."""
    pages = {}

    def call(name: str, text: LiteralString, *arguments: object) -> None:
        pages[name] = buffers(store.connection, text, *arguments)
        assert_locks_know_versions(store.connection)

    store.register_view("rows", max_attempts=1)
    store.register_view("bulk", mode="bulk", max_attempts=1)
    offsets = [event.offset for event in append_to(store, *[stream] * 6)]
    store.sequence_events()
    consume_by_rows(store, stream, offsets, call)
    assert rows(store.connection, "select from event_store.stream_locks") == []
    call("latest_events", "select * from event_store_platform.latest_events(3, 'order', %s)", stream)
    before: LiteralString = "select * from event_store_platform.latest_events(3, 'order', %s, v_before_offset => %s)"
    call("latest_events before one", before, stream, offsets[2])
    consume_in_bulk(store, stream, offsets[2], call)
    assert rows(store.connection, "select from event_store.stream_locks") == []
    store.unregister_view("rows")
    store.unregister_view("bulk")
    return pages


def consume_by_rows(store: PlatformStore, stream: str, offsets: list[int], call: Call) -> None:
    """Let the rows view consume the events; the third one fails and is given up."""
    first, second, third, *others = offsets
    call("dispatch", "select event_store_platform.dispatch_events('rows')")
    call("lease", LEASE)
    call("ack", "select * from event_store.ack_event('rows', %s, %s)", stream, first)
    call("lease of the next", LEASE)
    call("acks", "select * from event_store.ack_events('rows', array[%s])", second)
    call("poll", "select * from event_store_platform.poll_views()")
    store.lease_events("rows")
    store.fail_event("rows", stream, third, "no")
    call("has_seen", "select * from event_store.has_seen('rows', 'order', %s, %s)", stream, third)
    call("stream_views", "select * from event_store_platform.stream_views('order', %s, 10)", stream)
    call("lag", "select * from event_store.view_lag('rows')")
    call("has_caught_up", "select event_store_platform.has_caught_up('rows', 'bulk')")
    call("has_caught_up of the other", "select event_store_platform.has_caught_up('bulk', 'rows')")
    call("raise_low_water_mark", "select event_store_platform.raise_low_water_mark(0, 0)")
    call("dead_letters", "select * from event_store.dead_letters()")
    call("discard", "select * from event_store_platform.discard_dead_letter('rows', 'order', %s, 'a test')", stream)
    call("delete", "delete from event_store.locks where view = 'rows'")
    for offset in others:
        store.lease_events("rows")
        store.ack_event("rows", stream, offset)
    call("poll of what is done", "select * from event_store_platform.poll_views()")
    call("sweep", "select event_store_platform.dispatch_events('rows')")


def consume_in_bulk(store: PlatformStore, stream: str, third: int, call: Call) -> None:
    """Let the bulk view consume the events; the third one fails twice."""
    (lease,) = store.claim_batch("bulk", "me")
    failure = json.dumps([{"decider": "order", "decider_id": stream, "error": "no", "offset": third}])
    fail: LiteralString = "select event_store.fail_streams('bulk', 0, %s, %s)"
    with store.connection.transaction():
        call("fail_streams", fail, lease.lease_token, failure)
        store.commit_batch("bulk", [lease])
    store.retry_dead_letters("bulk")
    call("poll of a retry", "select * from event_store_platform.poll_views()")
    call("claim of a retry", CLAIM)
    (lease,) = store.owned_leases("me")["bulk"]
    call("read of a retry", "select * from event_store.read_batch('bulk', 0, %s)", lease.lease_token)
    with store.connection.transaction():
        call("fail_streams of a retry", fail, lease.lease_token, failure)
        store.commit_batch("bulk", [lease])
    store.retry_dead_letters("bulk")
    (lease,) = store.claim_batch("bulk", "me")
    commit: LiteralString = "select event_store.commit_batch('bulk', array[0], array[%s], array[%s])"
    call("commit of a retry", commit, lease.to_position, lease.lease_token)
