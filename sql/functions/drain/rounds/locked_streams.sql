-- read_batch also leaves out their events, and the commit leaves these with the locks. A rebuild reads every stream.
-- Example: select view, decider, decider_id from locked_streams('run-7')
create or replace function event_store_platform.locked_streams(
  v_owner text
)
returns table (
  view text,
  partition int,
  decider text,
  decider_id text
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
  select v.view, k.partition, k.decider, k.decider_id
  from event_store.views v
  cross join lateral (
    select x.partition, x.decider, x.decider_id from event_store.stream_locks x where x.view = v.view
    offset 0 -- usually there is none: then no checkpoint is read
  ) k
  cross join lateral event_store_private.checkpoint_of(v.view, k.partition) c
  where v.mode = 'bulk' and event_store_private.may_use(v.owner)
    and c.lease_owner = v_owner and c.leased_until > (select event_store_private.clock()) and not c.rebuilds
  order by v.view, k.partition, k.decider, k.decider_id;
end
$$;

comment on function event_store_platform.locked_streams(text) is
'Returns the streams with a lock in the log partitions that v_owner has leased, in all bulk views that the caller may '
'use: a reader of a leased range leaves them out. None for a rebuild.';
revoke all on function event_store_platform.locked_streams(text) from public;
grant execute on function event_store_platform.locked_streams(text) to event_store_consumer, event_store_owner;
