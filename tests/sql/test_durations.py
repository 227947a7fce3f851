"""The duration of a lock, a lease or an attachment: stated by the caller, else by its view; by the wall clock."""

from datetime import timedelta
from typing import LiteralString

from millrace.event_store.platform import PlatformStore
from tests.support.factories import append, pump, value

LOCK = "max(locked_until), clock_timestamp() from event_store.stream_locks where in_flight is not null"
LEASE = "max(leased_until), clock_timestamp() from event_store.checkpoints where lease_owner = 'me'"
ATTACHMENT = "max(attached_until), clock_timestamp() from event_store.consumers"
HELD = "(select array_agg({}) from event_store.checkpoints where lease_owner = 'me')"
# the column with the time, and the default duration
CALLS: dict[str, tuple[str, int | None]] = {
    "lease_events('r', 1, ?)": (LOCK, 40),
    "stream_events('r', 1, ?)": (LOCK, 40),
    """extend_lock('r', 'o-1'::text, (select max("offset") from event_store.events), ?)""": (LOCK, 40),
    "claim_batch('b', 'me', 10, ?)": (LEASE, 50),
    "claim_views('{b}', 'me', 10, ?)": (LEASE, 50),
    "claim_partition('b', 0, 'me', ?)": (LEASE, 50),
    f"extend_lease('b', {HELD.format('partition')}, {HELD.format('lease_token')}, ?)": (LEASE, 50),
    "extend_owner('me', ?)": (LEASE, None),
    "attach_consumer('b', 'me', ?)": (ATTACHMENT, None),
}
FIRST: dict[str, LiteralString] = {
    "extend_lock": "select event_store.lease_events('r', 1, 5)",
    "extend_lease": "select event_store.claim_batch('b', 'me', 10, 5)",
    "extend_owner": "select event_store.claim_batch('b', 'me', 10, 5)",
}


def test_it_lasts_from_the_call_on_as_long_as_the_caller_or_the_view_says(orders: PlatformStore) -> None:
    orders.connection.execute("set search_path = event_store, event_store_platform")
    orders.register_view("r", "-infinity", lock_timeout_s=40)
    orders.register_view("b", "-infinity", lock_timeout_s=50, mode="bulk")
    append(orders, "o-1")
    pump(orders, "r")
    wrong = []
    for call, (where, by_view) in CALLS.items():
        for stated, lasts in (("1", 1), ("3600", 3600), ("null", by_view)):
            if lasts is None:
                continue
            # within a transaction, where now() is earlier
            with orders.connection.transaction(force_rollback=True):
                orders.connection.execute(FIRST.get(call.split("(")[0], "select"))
                before = value(orders.connection, "select clock_timestamp()")
                orders.connection.execute(f"select {call.replace('?', stated)}".encode())
                ((until, now),) = orders.connection.execute(f"select {where}".encode()).fetchall()
            if not before <= until - timedelta(seconds=lasts) <= now:
                wrong.append((call, stated, until - before))
    assert wrong == []
