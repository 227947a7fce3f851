-- The caller holds the checkpoints of the partitions.
--
-- A lock has nothing left if the view wants no event of its stream after the acknowledged one. It stays while the
-- stream is acknowledged beyond the checkpoint: without it, the events in between would be delivered again. An event in
-- flight counts as left, unless its lock ended and the view no longer wants it: no consumer would ever get it.
--
-- It checks streams that had caught up when they were acknowledged, so that waiting streams cost nothing. v_all: it
-- checks all locks, for those that end another way, such as by a narrowed filter. v_free_from: it does not search locks
-- that were acknowledged before.
create or replace function event_store_private.sweep_locks(
  v_view event_store.views,
  v_partitions int[],
  v_all boolean,
  v_free_from timestamptz default '-infinity'
)
returns bigint
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered nested once
declare
  _now constant timestamptz := event_store_private.clock();
  _candidates tid[];
  _removed bigint;
begin
  -- Lock first, look in another statement. There are two queries, as each has its own index.
  if v_all then
    _candidates := array(
      select k.ctid from event_store.stream_locks k
      where k.view = v_view.view and k.partition = any (v_partitions) and k.parked_at is null and k.locked_until <= _now
      limit 20000
      for update skip locked
    );
  else
    _candidates := array(
      select k.ctid from event_store.stream_locks k
      where k.view = v_view.view and k.partition = any (v_partitions) and k.caught_up and k.parked_at is null
        and k.locked_until >= v_free_from and k.locked_until <= _now
      order by k.locked_until
      limit 20000
      for update skip locked
    );
  end if;
  if cardinality(_candidates) = 0 then
    return 0;
  end if;
  update event_store.stream_locks k
  set caught_up = false, revision = k.revision + 1
  where k.ctid = any (_candidates)
    and k.caught_up
    and exists (
      select from event_store.events e
      where e.decider_id = k.decider_id and e.decider = k.decider
        and e.version > k.last_version and e."offset" > k.last_offset
        and event_store_private.wants(v_view.deciders, v_view.events, e.decider, e.event)
    );
  delete from event_store.stream_locks k
  where k.ctid = any (_candidates)
    -- in this order: if a stream has something left, many events may follow the acknowledged one
    and case
      when exists (
        select from event_store.events e
        where e.decider_id = k.decider_id and e.decider = k.decider
          and e.version > k.last_version and e."offset" > k.last_offset
          and event_store_private.wants(v_view.deciders, v_view.events, e.decider, e.event)
      ) then false
      else coalesce(
        (
          -- a bulk view acknowledges up to a position that may be no event of the stream
          select l.position
          from event_store.events e
          join event_store.event_log l using ("offset")
          where e.decider_id = k.decider_id and e.decider = k.decider and e."offset" <= k.last_offset
          order by e.version desc
          limit 1
        ) < (select c.position from event_store_private.checkpoint_of(v_view.view, k.partition) c),
        true
      )
    end;
  get diagnostics _removed = row_count;
  return _removed;
end
$$;

comment on function event_store_private.sweep_locks(event_store.views, int[], boolean, timestamptz) is
'Removes the locks of log partitions that have nothing left; returns how many.';
