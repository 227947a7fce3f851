"""No hot call walks dead versions: beside a snapshot that somebody holds it reads as few pages later as at first."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import LiteralString

import psycopg
import pytest
from psycopg import sql

from millrace.resources.event_store import EventStore
from tests.support.factories import Connect, append_to, buffers, ids_of_one_partition, rows, set_clock, value

# beyond the first of them each index has its levels
FIRST, ROUNDS = 300, 600
# some pages more for what grew with the events; dead versions that are walked are hundreds
SLACK = 10


@contextmanager
def held_snapshot(connection: psycopg.Connection) -> Iterator[None]:
    """Hold a snapshot open, as a backup does."""
    connection.execute("set transaction isolation level repeatable read")
    connection.execute("select count(*) from event_store.events")
    yield
    connection.rollback()


def consume(store: EventStore, decider_id: str) -> None:
    """Append an event and take it through the log, a rows view and a bulk view."""
    append_to(store, decider_id)
    store.sequence_events()
    store.dispatch_events("rows")
    (event,) = store.stream_events("rows", 1)
    store.ack_event("rows", event.decider_id, event.offset)
    store.commit_batch("bulk", store.claim_batch("bulk", "me"))


def behind_the_last_second(store: EventStore) -> None:
    """Let free locks be searched from now on, as seconds later; no dispatch looks back once more."""
    store.dispatch_events("rows")
    later = value(store.connection, "select event_store_private.clock() + interval '5 seconds'")
    set_clock(store.connection, str(later))
    store.connection.execute(
        """
        update event_store.dispatches set free_from = event_store_private.clock(), dispatched_at = 'infinity'
        where view = 'rows'
        """
    )


def analyze_nothing_by_itself(connection: psycopg.Connection) -> None:
    """Keep autovacuum away: after its statistics a call is planned anew, which reads pages of the catalog."""
    for (table,) in rows(connection, "select tablename from pg_tables where schemaname = 'event_store'"):
        connection.execute(
            sql.SQL("alter table event_store.{} set (autovacuum_enabled = off)").format(sql.Identifier(table))
        )


@pytest.fixture
def held(orders: EventStore, connect: Connect) -> Iterator[EventStore]:
    """Yield a store with a view of each mode, beside a held snapshot."""
    analyze_nothing_by_itself(orders.connection)
    orders.register_view("rows", "-infinity")
    orders.register_view("bulk", "-infinity", mode="bulk")
    consume(orders, "o-0")
    with held_snapshot(connect(autocommit=False)):
        yield orders


def test_calls_read_no_more_pages_the_longer_a_snapshot_is_held(held: EventStore) -> None:
    calls: dict[str, LiteralString] = {
        "sequence_events": "select event_store.sequence_events()",
        "dispatch_events": "select event_store.dispatch_events('rows')",
        "claim_batch": "select * from event_store.claim_batch('bulk', 'me')",
        "claim_views": "select * from event_store.claim_views('{bulk}', 'me')",
        "owned_leases": "select * from event_store.owned_leases('me')",
        "locked_streams": "select * from event_store.locked_streams('me')",
        "extend_owner": "select event_store.extend_owner('me', 60)",
        "poll_views": "select * from event_store.poll_views()",
        "poll_views of one": "select * from event_store.poll_views('{bulk}')",
        "view_info": "select * from event_store.view_info('bulk')",
        "available_offset_range": "select * from event_store.available_offset_range()",
    }

    def read() -> dict[str, int]:
        for call in calls.values():
            held.connection.execute(call).fetchall()  # what a session looks up once is looked up
        return {name: buffers(held.connection, call) for name, call in calls.items()}

    for number in range(1, FIRST):
        consume(held, f"o-{number}")
    behind_the_last_second(held)
    before = read()
    for number in range(FIRST, ROUNDS):
        consume(held, f"o-{number}")
    behind_the_last_second(held)
    after = read()
    assert {name: (before[name], pages) for name, pages in after.items() if pages > before[name] + SLACK} == {}


def test_statistics_lead_no_call_to_dead_versions(held: EventStore) -> None:
    """They know of few rows, where a plan that reads them all looks as good as one that searches."""

    def read() -> dict[str, int]:
        append_to(held, *[next(ids) for _ in range(20)])
        held.sequence_events()
        held.dispatch_events("rows")
        pages = {
            "lease": buffers(held.connection, "select * from event_store.lease_events('rows', 20)"),
            "claim": buffers(held.connection, "select * from event_store.claim_batch('bulk', 'me')"),
        }
        delivered = rows(
            held.connection, "select array_agg(in_flight) from event_store.stream_locks where view = 'rows'"
        )
        pages["ack"] = buffers(held.connection, "select event_store.ack_events('rows', %s)", *delivered[0])
        leased = rows(
            held.connection,
            "select array_agg(partition), array_agg(leased_to), array_agg(lease_token) from event_store.checkpoints"
            " where view = 'bulk' and lease_owner is not null",
        )
        pages["commit"] = buffers(held.connection, "select event_store.commit_batch('bulk', %s, %s, %s)", *leased[0])
        pages["ingest"] = buffers(
            held.connection, "select event_store.ingest_events('p', 0, 1, %s, null, '{\"total\": 1}')", next(sent)
        )
        pages["sequence"] = buffers(held.connection, "select event_store.sequence_events()")
        behind_the_last_second(held)
        return pages

    sent = iter(range(10_000))
    ids = iter(ids_of_one_partition(held.connection, ROUNDS + 100))
    held.connection.execute("select event_store.register_producer('p')")

    def go_on(rounds: range) -> None:
        for _ in rounds:
            consume(held, next(ids))
            held.connection.execute(
                "select event_store.ingest_events('p', 0, 1, %s, null, '{\"total\": 1}')", (next(sent),)
            )

    go_on(range(1, FIRST))
    held.connection.execute("analyze")
    read()
    before = read()
    go_on(range(FIRST, ROUNDS))
    after = read()
    assert {name: (before[name], pages) for name, pages in after.items() if pages > before[name] * 1.2 + SLACK} == {}


def test_whoever_searches_the_newest_version_of_a_row_lets_no_plan_fetch_all_of_them(store: EventStore) -> None:
    """From some statistics Postgres would collect all versions in a bitmap and sort them."""
    found = rows(
        store.connection,
        """
        select proname from pg_proc
        where pronamespace in ('event_store'::regnamespace, 'event_store_private'::regnamespace)
          and prosrc ~ '(checkpoint_of|progress_of)[(]|revision desc' and 'enable_seqscan=off' = any (proconfig)
          and not 'enable_bitmapscan=off' = any (proconfig)
        """,
    )
    assert found == []


def test_a_producer_reads_no_more_pages_the_more_messages_it_sent(held: EventStore) -> None:
    held.connection.execute("select event_store.register_producer('p')")
    sent = iter(range(10_000))

    def send() -> None:
        held.connection.execute(
            "select event_store.ingest_events('p', 0, 1, %s, null, '{\"total\": 1}')", (next(sent),)
        )

    def read() -> dict[str, int]:
        ((transaction,),) = rows(
            held.connection, "select transaction_id from event_store.begin_transaction('p', 0, 1, %s)", next(sent)
        )
        held.connection.execute("select event_store.add_state_change(%s, 'total', '2')", (transaction,))
        return {
            "commit": buffers(held.connection, "select event_store.commit_transaction(%s)", transaction),
            "ingest": buffers(
                held.connection, "select event_store.ingest_events('p', 0, 1, %s, null, '{\"total\": 3}')", next(sent)
            ),
            "duplicate": buffers(held.connection, "select event_store.ingest_events('p', 0, 1, 0)"),
            "state": buffers(held.connection, "select * from event_store.get_producer_state('p', 0, 'total')"),
        }

    for _ in range(FIRST):
        send()
    read()  # what a session looks up once is looked up
    before = read()
    for _ in range(FIRST, ROUNDS):
        send()
    after = read()
    assert {name: (before[name], pages) for name, pages in after.items() if pages > before[name] + SLACK} == {}


def test_free_streams_are_searched_from_where_the_oldest_lock_is(held: EventStore) -> None:
    for number in range(1, FIRST):
        consume(held, f"o-{number}")
    oldest, found = rows(
        held.connection,
        """
        select free_from, (select min(locked_until) from event_store.stream_locks) from event_store.dispatches
        where view = 'rows'
        """,
    )[0]
    assert found is None or oldest <= found


def test_a_lock_before_that_is_found_within_a_minute(held: EventStore) -> None:
    append_to(held, "late")
    held.sequence_events()
    held.dispatch_events("rows")
    # an answer that was committed long after it was given leaves such a lock
    held.connection.execute(
        "update event_store.stream_locks set locked_until = clock_timestamp() - interval '10 seconds' where view = 'rows'"
    )
    held.connection.execute(
        "update event_store.dispatches set free_from = clock_timestamp() - interval '2 seconds' where view = 'rows'"
    )
    assert held.stream_events("rows", 1) == []
    held.connection.execute(
        "update event_store.dispatches set swept_at = clock_timestamp() - interval '1 minute' where view = 'rows'"
    )
    held.dispatch_events("rows")
    assert [event.decider_id for event in held.stream_events("rows", 1)] == ["late"]


def test_the_mark_of_a_log_that_was_purged_whole_stays(held: EventStore) -> None:
    before = rows(held.connection, "select partition, high_water_mark from event_store.partitions order by 1")
    held.connection.execute("select event_store.unregister_view(view) from event_store.views")
    held.connection.execute(
        """
        select event_store.mark_archived(partition, high_water_mark), event_store.raise_low_water_mark(partition, high_water_mark),
          event_store.purge_events(partition)
        from event_store.partitions where high_water_mark > 0
        """
    )
    assert rows(held.connection, "select from event_store.event_log") == []
    assert rows(held.connection, "select partition, high_water_mark from event_store.partitions order by 1") == before
