"""Limits of every role, whatever functions it may call: no write to a table, no clock change, no hijacked function."""

from itertools import product
from typing import LiteralString

import pytest
from psycopg import errors

from millrace.event_store.platform import PlatformStore
from tests.support.factories import new_event, rows, value
from tests.support.logins import Login
from tests.support.sql_calls import append_events, get_events

TABLES: LiteralString = (
    "select c.oid::regclass::text, relnamespace::regnamespace::text from pg_class c"
    " where relnamespace::regnamespace::text in ('event_store', 'read_models') and relkind in ('r', 'v')"
)


def test_who_reads_tables_and_who_changes_those_of_read_models(orders: PlatformStore) -> None:
    """By their grants: docs/who_may_do_what.md. Applications have no privilege on any table."""
    granted: LiteralString = """
        select r.rolname, c.oid::regclass::text, p.privilege
        from pg_class c cross join (select rolname from pg_roles union all values ('public')) r
        cross join unnest('{select,insert,update,delete,truncate,references,trigger}'::text[]) p(privilege)
        where c.relnamespace::regnamespace::text in ('event_store', 'event_store_keys', 'read_models')
          and c.relkind in ('r', 'v')
          and r.rolname ~ '^event_store_|^public$'
          and has_table_privilege(r.rolname, c.oid, p.privilege)
    """
    tables = dict(rows(orders.connection, TABLES))
    # hidden: URLs, which may hold a secret (test_readers_of_tables_do_not_see_urls), secrets that sign
    # pushes, and hashes of tokens
    changed = [name for name, schema in tables.items() if schema == "read_models"]
    hidden = {"event_store.views", "event_store.push_secrets", "event_store.stream_tokens"}
    assert set(rows(orders.connection, granted)) == {
        *(("event_store_reader", table, "select") for table in tables.keys() - hidden),
        *(("event_store_owner", table, "select") for table in tables),
        # a backup has the wrapped keys
        *(
            ("event_store_owner", f"event_store_keys.{table}", "select")
            for table in ("epochs", "holders", "subject_keys")
        ),
        # changes of a source's log come by COPY; deleting a lock frees its stream: see free_deleted_lock
        ("event_store_owner", "event_store.wal_events", "insert"),
        ("event_store_owner", "event_store.locks", "delete"),
        *(("event_store_owner", table, change) for table, change in product(changed, ("insert", "update", "delete"))),
    }


def test_functions_run_with_the_rights_and_search_path_of_the_store(orders: PlatformStore) -> None:
    """Except overloads for UUIDs, which only call the function for text."""
    unsafe: LiteralString = """
        select p.oid::regprocedure::text from pg_proc p
        where pronamespace in ('event_store'::regnamespace, 'event_store_platform'::regnamespace)
          and exists (
            select from aclexplode(p.proacl) a join pg_roles r on r.oid = a.grantee where r.rolname ~ '^event_store_'
          )
          and not (prosecdef and coalesce(proconfig, '{}') @> array['search_path=event_store, pg_temp'])
          and not 'uuid'::regtype = any (proargtypes::oid[])
          and proname not in ('stream_partition', 'retried_events') -- are inlined
          and proname not in ('moved', 'moved_value') -- read their arguments only
          -- reads a table of owners, who could let it run what they like with the rights of the store
          and proname <> 'stream_state'
    """
    assert rows(orders.connection, unsafe) == []


def test_services_and_consumers_call_event_store_and_operators_the_rest(orders: PlatformStore) -> None:
    """Functions for operators only are in event_store_platform, and a writer may call none of that schema."""
    callers = """
        select p.oid::regprocedure::text, array_agg(r.rolname::text order by r.rolname)
        from pg_proc p cross join aclexplode(p.proacl) a join pg_roles r on r.oid = a.grantee
        where p.pronamespace = %s::regnamespace and r.rolname ~ '^event_store_' group by p.oid
    """
    interface, platform = (
        dict(rows(orders.connection, callers, schema)) for schema in ("event_store", "event_store_platform")
    )
    assert [name for name, roles in interface.items() if roles == ["event_store_owner"]] == []
    assert [name for name, roles in platform.items() if "event_store_writer" in roles] == []
    may_use: LiteralString = "select has_schema_privilege('event_store_writer', 'event_store_platform', 'usage')"
    assert not value(orders.connection, may_use)


def test_nobody_goes_around_the_functions(login: Login) -> None:
    for role in ("writer", "consumer", "reader", "personal", "owner"):
        user = login(f"event_store_{role}")
        user.execute("create function pg_temp.grab() returns trigger language plpgsql as 'begin return new; end'")
        for statement in (
            "insert into event_store.events (event) values ('x')",
            "copy event_store.events from stdin",
            *(["copy event_store.wal_events from stdin"] if role != "owner" else []),
            "update event_store.checkpoints set position = 0",
            *(["select from event_store_keys.subject_keys"] if role != "owner" else []),
            "update event_store_keys.subject_keys set wrapped = null",
            "delete from event_store.stream_locks",
            "insert into event_store.audit_log (done_at, done_by, operation, detail) values (now(), 'x', 'migrate', '{}')",
            "delete from event_store.audit_log",
            "select event_store_private.audit('seek_view', 'v', 'no', '{}')",
            "create table event_store.mine ()",
            "create function event_store.mine() returns int language sql as 'select 1'",
            # a table that other users' drains write
            "create trigger grab before insert on read_models.declarations execute function pg_temp.grab()",
        ):
            with pytest.raises(errors.InsufficientPrivilege):
                user.execute(statement.encode())


def test_the_callers_search_path_leads_no_function_astray(orders: PlatformStore, login: Login) -> None:
    writer = login("event_store_writer")
    for table in ("streams (decider text)", "events (event text)"):
        writer.execute(f"create temporary table {table}".encode())
    writer.execute("set search_path = pg_temp, event_store")
    append_events(PlatformStore(writer), [new_event("o-1")])
    assert len(get_events(orders, "o-1", "order")) == 1
