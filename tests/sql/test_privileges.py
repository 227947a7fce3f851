"""Who may do what: writers and consumers call functions only, readers read, owners own."""

from collections.abc import Callable, Iterator
from typing import LiteralString

import pytest
from psycopg import errors

from millrace.resources.capture.store import CaptureStore
from millrace.resources.event_store import EventStore
from millrace.resources.producers import ProducerStore
from tests.support.capturing.captures import Source, faulty, inserted
from tests.support.factories import append, append_to, new_event, pump, rows, set_clock, value
from tests.support.logins import logins

WRITING = {
    "register_decider_event",
    "append_event",
    "append_events",
    "register_decider_events",
    "log_position",
    "has_seen",
    "get_events",
    "get_last_event",
    "stream_head",
    "read_stream",
    "events_of_correlation",
    "stream_partition",
    "register_producer",
    "begin_transaction",
    "add_state_change",
    "add_events",
    "commit_transaction",
    "abort_transaction",
    "abandon_transaction",
    "ingest_events",
    "get_producer_state",
}
READING = {
    "get_events", "get_last_event", "stream_head", "read_stream", "events_of_correlation", "read_log", "available_offset_range", "validate_offset_range",
    "offset_for_timestamp", "offsets_for_timestamp", "stream_partition", "partition_info", "view_info", "view_lag", "poll_views", "lease_owners", "dead_letters",
    "archive_state", "get_producer_state", "producer_statistics", "overdue_transactions", "capture_info", "log_gaps", "expired_leases", "sequencer_holder", "oldest_writer", "last_sequenced", "log_position",
    "is_registered", "database_identity", "attached_views", "latest_events", "stream_views", "alert_state", "first_dead_letter", "has_seen", "is_attended",
}  # fmt: skip
# what readers could select, too
LOOKING = {
    "audit_log", "views_beyond_log", "captured_tables", "quarantined_changes", "capture_gaps", "model_versions", "version_of_view", "purged_discards",
    "retried_events", "purge_state", "open_incidents", "stream_state",
}  # fmt: skip
CONSUMING = READING | {
    "push_format", "push_secrets", "announce_positions", "attend_log", "views_beyond_log", "register_view", "attach_consumer", "sequence_events", "stream_events", "lease_events", "ack_event", "ack_events",
    "nack_event", "schedule_nack_event", "fail_event", "extend_lock", "dispatch_events", "claim_batch", "claim_partition",
    "locked_partitions", "read_batch", "fail_streams", "commit_batch", "extend_lease", "release_batch", "release_owner", "pass_over_unwanted",
    "expire_transactions", "claim_views", "owned_leases", "locked_streams", "extend_owner", "detach_consumer",
}  # fmt: skip
OPERATING = {
    "set_push_secret", "drop_push_secret", "enable_view", "unregister_view", "seek_view", "retry_dead_letters", "discard_dead_letter", "mark_archived",
    "raise_low_water_mark", "purge_events", "list_archive_file", "lock_archive", "backup_cut", "begin_restore",
    "finish_restore", "has_caught_up", "hold_producers", "is_sequenced", "end_locks", "claim_look", "observe_incidents", "claim_alert",
    "settle_alert",
}  # fmt: skip
CAPTURING = {
    "register_capture", "claim_capture", "extend_capture", "release_capture", "begin_generation", "follow_timelines", "publish_tables", "store_changes", "keep_schemas",
    "verify_changes", "join_capture", "end_capture_sessions", "emit_changes", "emit_backfill", "finish_backfill", "record_gap", "requeue_changes", "repair_change", "discard_change",
    "restart_capture", "purge_wal_events", "unregister_capture", "begin_reading", "compare_rows", "end_reading",
}  # fmt: skip
MODELLING = {"lock_model", "declare_version", "serve_version", "is_unused_version", "drop_version", "mark_built"}
ALL = WRITING | CONSUMING | LOOKING | OPERATING | CAPTURING | MODELLING
TABLES: LiteralString = (
    "select relname from pg_class where relnamespace = 'event_store'::regnamespace and relkind in ('r', 'v')"
)

Login = Callable[[str], EventStore]


@pytest.fixture
def login(orders: EventStore) -> Iterator[Login]:
    """Yield a login: it connects as a new user with one of the roles, and nothing else."""
    with logins(orders.connection) as made:
        yield lambda role: EventStore(made(role))


def test_a_role_may_call_these_functions_and_no_others(orders: EventStore) -> None:
    for role, allowed in {
        "event_store_writer": WRITING,
        "event_store_consumer": CONSUMING,
        "event_store_reader": READING | LOOKING,
        "event_store_owner": ALL,
    }.items():
        granted = rows(
            orders.connection,
            """
            select proname, bool_and(has_function_privilege(%s, oid, 'execute')), bool_or(has_function_privilege(%s, oid, 'execute'))
            from pg_proc where pronamespace = 'event_store'::regnamespace group by proname
            """,
            role,
            role,
        )
        assert {name for name, every, _ in granted if every} == allowed, role
        assert {name for name, _, some in granted if some} == allowed, role


def test_every_function_of_the_interface_is_granted_to_some_role(orders: EventStore) -> None:
    ungranted: LiteralString = """
        select p.oid::regprocedure::text from pg_proc p
        where p.pronamespace = 'event_store'::regnamespace and not exists (
          select from aclexplode(p.proacl) a join pg_roles r on r.oid = a.grantee where r.rolname ~ '^event_store_'
        )
    """
    assert rows(orders.connection, ungranted) == []


def test_the_public_may_call_nothing(orders: EventStore) -> None:
    query: LiteralString = """
        select bool_or(has_function_privilege('public', oid, 'execute'))
        from pg_proc where pronamespace in ('event_store'::regnamespace, 'event_store_private'::regnamespace)
    """
    assert value(orders.connection, query) is False


def test_nobody_but_the_owner_may_use_what_is_private(orders: EventStore) -> None:
    others: LiteralString = """
        select n.nspname, a.grantee::regrole::text, a.privilege_type
        from pg_namespace n cross join aclexplode(n.nspacl) a
        where n.nspname = 'event_store_private' and a.grantee <> n.nspowner
        union all
        select p.oid::regprocedure::text, a.grantee::regrole::text, a.privilege_type
        from pg_proc p cross join aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
        where p.pronamespace = 'event_store_private'::regnamespace and a.grantee <> p.proowner
    """
    assert rows(orders.connection, others) == []
    users: LiteralString = """
        select rolname from pg_roles
        where rolname ~ '^event_store_' and has_schema_privilege(oid, 'event_store_private', 'usage')
    """
    assert rows(orders.connection, users) == []


def test_readers_and_owners_read_every_table_and_nobody_changes_one(orders: EventStore) -> None:
    """By what they are granted; applications have no right to any table."""
    granted = rows(
        orders.connection,
        """
        select r.rolname, c.relname, p.privilege
        from pg_class c cross join pg_roles r
        cross join unnest('{select,insert,update,delete,truncate,references,trigger}'::text[]) p(privilege)
        where c.relnamespace = 'event_store'::regnamespace and c.relkind in ('r', 'v') and r.rolname ~ '^event_store_'
          and has_table_privilege(r.rolname, c.oid, p.privilege)
        """,
    )
    tables = {table for (table,) in rows(orders.connection, TABLES)}
    # a URL may hold a secret: see test_readers_of_tables_do_not_see_urls; nor do they see what pushes are signed with
    hidden = {"views", "push_secrets"}
    assert set(granted) == {
        *(("event_store_reader", table, "select") for table in tables - hidden),
        *(("event_store_owner", table, "select") for table in tables),
        # what a source's log has comes by COPY, and whose lock is deleted is free: see free_deleted_lock
        ("event_store_owner", "wal_events", "insert"),
        ("event_store_owner", "locks", "delete"),
    }


def test_every_function_that_a_role_calls_runs_with_the_rights_and_the_search_path_of_the_store(
    orders: EventStore,
) -> None:
    """An overload for UUIDs only calls the function for text."""
    unsafe = rows(
        orders.connection,
        """
        select oid::regprocedure::text from pg_proc
        where pronamespace = 'event_store'::regnamespace
          and proname = any (%s)
          and not (prosecdef and coalesce(proconfig, '{}') @> array['search_path=event_store, pg_temp'])
          and not 'uuid'::regtype = any (proargtypes::oid[])
          and proname not in ('stream_partition', 'retried_events') -- are inlined
          -- reads a table of owners, who could let it run what they like with the rights of the store
          and proname <> 'stream_state'
        """,
        sorted(ALL),
    )
    assert unsafe == []


def test_a_writer_appends_and_a_consumer_consumes(login: Login) -> None:
    writer, consumer = login("event_store_writer"), login("event_store_consumer")
    writer.register_decider_event("order", "returned", "An order came back")
    first = append(writer, "o-1")
    append_to(writer, "o-1", "o-2", "o-3")
    assert writer.get_last_event("o-1", "order") != first

    consumer.register_view("rows", "-infinity")
    consumer.register_view("bulk", "-infinity", mode="bulk")
    pump(consumer, "rows")
    leased = consumer.lease_events("rows", 10)
    assert {event.decider_id for event in leased} == {"o-1", "o-2", "o-3"}
    consumer.ack_event("rows", leased[0].decider_id, leased[0].offset, leased[0].lease_token)
    consumer.fail_event("rows", leased[1].decider_id, leased[1].offset, "no")
    leases = consumer.claim_batch("bulk", "me")
    assert sum(len(consumer.read_batch("bulk", lease)) for lease in leases) == 4
    consumer.commit_batch("bulk", leases)
    assert {info.view: info.behind for info in consumer.view_info()} == {"bulk": 0, "rows": 0}


def test_a_writer_sends_as_a_producer(login: Login) -> None:
    writer = ProducerStore(login("event_store_writer").connection)
    writer.register_producer("p")
    writer.ingest_events("p", 0, 1, 0, [new_event("o-1")], {"total": 1}, "done")
    for settle in (
        writer.commit_transaction,
        writer.abort_transaction,
        lambda transaction: writer.abandon_transaction(transaction, "why"),
    ):
        sequence = len(EventStore(writer.connection).get_events("o-1", "order"))
        transaction = writer.begin_transaction("p", 0, 1, sequence).transaction_id
        assert transaction is not None
        writer.add_events(transaction, [new_event("o-1")])
        writer.add_state_change(transaction, "total", 2)
        settle(transaction)
    assert [entry.value for entry in writer.get_producer_state("p", 0)] == [2]
    consumer = ProducerStore(login("event_store_consumer").connection)
    consumer.expire_transactions()
    (statistics,) = consumer.producer_statistics()
    assert (statistics.committed, statistics.aborted, statistics.abandoned) == (2, 1, 1)


def test_an_owner_operates(orders: EventStore, login: Login) -> None:
    append(orders)
    owner = login("event_store_owner")
    owner.register_view("v", "-infinity")
    owner.seek_view("v", "RESET_TO_LATEST", reason="a test")
    owner.enable_view("v", enabled=False)
    owner.unregister_view("v")
    user = value(owner.connection, "select session_user")
    # who called, not whose rights the function has
    assert {row[0] for row in rows(orders.connection, "select distinct done_by from event_store.audit_log")} == {user}


def test_an_owner_captures_changes_and_nobody_else_copies_any(orders: EventStore, login: Login) -> None:
    source = Source(CaptureStore(login("event_store_owner").connection))
    source.begin()
    source.commit(inserted(1), faulty(2))
    assert source.emit().emitted == 1
    source.backfill(3)
    source.finish()
    source.store.discard_change(source.store.quarantined_changes("c")[0].quarantine_id, "a test")
    user = value(source.store.connection, "select session_user")
    assert rows(orders.connection, "select operation, done_by from event_store.audit_log") == [
        ("register_capture", user),
        ("discard_change", user),
    ]
    for role in ("event_store_writer", "event_store_consumer", "event_store_reader"):
        with pytest.raises(errors.InsufficientPrivilege):
            login(role).connection.execute("copy event_store.wal_events from stdin")


def test_nobody_goes_around_the_functions(login: Login) -> None:
    for role in ("event_store_writer", "event_store_consumer", "event_store_reader", "event_store_owner"):
        user = login(role).connection
        user.execute("create function pg_temp.grab() returns trigger language plpgsql as 'begin return new; end'")
        for statement in (
            "insert into event_store.events (event) values ('x')",
            "copy event_store.events from stdin",
            "update event_store.checkpoints set position = 0",
            "delete from event_store.stream_locks",
            "insert into event_store.audit_log (done_at, done_by, operation, detail) values (now(), 'x', 'migrate', '{}')",
            "delete from event_store.audit_log",
            "select event_store_private.audit('seek_view', 'v', 'no', '{}')",
            "create table event_store.mine ()",
            "create function event_store.mine() returns int language sql as 'select 1'",
            # what drains of others write
            "create trigger grab before insert on read_models.declarations execute function pg_temp.grab()",
        ):
            with pytest.raises(errors.InsufficientPrivilege):
                user.execute(statement.encode())


def test_only_the_owner_moves_the_clock(orders: EventStore, login: Login) -> None:
    consumer = login("event_store_consumer")
    orders.register_view("v", "-infinity")
    append_to(orders, "o-1")
    pump(orders, "v")
    (event,) = orders.stream_events("v", 1, 60)
    set_clock(consumer.connection, "2100-01-01 00:00:00+00")
    # the lock of somebody else does not end for it
    assert consumer.stream_events("v", 1) == []
    set_clock(orders.connection, "2100-01-01 00:00:00+00")
    assert orders.stream_events("v", 1) == [event]


def test_the_callers_search_path_leads_no_function_astray(orders: EventStore, login: Login) -> None:
    writer = login("event_store_writer")
    writer.connection.execute("create temporary table streams (decider text)")
    writer.connection.execute("create temporary table events (event text)")
    writer.connection.execute("set search_path = pg_temp, event_store")
    writer.append_events([new_event("o-1")])
    assert len(orders.get_events("o-1", "order")) == 1
