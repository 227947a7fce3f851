-- How many live sessions attached themselves (attach_consumer), by the key that they hold: the hash of the view's name.
create or replace function event_store_private.attached_consumers()
returns table (
  view_hash int,
  consumers bigint
)
language sql
volatile
as $$
  -- pg_locks shows keys as oids, which have no sign
  select l.objid::bigint::bit(32)::int, count(*)
  from pg_locks l
  where l.locktype = 'advisory'
    and l.database = (select d.oid from pg_database d where d.datname = current_database())
    and l.classid = event_store_private.consumer_lock_class()::bit(32)::bigint::oid
    and l.objsubid = 2
    and l.granted
  group by 1
$$;

comment on function event_store_private.attached_consumers() is
'How many live sessions attached themselves to each view, by the hash of its name.';
