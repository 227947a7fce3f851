-- Locks with nothing left to deliver are removed. With v_max_waiting, a view without consumers keeps its lag in its
-- checkpoints, and not in a lock for every stream of the store.
-- Only this function inserts and removes locks, one caller at a time per log partition. It skips what others hold: it
-- never waits for a consumer, however long its transaction is open. Run it in a short transaction of its own.
create or replace function event_store_platform.dispatch_events(
  v_view text,
  v_window int default 5000,
  v_max_waiting int default 2000
)
returns bigint
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered nested once
declare
  _now constant timestamptz := event_store_private.clock();
  _view constant event_store.views := event_store_private.known_view(v_view, 'rows');
  _dispatch event_store.dispatches;
  _sweeps_all boolean; -- once a minute, and again while much is left to sweep
  -- The search for free locks starts here. A lock that is made, answered or given back is locked until then or later.
  -- Behind it are only dead index entries, which cannot be removed while a session holds an old snapshot.
  _free_from timestamptz;
  _has_room boolean;
  _claimed int[];
  _window bigint := v_window;
  _max_waiting bigint := v_max_waiting;
  _passed bigint;
  _swept bigint;
begin
  if coalesce(v_window, 0) <= 0 or coalesce(v_max_waiting, 0) <= 0 then
    perform event_store_private.refuse_request(
      format('v_window %s, v_max_waiting %s', coalesce(v_window::text, 'null'), coalesce(v_max_waiting::text, 'null')),
      'v_window and v_max_waiting must be at least 1.'
    );
  end if;
  -- A caller without rights on the view may still dispatch, as the sequencer does.
  if not event_store_private.may_use(_view.owner) then
    perform event_store_private.bound_idle_transaction();
    _window := least(_window, 5000);
    _max_waiting := least(_max_waiting, 2000);
  end if;
  select * into _dispatch from event_store.dispatches where view = v_view order by revision desc limit 1;
  -- also after the clock was set back
  _sweeps_all := _dispatch.swept_at <= _now - interval '1 minute' or _dispatch.swept_at > _now + interval '1 minute';
  -- once a minute, search from the beginning
  _free_from := case when _sweeps_all or _dispatch.free_from > _now then '-infinity' else _dispatch.free_from end;
  -- Partitions with new events, and those where a lock may be removable. A dispatcher that overtook a remover would
  -- rely on a lock that the remover then removes.
  _claimed := array(
    select seen.partition
    from (
      select c.partition, c.revision
      from event_store.partitions p
      cross join lateral event_store_private.checkpoint_of(v_view, p.partition) c
      where c.position < p.high_water_mark
        or _sweeps_all
        or c.partition = any (
          array(
            select k.partition from event_store.stream_locks k
            where k.view = v_view and k.caught_up and k.locked_until >= _free_from
            order by k.locked_until -- by the index on (view, locked_until), even if all locks look alike
          )
        )
      offset 0
    ) seen
    -- compare-and-set: zero rows if another caller changed the row and so did this work
    cross join lateral (
      select from event_store.checkpoints c
      where c.view = v_view and c.partition = seen.partition and c.revision = seen.revision
      for update skip locked
    ) held
  );
  -- lock_idle_view locks all that can be leased. So it either failed at our locks or committed before them, and this
  -- statement sees what it changed.
  if cardinality(_claimed) > 0 and not exists (
    select from event_store.views v where v.view = _view.view and v.mode = _view.mode and v.created_at = _view.created_at
  ) then
    return 0;
  end if;
  -- Each position may make a lock. If the filter is narrowed later, the locks of one call can be swept in one call.
  _window := least(_window, greatest(20000 / greatest(cardinality(_claimed), 1), 1));
  _has_room := cardinality(_claimed) > 0 and not exists (
    select from event_store.stream_locks k
    where k.view = v_view and k.parked_at is null and k.locked_until >= _free_from and k.locked_until <= _now
    order by k.locked_until, k.last_offset
    offset _max_waiting - 1
  );

  with passed as materialized (
    select l.partition, l.position, e."offset", e.version, e.decider, e.decider_id,
      event_store_private.wants(_view.deciders, _view.events, e.decider, e.event) as wanted
    from unnest(_claimed) claimed(partition)
    cross join lateral event_store_private.checkpoint_of(v_view, claimed.partition) c
    join event_store.event_log l
      on l.partition = c.partition and l.position >= c.position and l.position < c.position + _window
    join event_store.events e using ("offset")
    where _has_room
  ), locked as (
    -- locked until now: it queues behind the streams that were freed before
    insert into event_store.stream_locks (
      view, decider, decider_id, partition, last_offset, last_version, locked_until, created_at, updated_at, revision
    )
    select
      v_view, s.decider, s.decider_id, s.partition, s.first_offset - 1, s.first_version - 1, _now, _now, _now,
      nextval('event_store.lease_token_seq')
    from (
      select p.decider, p.decider_id, p.partition, min(p."offset") as first_offset, min(p.version) as first_version
      from passed p
      where p.wanted
      group by p.decider, p.decider_id, p.partition
    ) s
    -- One probe for each stream, however many wait: the planner may make an anti join compare each with all.
    -- `on conflict do nothing` would wait for a consumer that has this lock in an open transaction.
    left join lateral (
      select true as held from event_store_private.newest_lock(v_view, s.decider_id, s.decider)
    ) k on true
    where k.held is null
  ), moved as (
    update event_store.checkpoints c
    set position = p.position, revision = c.revision + 1
    from (select partition, max(position) + 1 as position from passed group by partition offset 0) p
    cross join lateral event_store_private.checkpoint_of(v_view, p.partition) held
    where c.ctid = held.version
  )
  select count(*) into _passed from passed;

  _swept := event_store_private.sweep_locks(_view, _claimed, _sweeps_all, _free_from);

  if _passed > 0 or _sweeps_all or _dispatch.failed_at is not null
    or _dispatch.dispatched_at not between _now - interval '500 milliseconds' and _now + interval '500 milliseconds' then
    -- one second of slack for answers that are not committed yet
    _free_from := least(
      _now - interval '1 second',
      (
        select k.locked_until from event_store.stream_locks k
        where k.view = v_view and k.parked_at is null and k.locked_until >= _free_from
        order by k.locked_until, k.last_offset
        limit 1
      )
    );
    update event_store.dispatches d
    set
      dispatched_at = _now, swept_at = case when _sweeps_all and _swept < 1000 then _now else d.swept_at end, free_from = _free_from,
      failed_at = null, error = null, revision = d.revision + 1
    where d.ctid = any (
      array(
        select h.ctid from event_store.dispatches h where h.view = v_view and h.revision = _dispatch.revision for update skip locked
      )
    );
  end if;
  return _passed;
end
$$;

comment on function event_store_platform.dispatch_events(text, int, int) is
'Locks each stream with new events for a rows view, looking at v_window positions of each log partition, moves its '
'checkpoints past them, and returns how many positions it passed: none while v_max_waiting streams wait for a '
'consumer. It never waits; stream_events calls it if no other process does. MR005 an argument is not positive; MR010 '
'unknown view; MR012 a bulk view.';
revoke all on function event_store_platform.dispatch_events(text, int, int) from public;
grant execute on function event_store_platform.dispatch_events(text, int, int) to event_store_consumer, event_store_owner;
