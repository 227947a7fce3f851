"""The cost of a sequencer's call: proportional to new events, nothing for open transactions or without news."""

from random import Random
from typing import LiteralString

import psycopg
import pytest

from millrace.event_store.platform import PlatformStore
from tests.support import factories
from tests.support.factories import Connect

FRESH: LiteralString = "select from_id::text, before_id::text from event_store_private.fresh_transactions(%s, %s)"
CALL = "select event_store_platform.sequence_events()"


def settled(connection: psycopg.Connection) -> int:
    """Count the pages of a call that finds nothing, in a session with cached plans."""
    for _ in range(3):
        factories.buffers(connection, CALL)
    return factories.buffers(connection, CALL)


@pytest.mark.parametrize("heartbeats", [True, False], ids=["heartbeat", "no heartbeat"])
def test_events_of_an_open_transaction_are_not_read(orders: PlatformStore, connect: Connect, heartbeats: bool) -> None:
    factories.append(orders)
    orders.sequence_events()
    if not heartbeats:
        factories.set_clock(orders.connection, "2020-01-01 00:00:00+00")
    idle = settled(orders.connection)
    writer, second = connect(autocommit=False), connect(autocommit=False)
    factories.append_many(writer, 3000)
    factories.append(orders, "o-2")  # younger than the open transaction, which then lies between others
    factories.append(PlatformStore(second), "o-3")
    assert orders.sequence_events() == 1
    for n in range(3):
        assert settled(orders.connection) <= idle + 10
        factories.append(orders, f"new-{n}")
        assert factories.buffers(orders.connection, CALL) <= idle + 200
    writer.commit()
    second.commit()
    assert orders.sequence_events() == 3001
    factories.assert_log_holds_every_event_once(orders.connection)


def test_the_heartbeat_stores_up_to_where_it_looked(orders: PlatformStore, connect: Connect) -> None:
    writer = connect(autocommit=False)
    factories.append(PlatformStore(writer), "o-1")
    before = factories.value(orders.connection, "select snapshot::text from event_store.sequencer")
    factories.set_clock(orders.connection, "2100-01-01 00:00:00+00")
    assert orders.sequence_events() == 0
    stored = "select pg_snapshot_xmax(snapshot)::text::bigint from event_store.sequencer"
    assert factories.value(orders.connection, stored) > int(before.split(":")[1])
    writer.commit()
    assert orders.sequence_events() == 1
    factories.assert_log_holds_every_event_once(orders.connection)


def test_a_call_with_nothing_new_takes_no_transaction_id(orders: PlatformStore, connect: Connect) -> None:
    factories.set_clock(orders.connection, "2030-01-01 00:00:00+00")
    factories.append(orders)
    assert orders.sequence_events() == 1
    idle = connect(autocommit=False)
    factories.set_clock(idle, "2030-01-01 00:00:00+00")  # no heartbeat is due
    assert PlatformStore(idle).sequence_events() == 0
    assert factories.value(idle, "select pg_current_xact_id_if_assigned()::text") is None
    # so its transaction, though it stays open, delays no other event
    factories.append(orders, "o-2")
    assert orders.sequence_events() == 1
    assert orders.sequencer_holder() is None


def test_positions_are_stored_in_the_order_of_offsets(orders: PlatformStore) -> None:
    factories.append_many(orders.connection, 500)
    assert orders.sequence_events() == 500
    stored = factories.rows(orders.connection, 'select "offset" from event_store.event_log order by ctid')
    assert stored == sorted(stored)


def snapshot(random: Random) -> str:
    """Make a snapshot of transactions 3 to 24."""
    above = random.randint(3, 25)
    open_ids = sorted(n for n in random.sample(range(3, 25), random.randint(0, 8)) if n < above)
    return f"{min([*open_ids, above])}:{above}:{','.join(map(str, open_ids))}"


def sees(snapshot: str, number: int) -> bool:
    """Return whether a snapshot sees a transaction, by the manual's rule."""
    below, above, open_ids = snapshot.split(":")
    return number < int(below) or (number < int(above) and str(number) not in open_ids.split(","))


def test_fresh_transactions_are_those_that_only_the_later_snapshot_sees(store: PlatformStore) -> None:
    random = Random(14)
    for _ in range(500):
        earlier, later = snapshot(random), snapshot(random)
        ranges = factories.rows(store.connection, FRESH, earlier, later)
        fresh = [number for first, end in ranges for number in range(int(first), int(end))]
        assert sorted(fresh) == [n for n in range(1, 30) if sees(later, n) and not sees(earlier, n)], (earlier, later)
