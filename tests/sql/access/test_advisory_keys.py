"""A login without any grant takes every advisory key that it likes: no consumer, operator or poller notices."""

from collections.abc import Iterator
from typing import LiteralString
from uuid import uuid4

import psycopg
import pytest

from millrace.resources.event_store import EventStore
from millrace.resources.read_models.store import ReadModelStore
from tests.support.factories import append_to, pump, rows

# as anybody could compute them who reads the functions
KEYS: tuple[LiteralString, ...] = (
    "select pg_advisory_lock(hashtextextended('event_store.views v', 0))",
    "select pg_advisory_lock(hashtextextended('event_store.views b', 0))",
    "select pg_advisory_lock(hashtextextended('read_models.m', 0))",
    "select pg_advisory_lock(hashtext('event_store.attach_consumer'), hashtext('v'))",
    "select pg_advisory_lock_shared(hashtext('event_store.attach_consumer'), hashtext('b'))",
)


@pytest.fixture
def nobody(dsn: str, orders: EventStore) -> Iterator[psycopg.Connection]:
    """Yield a session of a login without any grant, which holds the keys."""
    user = f"user_{uuid4().hex}"
    orders.connection.execute(f"create role {user} login".encode())
    with psycopg.connect(dsn, user=user, autocommit=True) as connection:
        for key in KEYS:
            connection.execute(key)
        yield connection
    orders.connection.execute(f"drop role {user}".encode())


def test_a_login_without_grants_stops_no_view_by_any_key(orders: EventStore, nobody: psycopg.Connection) -> None:
    assert not nobody.closed
    orders.connection.execute("set lock_timeout = '5s'")
    orders.register_view("v", "-infinity")
    orders.register_view("b", "-infinity", mode="bulk")
    assert {poll.consumers for poll in orders.poll_views()} == {0}
    assert {info.consumers for info in orders.view_info()} == {0}
    append_to(orders, "a", "b")
    pump(orders, "v")
    assert len(orders.stream_events("v", 10)) == 2
    leases = orders.claim_batch("b", "me")
    orders.commit_batch("b", leases)
    rebuilt = orders.claim_partition("b", leases[0].partition, "me")
    orders.release_batch("b", [rebuilt])
    orders.end_locks("v")
    orders.register_view("v", mode="bulk")
    orders.seek_view("v", "RESET_TO_EARLIEST")
    orders.attach_consumer("v")
    with orders.connection.transaction():
        ReadModelStore(orders.connection).lock_model("m")
    orders.unregister_view("b")


def test_no_function_takes_an_advisory_key(orders: EventStore) -> None:
    taking: LiteralString = """
        select oid::regprocedure::text from pg_proc
        where pronamespace in ('event_store'::regnamespace, 'event_store_private'::regnamespace) and prosrc ~ 'pg_\\w*advisory'
    """
    assert rows(orders.connection, taking) == []
