-- Lists the owners of current leases of a view's log partitions.
create or replace function event_store_platform.lease_owners(
  v_view text
)
returns setof text
language sql
volatile
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered
  select distinct c.lease_owner
  from event_store.log_partitions p
  cross join lateral event_store_private.checkpoint_of(v_view, p.partition) c
  where c.leased_until > event_store_private.clock()
  order by 1
$$;

comment on function event_store_platform.lease_owners(text) is 'Returns the owners of the leases of a view that are in force.';
revoke all on function event_store_platform.lease_owners(text) from public;
grant execute on function event_store_platform.lease_owners(text) to event_store_consumer, event_store_reader, event_store_owner;
