"""Hot queries use their index when the functions run them: Postgres counts the scans of each index."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import LiteralString

import psycopg
import pytest

from millrace.archive.store import ArchiveStore
from millrace.event_store import StreamFailure
from millrace.event_store.migrations import migrate
from millrace.event_store.platform import PlatformStore
from millrace.event_store.sql_functions import SqlFunctions
from millrace.postgres.embedded import EmbeddedPostgres
from millrace.producers import ProducerStore
from tests.support import factories
from tests.support.producing.messages import begin, do, staged, statistics
from tests.support.sql_calls import append_events

TABLES = ("events", "event_log", "purged_streams", "stream_locks", "deciders")


@pytest.fixture(scope="module")
def large(postgres: EmbeddedPostgres) -> Iterator[str]:
    """Make a store with 20,000 events of 5,000 streams, 3,000 of one stream, a rows view and a bulk view."""
    postgres.create_database("large")
    dsn = postgres.dsn("large")
    migrate(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        store = factories.register_orders(PlatformStore(connection))
        for _ in range(4):
            factories.append_to(store, *[f"o-{n}" for n in range(5000)])
        factories.append_to(store, *["long"] * 3000)
        store.sequence_events()
        store.register_view("rows", "-infinity")
        store.register_view("bulk", "-infinity", mode="bulk")
        store.dispatch_events("rows", 1000)
        connection.execute("vacuum analyze")
    yield dsn
    with psycopg.connect(postgres.dsn("postgres"), autocommit=True) as admin:
        admin.execute("drop database large with (force)")


@pytest.fixture
def session(large: str) -> Iterator[PlatformStore]:
    """Yield a session; undo its changes at the end."""
    with psycopg.connect(large) as connection:
        connection.execute("select")
        yield PlatformStore(connection)
        connection.rollback()


def scans(store: SqlFunctions) -> dict[str, int]:
    """Count the scans since the session began, of tables (sequential) and of indexes."""
    query: LiteralString = """
        select relname, pg_stat_get_xact_numscans(oid) from pg_class
        where relnamespace = 'event_store'::regnamespace and relkind in ('r', 'i')
    """
    return dict(factories.rows(store.connection, query))


@contextmanager
def only_by(
    store: PlatformStore,
    *indexes: str,
    most: int | None = None,
    of: LiteralString = "events",
    seq: tuple[str, ...] = (),
) -> Iterator[None]:
    """Assert that the block uses these indexes, scans no table, and fetches at most `most` rows of one."""
    fetched = f"select pg_stat_get_xact_tuples_fetched('event_store.{of}'::regclass)"
    before, already = scans(store), factories.value(store.connection, fetched)
    yield
    after, now = scans(store), factories.value(store.connection, fetched)
    assert [index for index in indexes if after[index] == before[index]] == [], "not used"
    assert [table for table in TABLES if table not in seq and after[table] > before[table]] == [], "scanned"
    assert most is None or now - already <= most


def test_appends_read_by_index(session: PlatformStore) -> None:
    with only_by(session, "events_stream_key", "events_event_id_key"):
        factories.append(session, "o-new")
    batch = [factories.new_event(decider_id) for decider_id in ("o-1", "o-2", "o-newer")]
    with only_by(session, "events_stream_key", seq=("purged_streams",)):
        append_events(session, batch)
    with only_by(session, "events_event_id_key"):
        append_events(session, batch)


def test_appends_find_their_registration_by_its_whole_key(session: PlatformStore) -> None:
    session.register_event_schema("order", "placed", {"type": "object"})
    session.connection.execute(
        """
        insert into event_store.deciders (decider, event, description)
        select 'd' || n % 10, 'e' || n, '' from generate_series(1, 100000) n
        """
    )
    read = "select pg_stat_get_xact_tuples_returned('event_store.deciders_pkey'::regclass)"
    others = [factories.new_event("o-2", event="paid"), factories.new_event("o-3", decider="invoice")]
    for call in (
        lambda: factories.append(session, "o-very-new"),
        lambda: append_events(session, [factories.new_event("o-1"), *others]),
    ):
        before = factories.value(session.connection, read)
        with only_by(session, "deciders_pkey"):
            call()
        assert factories.value(session.connection, read) - before <= 9


def test_every_name_of_an_event_is_compared_as_bytes(session: PlatformStore) -> None:
    """With a collation other than the compared value's, an index is read as a whole."""
    others: LiteralString = """
        select a.attrelid::regclass::text, a.attname
        from pg_attribute a
        join pg_class c on c.oid = a.attrelid and c.relkind in ('r', 'p', 'c')
        join pg_collation o on o.oid = a.attcollation and o.collname <> 'C'
        where c.relnamespace::regnamespace::text in ('event_store', 'event_store_private', 'read_models') and a.attnum > 0
          and a.attname in ('decider', 'decider_id', 'event')
    """
    assert factories.rows(session.connection, others) == []


def test_a_stream_and_its_head_are_read_by_its_indexes(session: PlatformStore) -> None:
    for read, seq in (
        ("get_events", ()), ("get_last_event", ()), ("stream_head", ("purged_streams",)),
    ):  # fmt: skip
        with only_by(session, "events_stream_key", seq=seq):
            assert session.connection.execute(f"select from event_store.{read}('o-17', 'order')".encode()).rowcount
    with only_by(session, "events_stream_key", "event_log_offset_key", "checkpoints_pkey", "stream_locks_pkey", most=4):
        found = session.stream_views("order", "o-17")
    assert [(view.view, view.owed) for view in found] == [("bulk", 4), ("rows", 4)]


def test_the_sequencer_finds_fresh_events_by_transaction(large: str, session: PlatformStore) -> None:
    with psycopg.connect(large, autocommit=True) as other:
        factories.append_to(PlatformStore(other), "o-1", "o-2", "o-3")
    with only_by(session, "events_transaction_id_idx", most=99):
        assert session.sequence_events() == 3


def test_the_log_is_read_and_purged_by_its_index(session: PlatformStore) -> None:
    with only_by(session, "event_log_pkey", "events_pkey"):
        assert len(session.read_log(3, 100, 100)) == 100
    for view in ("rows", "bulk"):
        session.unregister_view(view)
    archive = ArchiveStore(session.connection)
    archive.mark_archived(3, 500)
    archive.raise_low_water_mark(3, 500)
    with only_by(session, "event_log_pkey", "events_pkey"):
        assert archive.purge_events(3, 300) == 300


def test_a_bulk_view_is_claimed_read_and_committed_by_index(session: PlatformStore) -> None:
    with only_by(session, "event_log_pkey"):
        leases = session.claim_batch("bulk", "me", 2000)
    with only_by(session, "event_log_pkey", "events_pkey", "stream_locks_pkey"):
        assert sum(len(session.read_batch("bulk", lease)) for lease in leases) == 2000
        session.commit_batch("bulk", leases)


def test_a_claim_of_many_views_and_its_leases_are_found_by_index(session: PlatformStore) -> None:
    session.register_view("placed", "-infinity", mode="bulk", events=["placed"])
    session.register_view("paid", "-infinity", mode="bulk", events=["paid"])
    with only_by(session, "event_log_pkey", "events_pkey", "checkpoints_pkey"):
        assert set(session.claim_views(["bulk", "placed", "paid"], "me", 30_000)) == {"bulk", "placed"}
    with only_by(session, "checkpoints_pkey", "stream_locks_pkey"):
        assert len(session.owned_leases("me")["placed"]) == 16
        assert session.locked_streams("me") == []
        assert session.extend_owner("me", 60) == 32
    # one version of each checkpoint of four views
    with only_by(session, most=4 * 16, of="checkpoints"):
        session.owned_leases("me")


def test_a_poll_reads_by_index_and_as_many_events_as_it_says(session: PlatformStore) -> None:
    session.register_view("paid", "-infinity", mode="bulk", events=["paid"])
    session.register_view("placed", "-infinity", mode="bulk", events=["placed"])
    with only_by(session, "event_log_pkey", "events_pkey", "checkpoints_pkey"):
        polls = {row.view: row for row in session.poll_views(["paid", "placed"])}
    assert (polls["paid"].due, polls["placed"].due) == (1, 1000)
    assert polls["paid"].ahead == polls["placed"].ahead >= 20_000
    # 20,000 for views that are far behind, and a thousand in each log partition for all others
    with only_by(session, most=36_000):
        session.poll_views()


def test_failing_streams_are_handed_over_and_retried_by_index(session: PlatformStore) -> None:
    leases = session.claim_batch("bulk", "me", 100)
    failed = {event.decider_id: lease for lease in leases for event in session.read_batch("bulk", lease)}
    with only_by(session, "events_stream_key", "event_log_offset_key"):
        for decider_id, lease in failed.items():
            session.fail_streams("bulk", lease, [StreamFailure("order", decider_id, "a test")])
        session.commit_batch("bulk", leases)
    factories.set_clock(session.connection, "2100-01-01 00:00:00+00")
    with only_by(session, "events_stream_key", "stream_locks_pkey"):
        leases = session.claim_batch("bulk", "me")
        retried = {event.decider_id for lease in leases for event in session.read_batch("bulk", lease)}
        assert retried >= set(failed)
        session.commit_batch("bulk", leases)
    factories.set_clock(session.connection, "")


def test_retries_of_a_lease_are_found_by_index_among_many_parked_streams(session: PlatformStore) -> None:
    session.connection.execute(
        """
        insert into event_store.stream_locks (
          view, decider, decider_id, partition, last_offset, locked_until, parked_at, created_at, updated_at
        )
        select 'bulk', 'order', 'parked-' || n, n % 16, 0, 'infinity', now(), now(), now() from generate_series(1, 5000) n
        """
    )
    leases = session.claim_batch("bulk", "me", 100)
    with only_by(session, "stream_locks_in_flight_idx", most=99, of="stream_locks"):
        assert sum(len(session.read_batch("bulk", lease)) for lease in leases) == 100
        session.commit_batch("bulk", leases)


def test_a_part_of_a_long_stream_or_log_costs_a_few_pages(session: PlatformStore) -> None:
    last = session.head("order", "long")
    assert last is not None
    most: dict[LiteralString, int] = {
        "select event_store.read_stream('order', 'long'::text, null, 10)": 40,
        "select event_store.read_stream('order', 'long'::text, null, 10, true)": 40,
        "select event_store.read_log(0, 100, 10, '{order}')": 100,
        "select event_store.log_position(%s)": 20,
    }
    assert factories.reading_more(session.connection, most, last.last_event_id) == {}


def test_people_find_the_newest_events_by_index_and_read_no_others(session: PlatformStore) -> None:
    # three each; for the second call the events of invoice: none
    with only_by(session, "events_stream_key", "event_log_offset_key", most=6):
        assert len(session.latest_events(3, "order", "o-17")) == 3
        assert len(session.latest_events(3, decider_id="o-17")) == 3
    with only_by(session, "events_pkey", "event_log_offset_key", most=20):
        assert len(session.latest_events(20)) == 20
    led_by = ["request-7" if n % 100 == 0 else f"other-{n}" for n in range(1000)]
    append_events(
        session, [replace(factories.new_event(f"c-{each}"), metadata={"correlation_id": each}) for each in led_by]
    )
    with only_by(session, "events_correlation_idx", most=5):
        assert len(session.latest_events(5, correlation_id="request-7")) == 5


def test_rows_are_streamed_by_index(session: PlatformStore) -> None:
    # just dispatched, so this call does not: a dispatch reads all events here
    session.connection.execute("update event_store.dispatches set dispatched_at = event_store_private.clock()")
    session.connection.execute("update event_store.sequencer set sequenced_at = event_store_private.clock()")
    with only_by(session, "stream_locks_due_idx", "events_stream_key"):
        assert len(session.stream_events("rows", 10)) == 10


TABLES_OF_PRODUCERS = (
    "producers", "producer_progress", "producer_results", "producer_state", "transactions", "staged_changes",
)  # fmt: skip


@pytest.fixture
def old_session(producer: ProducerStore, connect: factories.Connect) -> Iterator[ProducerStore]:
    """Yield a session that made every call once in an empty, never analyzed store, before the store filled."""
    assert statistics(producer).received == 0
    connection = connect()
    connection.execute("set plan_cache_mode = force_generic_plan")
    store = ProducerStore(connection)
    do(store, 0, a=1)
    store.abort_transaction(staged(store, 1, a=1))
    store.ingest_events("p", 0, 1, 1, [factories.new_event("a").alone], {"a": 2})
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
            insert into event_store.producer_results (producer_id, partition, sequence, outcome, offsets, appended, ended_at)
            select 'other-1', 0, n, 'committed', '{}', '{}', now() from generate_series(1, 5000) n;
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
    """Return the number of rows read from the tables of producers in this transaction."""
    query: LiteralString = """
        select sum(pg_stat_get_xact_tuples_returned(oid) + pg_stat_get_xact_tuples_fetched(oid)) from pg_class
        where relnamespace = 'event_store'::regnamespace and relkind = 'r' and relname = any (%s)
    """
    return int(factories.value(store.connection, query, list(TABLES_OF_PRODUCERS)))


def test_no_call_of_a_producer_scans_a_table(old_session: ProducerStore) -> None:
    store = old_session
    before = scans(store)
    calls: dict[str, Callable[[], object]] = {
        "a duplicate": lambda: begin(store, 0, epoch=2),
        "a commit": lambda: do(store, 2, epoch=2, a=3, b=1),
        "an abort": lambda: store.abort_transaction(staged(store, 3, epoch=2, a=1)),
        "an abandonment": lambda: store.abandon_transaction(staged(store, 3, epoch=2, a=1), "why"),
        "an ingest": lambda: store.ingest_events(
            "p", 0, 2, 4, [factories.new_event("a").alone], {"key-7": 2, "b": None}
        ),
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
    assert [table for table in TABLES_OF_PRODUCERS if after[table] > before[table]] == []
    assert [table for table in TABLES_OF_PRODUCERS if after[f"{table}_pkey"] == before[f"{table}_pkey"]] == []
