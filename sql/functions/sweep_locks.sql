-- Removes the locks of these log partitions that have nothing left: no wanted event of the stream lies between what was
-- acknowledged and the checkpoint. A lock whose stream was acknowledged beyond the checkpoint stays until that has passed, or
-- what lies between would be delivered again. An event that is still in flight counts as left, unless its lock ended and the
-- view does not want it any more: then nobody would ever get it. Returns how many. The caller holds the partitions' checkpoints.
create or replace function event_store.sweep_locks(
  v_view event_store.views,
  v_partitions int[]
)
returns bigint
language plpgsql
volatile
set search_path = event_store, pg_temp
-- By index, whatever statistics say: they may be from when the tables were empty.
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
  _now constant timestamptz := event_store.clock();
  _removed bigint;
begin
  with swept as (
    -- LATERAL … LIMIT 1 stays an index probe where EXISTS becomes a hash join
    delete from event_store.stream_locks k
    using (
      select x.decider_id, x.decider
      from event_store.stream_locks x
      join event_store.checkpoints c on c.view = x.view and c.partition = x.partition
      left join lateral (
        select l.partition_offset
        from event_store.event_log l
        where l."offset" = x.last_offset and l.partition = x.partition
      ) acknowledged on true
      left join lateral (
        select 1 as one
        from event_store.events e
        where e.decider_id = x.decider_id and e.decider = x.decider and e."offset" > x.last_offset
          and event_store.wants(v_view.deciders, v_view.events, e.decider, e.event)
        limit 1
      ) pending on true
      where x.view = v_view.view
        and x.partition = any (v_partitions)
        and x.parked_at is null
        and x.locked_until <= _now
        and pending.one is null
        and coalesce(acknowledged.partition_offset < c.position, true)
      limit 20000
      for update of x skip locked
    ) empty
    where k.view = v_view.view and k.decider_id = empty.decider_id and k.decider = empty.decider
    returning 1
  )
  select count(*) into _removed from swept;
  return _removed;
end
$$;

comment on function event_store.sweep_locks(event_store.views, int[]) is 'Removes the locks of log partitions that have nothing left; returns how many.';
