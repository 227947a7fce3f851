"""A store with data of every kind, for tests that compare whole stores."""

import psycopg

from millrace.event_store.platform import PlatformStore
from millrace.producers import ProducerStore
from tests.support.factories import append, append_to, register_orders, set_clock

# longer than these tests will ever be used
AN_AGE_S = 50 * 366 * 24 * 3600


def fill(connection: psycopg.Connection) -> None:
    """Fill an empty store with all kinds of data: events, some unsequenced; locks and leases of any state; messages."""
    store = register_orders(PlatformStore(connection))
    set_clock(connection, "2026-01-05 12:00:00+00")
    append_to(store, *[f"o-{n % 12}" for n in range(28)])
    last = append(store, "8a3b4c5d-0000-4000-8000-000000000001", decider="invoice")
    append(store, last.decider_id, last.event_id, decider="invoice", event="paid", final=True)
    store.register_view("invoices", "-infinity", lock_timeout_s=60)
    store.register_view("orders", "-infinity", mode="bulk", deciders=["order"])
    store.sequence_events()

    store.dispatch_events("invoices")
    acknowledged, waiting, _in_flight = store.stream_events("invoices", 3)
    store.ack_event("invoices", acknowledged.decider_id, acknowledged.offset)
    store.schedule_nack_event("invoices", waiting.decider_id, 60_000)

    store.commit_batch("orders", store.claim_batch("orders", "drain-1", 12))
    leases = store.claim_batch("orders", "drain-1", 9)
    store.commit_batch("orders", leases[:1])
    assert len(leases) > 1
    # in force whenever the tests run; a call can ask for an hour at most
    for statement in (
        "update event_store.stream_locks set locked_until = locked_until + interval '50 years' where in_flight is not null",
        "update event_store.checkpoints set leased_until = leased_until + interval '50 years'",
    ):
        connection.execute(statement)

    append_to(store, *[f"o-{n % 12}" for n in range(6, 16)])

    producers = ProducerStore(connection)
    producers.register_producer("orders.csv")
    producers.ingest_events("orders.csv", 0, 1, 0, state={"total": 7, "name": "ü"}, result={"total": 7})
    for sequence in (1, 2):
        transaction = producers.begin_transaction("orders.csv", 0, 1, sequence, AN_AGE_S).transaction_id
        assert transaction is not None
        producers.add_state_change(transaction, "total", 8)
        if sequence == 1:
            producers.abandon_transaction(transaction, "no order")
