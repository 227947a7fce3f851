-- The events of that transaction get their positions when it ends; while it is open, no row version that was replaced
-- since can be removed.
-- Races: none; it takes no lock, and the returned transaction may have ended by then.
-- If the role that migrated lacks pg_read_all_stats, Postgres hides other roles' sessions: then it finds only its own.
-- Example: select pid, prepared, open_since from oldest_writer()
create or replace function event_store_platform.oldest_writer()
returns table (
  pid integer,
  login text,
  application_name text,
  prepared text,
  open_since timestamptz
)
language sql
volatile
security definer
set search_path = event_store, pg_temp
as $$
-- planner: uncompiled
  select w.pid, w.login, w.application_name, w.prepared, w.open_since
  from (
    select a.pid, a.usename::text as login, a.application_name, null as prepared, a.xact_start as open_since
    from pg_stat_activity a
    where a.datname = current_database() and a.backend_xid is not null and a.pid <> pg_backend_pid()
    union all
    select null, x.owner::text, null, x.gid, x.prepared
    from pg_prepared_xacts x
    where x.database = current_database()
  ) w
  order by w.open_since
  limit 1
$$;

comment on function event_store_platform.oldest_writer() is
'Returns the longest open transaction of those that have written in this database, if there is one: '
'the pid of its session, or its name where it is prepared, its login, and since when it is open.';
revoke all on function event_store_platform.oldest_writer() from public;
grant execute on function event_store_platform.oldest_writer() to event_store_consumer, event_store_reader, event_store_owner;
