"""No hot call walks dead versions: beside a held snapshot it reads as few pages later as at first."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, LiteralString

import psycopg
import pytest

from millrace.event_store.platform import PlatformStore
from tests.support.factories import Connect, append_to, buffers, ids_of_one_partition, pump, rows, set_clock, value

# after the first of them each index has its levels
FIRST, MORE = 300, 150
# some more pages for growth with the events; walking dead versions would read hundreds
SLACK = 10


# a session first plans a call for its arguments, and later for any arguments
PLANS = ("force_custom_plan", "force_generic_plan")
INGEST: LiteralString = "select event_store.ingest_events('p', 0, 1, %s, null, '{\"total\": 1}')"


class Life:
    """The load beside the snapshot: events of one log partition that both views consume, and messages.

    Some streams have an event each round; the others have one each.
    """

    def __init__(self, store: PlatformStore, *again: str) -> None:
        self.store, self.again = store, again
        self.ids = iter(ids_of_one_partition(store.connection, 1000))
        self.sent = count()

    def go_on(self, rounds: int) -> None:
        for _ in range(rounds):
            append_to(self.store, next(self.ids), *self.again)
            self.store.sequence_events()
            self.store.dispatch_events("rows")
            for event in self.store.stream_events("rows", 1 + len(self.again)):
                self.store.ack_event("rows", event.decider_id, event.offset)
            self.store.commit_batch("bulk", self.store.claim_batch("bulk", "me"))
            self.store.connection.execute(INGEST, (next(self.sent),))


@contextmanager
def held_snapshot(connection: psycopg.Connection) -> Iterator[None]:
    """Hold a snapshot open, as a backup does."""
    connection.execute("set transaction isolation level repeatable read")
    connection.execute("select count(*) from event_store.events")
    yield
    connection.rollback()


def assert_no_more(life: Life, read: Callable[[], dict[Any, int]], times: float = 1) -> None:
    """Assert that calls read no more pages, or hardly more than `times` as many, after more load."""
    read()
    before = read()
    life.go_on(MORE)
    after = read()
    assert {name: (before[name], n) for name, n in after.items() if n > before[name] * times + SLACK} == {}


def behind_the_last_second(store: PlatformStore) -> None:
    """Dispatch all events, then let seconds pass."""
    store.dispatch_events("rows")
    let_seconds_pass(store)


def let_seconds_pass(store: PlatformStore) -> None:
    """Start the search for free locks at now, as seconds later; no dispatch looks back once more."""
    later = value(store.connection, "select event_store_private.clock() + interval '5 seconds'")
    set_clock(store.connection, str(later))
    store.connection.execute(
        """
        update event_store.dispatches set dispatched_at = 'infinity', swept_at = event_store_private.clock(), free_from = least(
          event_store_private.clock(), (select min(locked_until) from event_store.stream_locks where view = 'rows')
        )
        where view = 'rows'
        """
    )


@pytest.fixture
def held(orders: PlatformStore, connect: Connect) -> Iterator[PlatformStore]:
    """Yield a store with a view of each mode, beside a held snapshot."""
    orders.register_view("rows", "-infinity")
    orders.register_view("bulk", "-infinity", mode="bulk")
    orders.connection.execute("select event_store.register_producer('p')")
    append_to(orders, "first")
    pump(orders, "rows")
    (event,) = orders.stream_events("rows", 1)
    orders.ack_event("rows", event.decider_id, event.offset)
    orders.commit_batch("bulk", orders.claim_batch("bulk", "me"))
    with held_snapshot(connect(autocommit=False)):
        yield orders


def test_calls_read_no_more_pages_the_longer_a_snapshot_is_held(held: PlatformStore, connect: Connect) -> None:
    calls: list[LiteralString] = [
        "sequence_events()", "dispatch_events('rows')", "claim_batch('bulk', 'me')", "claim_views('{bulk}', 'me')",
        "owned_leases('me')", "locked_streams('me')", "extend_owner('me', 60)", "poll_views()", "poll_views('{bulk}')",
        "view_info('bulk')", "available_offset_range()", "ingest_events('p', 0, 1, 0)", "get_producer_state('p', 0, 'total')",
    ]  # fmt: skip
    life = Life(held)
    sessions = {plans: connect() for plans in PLANS}
    for plans, session in sessions.items():
        session.execute("select set_config('plan_cache_mode', %s, false)", (plans,))
        session.execute("set search_path = event_store, event_store_platform")

    def read() -> dict[tuple[str, str], int]:
        behind_the_last_second(held)
        clock = value(held.connection, "select current_setting('event_store.clock')")
        pages: dict[tuple[str, str], int] = {}
        for plans, session in sessions.items():
            set_clock(session, clock)
            for call in calls:
                rows(session, f"select * from {call}")  # warms the session's caches
            ((transaction,),) = rows(
                session, "select transaction_id from event_store.begin_transaction('p', 0, 1, %s)", next(life.sent)
            )
            session.execute("select event_store.add_state_change(%s, 'total', '2')", (transaction,))
            pages |= {(plans, call): buffers(session, f"select * from {call}") for call in calls}
            commit: LiteralString = "select event_store.commit_transaction(%s)"
            pages[plans, "a commit"] = buffers(session, commit, transaction)
            pages[plans, "an ingest"] = buffers(session, INGEST, next(life.sent))
        return pages

    life.go_on(FIRST)
    # the search for free streams starts at the oldest lock
    query = """
        select free_from, (select min(locked_until) from event_store.stream_locks) from event_store.dispatches
        where view = 'rows'
    """
    ((free_from, oldest),) = rows(held.connection, query)
    assert oldest is None or free_from <= oldest
    assert_no_more(life, read)


def test_statistics_lead_no_call_to_dead_versions(held: PlatformStore) -> None:
    """They count few rows, so a plan that reads all looks as good as one that searches."""
    life = Life(held)

    def read() -> dict[str, int]:
        append_to(held, *[next(life.ids) for _ in range(20)])
        held.sequence_events()
        held.dispatch_events("rows")
        pages = {
            "lease": buffers(held.connection, "select * from event_store.lease_events('rows', 20)"),
            "claim": buffers(held.connection, "select * from event_store.claim_batch('bulk', 'me')"),
        }
        of_rows: LiteralString = "select array_agg(in_flight) from event_store.stream_locks where view = 'rows'"
        delivered = value(held.connection, of_rows)
        pages["ack"] = buffers(held.connection, "select event_store.ack_events('rows', %s)", delivered)
        leased = rows(
            held.connection,
            "select array_agg(partition), array_agg(leased_to), array_agg(lease_token) from event_store.checkpoints"
            " where view = 'bulk' and lease_owner is not null",
        )
        pages["commit"] = buffers(held.connection, "select event_store.commit_batch('bulk', %s, %s, %s)", *leased[0])
        pages["ingest"] = buffers(held.connection, INGEST, next(life.sent))
        pages["sequence"] = buffers(held.connection, "select event_store_platform.sequence_events()")
        behind_the_last_second(held)
        return pages

    life.go_on(FIRST)
    held.connection.execute("analyze")
    assert_no_more(life, read, 1.2)


def test_answers_for_a_stream_that_comes_again_read_no_more_pages(held: PlatformStore) -> None:
    """Each delivery and each answer leaves a dead version of the stream's lock.

    A removed lock is searched among all versions, once, before the next lock is made.
    """
    again = ("a", "b", "c")
    life = Life(held, *again)
    lease: LiteralString = "select * from event_store.lease_events('rows', 3)"

    def read() -> dict[tuple[str, str], int]:
        return {(plans, name): n for plans in PLANS for name, n in read_by(plans).items()}

    def read_by(plans: str) -> dict[str, int]:
        held.connection.execute("select set_config('plan_cache_mode', %s, false)", (plans,))
        # the search starts at the time of the answers, so it reads only one round
        let_seconds_pass(held)
        life.go_on(1)
        let_seconds_pass(held)
        append_to(held, *again)
        held.sequence_events()
        pages = {}

        def call(name: str, text: LiteralString, *arguments: object) -> None:
            pages[name] = buffers(held.connection, text, *arguments)

        call("dispatch", "select event_store_platform.dispatch_events('rows')")
        call("lease", lease)
        a, b, c = (
            offset
            for (offset,) in rows(
                held.connection,
                "select in_flight from event_store.stream_locks where view = 'rows' and in_flight is not null order by decider_id",
            )
        )
        call("extend", "select * from event_store.extend_lock('rows', 'a', %s)", a)
        call("nack", "select * from event_store.nack_event('rows', 'a', %s)", a)
        call("lease again", lease)
        call("nack whatever", "select * from event_store.nack_event('rows', 'a')")
        held.stream_events("rows", 1)
        call("seen", "select * from event_store.has_seen('rows', 'order', 'a', %s)", a)
        call("ack", "select * from event_store.ack_event('rows', 'a', %s)", a)
        call("acks", "select * from event_store.ack_events('rows', array[%s])", b)
        call("fail", "select * from event_store.fail_event('rows', 'c', %s, 'no')", c)
        let_seconds_pass(held)
        call("retry", lease)
        held.ack_event("rows", "c", c)
        return pages

    life.go_on(FIRST)
    assert_no_more(life, read)


def test_who_searches_the_newest_version_of_a_row_lets_no_plan_fetch_all(store: PlatformStore) -> None:
    """With some statistics Postgres would collect all versions in a bitmap and sort them."""
    found: LiteralString = """
        select proname from pg_proc
        where pronamespace::regnamespace::text ~ '^event_store'
          and prosrc ~ '(checkpoint_of|progress_of)[(]|revision desc' and 'enable_seqscan=off' = any (proconfig)
          and not 'enable_bitmapscan=off' = any (proconfig)
    """
    assert rows(store.connection, found) == []


def test_a_lock_before_that_is_found_within_a_minute(held: PlatformStore) -> None:
    append_to(held, "late")
    held.sequence_events()
    held.dispatch_events("rows")

    def let(table: str, column: str, ago: str) -> None:
        call = f"update event_store.{table} set {column} = clock_timestamp() - interval '{ago}' where view = 'rows'"
        held.connection.execute(call.encode())

    # an answer committed long after it was given leaves such a lock
    let("stream_locks", "locked_until", "10 seconds")
    let("dispatches", "free_from", "2 seconds")
    assert held.stream_events("rows", 1) == []
    let("dispatches", "swept_at", "1 minute")
    held.dispatch_events("rows")
    assert [event.decider_id for event in held.stream_events("rows", 1)] == ["late"]


def test_the_mark_of_a_log_that_was_purged_whole_stays(held: PlatformStore) -> None:
    marks: LiteralString = "select partition, high_water_mark from event_store.partitions order by 1"
    before = rows(held.connection, marks)
    held.connection.execute("select event_store_platform.unregister_view(view) from event_store.views")
    held.connection.execute(
        """
        select event_store_platform.mark_archived(partition, high_water_mark),
          event_store_platform.raise_low_water_mark(partition, high_water_mark),
          event_store_platform.purge_events(partition)
        from event_store.partitions where high_water_mark > 0
        """
    )
    assert rows(held.connection, "select from event_store.event_log") == []
    assert rows(held.connection, marks) == before
