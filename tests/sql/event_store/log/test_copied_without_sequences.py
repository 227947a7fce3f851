"""A store copied without its sequences, as by logical replication: no stream is reordered, no token reused."""

from collections.abc import Callable
from uuid import UUID

import psycopg
import pytest

from millrace.event_store.platform import PlatformStore
from tests.support import factories
from tests.support.capturing.captures import Source
from tests.support.factories import Connect
from tests.support.patience import patience
from tests.support.sql_calls import get_events


def forget_sequences(connection: psycopg.Connection) -> None:
    connection.execute(
        """
        select setval(oid::regclass, 1, false) from pg_class
        where relkind = 'S' and relnamespace = 'event_store'::regnamespace and relname <> 'attended_seq'
        """
    )


def bare_insert(store: PlatformStore, stream: str, follows: UUID) -> None:
    store.connection.execute(
        "insert into event_store.events (event, event_id, decider, decider_id, data, command_id, previous_id) "
        "values ('placed', gen_random_uuid(), 'order', %s, '{}', gen_random_uuid(), %s)",
        (stream, follows),
    )


def sequence_and_append(store: PlatformStore, stream: str, follows: UUID) -> None:
    store.sequence_events()
    factories.append(store, stream, follows)


WAYS_IN: dict[str, Callable[[PlatformStore, str, UUID], object]] = {
    "append_event": factories.append,
    "append_events": lambda store, stream, _: factories.append_to(store, "new", stream, stream),
    "bare INSERT": bare_insert,
    "after sequencing": sequence_and_append,
}


@pytest.mark.parametrize("purged", ["nothing", "the stream", "others"])
@pytest.mark.parametrize("way", WAYS_IN)
def test_an_event_that_follows_has_a_greater_offset_and_is_delivered(
    orders: PlatformStore, way: str, purged: str
) -> None:
    if purged == "others":
        factories.append_to(orders, *["gone"] * 5)
        factories.purge_all(orders)
    factories.append_to(orders, *["s"] * 5)
    head = orders.head("order", "s")
    assert head is not None
    if purged == "the stream":
        factories.purge_all(orders)
    factories.append_to(orders, "other")
    orders.register_view("v", "-infinity")
    factories.pump(orders, "v")
    while found := orders.stream_events("v", 10):
        orders.ack_events("v", [event.offset for event in found])
    forget_sequences(orders.connection)
    WAYS_IN[way](orders, "s", head.last_event_id)
    offsets = [event.offset for event in get_events(orders, "s", "order")][0 if purged == "the stream" else 5 :]
    assert offsets
    factories.assert_rising([head.last_offset, *offsets])
    factories.pump(orders, "v")
    assert "s" in {event.decider_id for event in orders.stream_events("v", 10)}


def test_who_sequences_sets_them_on(orders: PlatformStore) -> None:
    factories.append_to(orders, *["s"] * 5)
    forget_sequences(orders.connection)
    orders.sequence_events()
    assert factories.value(orders.connection, "select last_value > 5 from event_store.events_offset_seq")


def test_of_several_that_find_it_one_sets_the_sequences_on(orders: PlatformStore, connect: Connect) -> None:
    factories.append_to(orders, *["s"] * 5)
    forget_sequences(orders.connection)
    holder, second = connect(autocommit=False), connect()
    (first,) = factories.append_to(PlatformStore(holder), "s")
    late = factories.start_blocked(orders, second, lambda: factories.append_to(PlatformStore(second), "s"))
    holder.commit()
    (then,) = late.result(patience())
    factories.assert_rising([5, first.offset, then.offset])
    while orders.sequence_events():
        pass
    factories.assert_log_holds_every_event_once(orders.connection)


def test_no_token_is_given_out_twice(orders: PlatformStore, source: Source) -> None:
    orders.register_view("b", "-infinity", mode="bulk")
    factories.append_to(orders, *[f"o-{n}" for n in range(20)])
    old = orders.claim_batch("b", "me")
    forget_sequences(orders.connection)
    # as the first call after the copy
    assert source.store.claim_capture("c", "me", 60).lease_token > max(lease.lease_token for lease in old)
    orders.release_batch("b", old)
    assert min(lease.lease_token for lease in orders.claim_batch("b", "me")) > max(lease.lease_token for lease in old)
    orders.register_view("audited")
    assert factories.value(orders.connection, "select count(*) = count(distinct audit_id) from event_store.audit_log")
