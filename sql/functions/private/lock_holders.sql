-- The processes of this database, for a refusal to name.
create or replace function event_store_private.lock_holders(
  v_relation regclass
)
returns text
language sql
volatile
set search_path = event_store, pg_temp
as $$
  select string_agg(distinct l.pid::text, ', ')
  from pg_locks l
  join pg_database d on d.oid = l.database and d.datname = current_database()
  where l.relation = v_relation and l.granted and l.pid <> pg_backend_pid()
    and l.mode in ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
$$;

comment on function event_store_private.lock_holders(regclass) is
'The other processes that hold a lock on v_relation of the kind that a change of its rows takes, as one text.';
