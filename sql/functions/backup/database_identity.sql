-- A file that belongs to one database, and a slot in a source, carry this identity.
create or replace function event_store_platform.database_identity()
returns table (
  system_identifier text,
  database text,
  database_oid oid
)
language sql
stable
security definer
set search_path = event_store, pg_temp
as $$
  select c.system_identifier::text, d.datname::text, d.oid
  from pg_control_system() c
  cross join pg_database d
  where d.datname = current_database()
$$;

comment on function event_store_platform.database_identity() is
'Returns the identity of this database, which no copy of it shares: the cluster''s system identifier, the database''s '
'name and its oid.';
revoke all on function event_store_platform.database_identity() from public;
grant execute on function event_store_platform.database_identity()
to event_store_consumer, event_store_reader, event_store_owner;
