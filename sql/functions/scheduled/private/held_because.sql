-- Both parts of its identity differ in a copy: a dump has another database, a replica by logical replication another cluster.
create or replace function event_store_private.held_because()
returns text
language sql
stable
set search_path = event_store, pg_temp
as $$
  select case
    when s.held_until > event_store_private.clock() then s.held_because
    when (s.cluster, s.database) <> (c.system_identifier, d.oid) then 'this database is a copy'
  end
  from event_store.schedule s
  cross join pg_control_system() c
  cross join pg_database d
  where d.datname = current_database()
$$;

comment on function event_store_private.held_because() is 'Why no scheduled event is appended now; null if they are.';
