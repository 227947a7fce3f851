-- For a consumer that reads the ranges of its leases many times a second. It looks at one version of each checkpoint,
-- however many dead versions there are. Expired leases are left out, even if no other owner took them over yet.
-- Example: select view, partition, from_position, to_position from owned_leases('run-7')
create or replace function event_store_platform.owned_leases(
  v_owner text
)
returns table (
  view text,
  partition int,
  from_position bigint,
  to_position bigint,
  lease_token bigint
)
language plpgsql
volatile -- the clock is
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered nested once
#variable_conflict use_column
begin
  return query
  select v.view, c.partition, c.leased_from, c.leased_to, c.lease_token
  from event_store.views v
  cross join event_store.log_partitions p
  cross join lateral event_store_private.checkpoint_of(v.view, p.partition) c
  where v.mode = 'bulk' and event_store_private.may_use(v.owner)
    and c.lease_owner = v_owner and c.leased_until > (select event_store_private.clock())
  order by v.view, c.partition;
end
$$;

comment on function event_store_platform.owned_leases(text) is
'Returns the leases in force that v_owner has, with their ranges, in all bulk views that the caller may use.';
revoke all on function event_store_platform.owned_leases(text) from public;
grant execute on function event_store_platform.owned_leases(text) to event_store_consumer, event_store_owner;
