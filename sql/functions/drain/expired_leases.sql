-- Example: select view, lease_owner from expired_leases()
create or replace function event_store_platform.expired_leases()
returns table (
  view text,
  lease_owner text,
  partitions bigint
)
language sql
volatile
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered
  select v.view, c.lease_owner, count(*)
  from event_store.views v
  cross join event_store.log_partitions p
  cross join lateral event_store_private.checkpoint_of(v.view, p.partition) c
  where c.leased_until <= (select event_store_private.clock())
  group by v.view, c.lease_owner
  order by v.view, c.lease_owner
$$;

comment on function event_store_platform.expired_leases() is
'Returns the owners of expired leases of log partitions, with the view and the number of leases: they ended without '
'releasing them. The next claim takes these leases over.';
revoke all on function event_store_platform.expired_leases() from public;
grant execute on function event_store_platform.expired_leases() to event_store_consumer, event_store_reader, event_store_owner;
