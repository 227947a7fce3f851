"""No session setting lifts a restriction of the store, for its roles or for a role that may INSERT."""

from collections.abc import Iterator
from typing import LiteralString

import psycopg
import pytest
from psycopg.types.json import Jsonb

from millrace.errors import Conflict, EventNotRegistered, ForbiddenChange, Malformed
from millrace.event_store.platform import PlatformStore
from millrace.event_store.refusals import refusals
from tests.sql.event_store.test_forbid_change import CHANGES, TRUNCATIONS, facts
from tests.support.factories import append, append_to, rows, value
from tests.support.logins import logins

# columns as a COPY of another store's events would state them
ROW: LiteralString = """
    insert into event_store.events (event, event_id, decider, decider_id, data, command_id, previous_id, created_at, "offset", version)
    values (%s, gen_random_uuid(), 'order', 'o-1', %s, gen_random_uuid(), null, now(), %s, %s)
"""


def open_all(connection: psycopg.Connection) -> None:
    """Set every setting that the store's own functions set."""
    for guard in ("purging", "rebasing"):
        connection.execute("select set_config('event_store.' || %s, 'on', false)", (guard,))


@pytest.fixture
def granted(orders: PlatformStore) -> Iterator[PlatformStore]:
    """Yield a login that was granted all on the store's tables only."""
    with logins(orders.connection) as login:
        connection = login("event_store_owner")
        for kind in ("tables", "sequences"):
            grant = f"grant all on all {kind} in schema event_store to {connection.info.user}"
            orders.connection.execute(grant.encode())
        open_all(connection)
        yield PlatformStore(connection)


def test_an_owner_finishes_no_restore_that_has_not_begun(orders: PlatformStore, granted: PlatformStore) -> None:
    append_to(orders, "o-1")
    marks = rows(orders.connection, "select partition, earliest_position, high_water_mark from event_store.partitions")
    with pytest.raises(Malformed, match="no restore has begun"), refusals():
        granted.connection.execute(
            "select event_store_platform.finish_restore(%s, %s, %s, 9223372036854775807, 1, '{}')",
            tuple(list(column) for column in zip(*marks, strict=True)),
        )
    append_to(orders, "o-2")


def test_a_bare_insert_of_a_login_is_checked_whatever_it_states(orders: PlatformStore, granted: PlatformStore) -> None:
    granted.connection.execute(ROW, ("placed", Jsonb({}), 5, 5))
    for stated in (None, 5):
        for event, error in (("unheard of", EventNotRegistered), ("placed", Conflict)):
            with pytest.raises(error), refusals():
                granted.connection.execute(ROW, (event, Jsonb({}), stated, stated))
    (stored,) = orders.read("order", "o-1")
    assert stored.version == 1
    assert stored.offset != 5


def test_a_bare_insert_of_the_owner_is_checked(orders: PlatformStore) -> None:
    open_all(orders.connection)
    with pytest.raises(EventNotRegistered), refusals():
        orders.connection.execute(ROW, ("unheard of", Jsonb({}), 5, None))
    append(orders)
    with pytest.raises(Conflict), refusals():
        orders.connection.execute(ROW, ("placed", Jsonb({}), 5, None))


def test_an_event_in_a_restores_clothes_is_refused(orders: PlatformStore, granted: PlatformStore) -> None:
    query: LiteralString = (
        'insert into event_store.events (event, event_id, decider, decider_id, data, command_id, created_at, "offset", transaction_id)'
        " values ('x', gen_random_uuid(), 'order', 'o-1', '{}', gen_random_uuid(), now(), 1, '3')"
    )
    stating = query.replace("transaction_id)", "transaction_id, version)").replace("'3')", "'3', 1)")
    for store, statement in ((orders, query), (granted, query), (granted, stating)):
        open_all(store.connection)
        with pytest.raises(Malformed, match="no restore has begun"), refusals():
            store.connection.execute(statement.encode())


def test_only_the_role_that_migrated_moves_the_clock(orders: PlatformStore, granted: PlatformStore) -> None:
    granted.connection.execute("select set_config('event_store.clock', '2100-01-01 00:00:00+00', false)")
    append_to(granted, "o-1")
    assert value(orders.connection, "select created_at < now() + interval '1 day' from event_store.events")


def test_a_login_with_every_right_to_the_tables_changes_no_fact(orders: PlatformStore, granted: PlatformStore) -> None:
    append_to(orders, "o-1")
    before = facts(orders)
    for change in (*CHANGES, *TRUNCATIONS):
        with pytest.raises((ForbiddenChange, psycopg.errors.InsufficientPrivilege)), refusals():
            granted.connection.execute(change)
    assert facts(orders) == before
