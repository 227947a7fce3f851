"""The calls of producers use their indexes, also in a session that made its plans when the tables were empty."""

from collections.abc import Callable, Iterator

import psycopg
import pytest

from millrace.resources.producers import ProducerStore
from tests.sql.test_plans import scans
from tests.support.factories import Connect, new_event, rows
from tests.support.producing.messages import begin, do, producer, staged, statistics

__all__ = ["producer"]

TABLES = ("producers", "producer_progress", "producer_results", "producer_state", "transactions", "staged_changes")


@pytest.fixture
def old_session(producer: ProducerStore, connect: Connect) -> Iterator[ProducerStore]:
    """Yield a session that did everything once in an empty, never analyzed store, which then filled."""
    assert statistics(producer).received == 0
    connection = connect()
    connection.execute("set plan_cache_mode = force_generic_plan")
    store = ProducerStore(connection)
    do(store, 0, a=1)
    store.abort_transaction(staged(store, 1, a=1))
    store.ingest_events("p", 0, 1, 1, [new_event("a")], {"a": 2})
    store.get_producer_state("p", 0, "a")
    store.expire_transactions(0)
    store.register_producer("p")
    with psycopg.connect(connection.info.dsn, autocommit=True) as other:
        other.execute(
            """
            insert into event_store.producers (producer_id, partition, epoch, registered_at, owner)
            select 'other-' || n, 0, 1, now(), 'event_store_writer' from generate_series(1, 5000) n;
            insert into event_store.producer_progress (producer_id, partition, updated_at)
            select 'other-' || n, 0, now() from generate_series(1, 5000) n;
            insert into event_store.producer_state (producer_id, partition, key, value, sequence)
            select 'p', 0, 'key-' || n, '1', 0 from generate_series(1, 5000) n;
            insert into event_store.producer_results (producer_id, partition, sequence, outcome, offsets, ended_at)
            select 'other-1', 0, n, 'committed', '{}', now() from generate_series(1, 5000) n;
            with begun as (
              insert into event_store.transactions (producer_id, partition, epoch, sequence, begun_at, expires_at)
              select 'other-' || n, 0, 1, 0, now(), now() + interval '1 day' from generate_series(1, 5000) n
              returning transaction_id
            )
            insert into event_store.staged_changes (transaction_id, ordinal, key, value)
            select transaction_id, 1, 'k', '1' from begun
            """
        )
    connection.autocommit = False
    connection.execute("select")
    yield store
    connection.rollback()


def fetched(store: ProducerStore) -> int:
    """Rows that were read from the tables of producers in this transaction."""
    return sum(
        n
        for (n,) in rows(
            store.connection,
            "select pg_stat_get_xact_tuples_returned(oid) + pg_stat_get_xact_tuples_fetched(oid) from pg_class"
            " where relnamespace = 'event_store'::regnamespace and relkind = 'r' and relname = any (%s)",
            list(TABLES),
        )
    )


def test_no_call_of_a_producer_scans_a_table(old_session: ProducerStore) -> None:
    store = old_session
    before = scans(store)
    calls: dict[str, Callable[[], object]] = {
        "a duplicate": lambda: begin(store, 0, epoch=2),
        "a commit": lambda: do(store, 2, epoch=2, a=3, b=1),
        "an abort": lambda: store.abort_transaction(staged(store, 3, epoch=2, a=1)),
        "an abandonment": lambda: store.abandon_transaction(staged(store, 3, epoch=2, a=1), "why"),
        "an ingest": lambda: store.ingest_events("p", 0, 2, 4, [new_event("a")], {"key-7": 2, "b": None}),
        "a look at a key": lambda: store.get_producer_state("p", 0, "key-7"),
        "a registration": lambda: store.register_producer("p"),
        "an expiry": lambda: store.expire_transactions(0),
    }
    reads = {}
    for name, call in calls.items():
        read = fetched(store)
        call()
        reads[name] = fetched(store) - read
    assert {name: read for name, read in reads.items() if read > 60} == {}
    after = scans(store)
    assert {table: after[table] - before[table] for table in TABLES} == dict.fromkeys(TABLES, 0)
    for index in (
        "producers_pkey",
        "producer_progress_pkey",
        "producer_results_pkey",
        "producer_state_pkey",
        "transactions_pkey",
        "staged_changes_pkey",
    ):
        assert after[index] > before[index], index
