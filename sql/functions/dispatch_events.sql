-- Turns new events into locks of a rows view: each stream of a window of new events per log partition gets a lock if it has
-- none, and the checkpoint moves past the window. Locks with nothing left to deliver are removed. Returns how many log
-- positions were passed.
-- It alone inserts and removes locks, one caller at a time per log partition, and skips what others hold: it never waits
-- for a consumer, however long that keeps its transaction open. Meant to run in a short transaction of its own.
create or replace function event_store.dispatch_events(
  v_view text,
  v_window int default 5000
)
returns bigint
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
declare
  _now constant timestamptz := event_store.clock();
  _view constant event_store.views := event_store.known_view(v_view, 'rows');
  _claimed int[];
  _passed bigint;
begin
  -- Partitions with new events, and those where a lock may have to go: a remover that another dispatcher overtakes would
  -- remove the lock that this one relies on.
  _claimed := array(
    select c.partition
    from event_store.checkpoints c
    join event_store.partitions p using (partition)
    where c.view = v_view
      and (
        c.position < p.high_water_mark
        or c.partition in (
          select k.partition
          from event_store.stream_locks k
          where k.view = v_view and k.in_flight is null and k.parked_at is null and k.locked_until <= _now
        )
      )
    for update of c skip locked
  );

  with passed as materialized (
    select l.partition, l.partition_offset, e."offset", e.decider, e.decider_id,
      (_view.deciders is null or e.decider = any (_view.deciders))
      and (_view.events is null or e.event = any (_view.events)) as wanted
    from event_store.checkpoints c
    join event_store.event_log l
      on l.partition = c.partition and l.partition_offset >= c.position and l.partition_offset < c.position + v_window
    join event_store.events e using ("offset")
    where c.view = v_view and c.partition = any (_claimed)
  ), locked as (
    -- locked until now: it waits behind the streams that were freed before
    insert into event_store.stream_locks (
      view, decider, decider_id, partition, last_offset, locked_until, created_at, updated_at
    )
    select v_view, p.decider, p.decider_id, p.partition, min(p."offset") - 1, _now, _now, _now
    from passed p
    where p.wanted
      -- `on conflict do nothing` would wait for a consumer that has this lock in an open transaction
      and not exists (
        select from event_store.stream_locks k
        where k.view = v_view and k.decider_id = p.decider_id and k.decider = p.decider
      )
    group by p.decider, p.decider_id, p.partition
  ), moved as (
    update event_store.checkpoints c
    set position = p.position
    from (select partition, max(partition_offset) + 1 as position from passed group by partition) p
    where c.view = v_view and c.partition = p.partition
  )
  select count(*) into _passed from passed;

  -- A lock may go once nothing of its stream lies between it and the checkpoint. LATERAL … LIMIT 1 stays an index probe
  -- where EXISTS becomes a hash join.
  delete from event_store.stream_locks k
  using (
    select x.decider_id, x.decider
    from event_store.stream_locks x
    join event_store.checkpoints c on c.view = x.view and c.partition = x.partition
    left join event_store.event_log acked on acked."offset" = x.last_offset
    left join lateral (
      select 1 as one
      from event_store.events e
      where e.decider_id = x.decider_id and e.decider = x.decider and e."offset" > x.last_offset
        and (_view.events is null or e.event = any (_view.events))
      limit 1
    ) pending on true
    where x.view = v_view
      and x.partition = any (_claimed)
      and x.in_flight is null
      and x.parked_at is null
      and x.locked_until <= _now
      and pending.one is null
      and acked.partition_offset < c.position
    limit 20000
    for update of x skip locked
  ) empty
  where k.view = v_view and k.decider_id = empty.decider_id and k.decider = empty.decider;

  if _passed > 0 or _view.dispatched_at < _now - interval '500 milliseconds' then
    update event_store.views set dispatched_at = _now
    where view = (select view from event_store.views where view = v_view for update skip locked);
  end if;
  return _passed;
end
$$;

comment on function event_store.dispatch_events(text, int) is 'Locks the streams that have new events for a rows view and moves its checkpoints past them; returns how many log positions were passed. MR010, MR012.';
