-- It locks checkpoints that have events ahead or a stream due for a retry, and no live lease; it skips those that
-- others hold. Each event is checked once per view, here, and an unwanted one never reaches a consumer. A call checks
-- 100,000 positions in each log partition, to stay short.
create or replace function event_store_platform.pass_over_unwanted(
  v_view text
)
returns int[]
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered nested once
declare
  _view constant event_store.views := event_store_private.own_view(v_view, 'bulk');
  _locked int[];
begin
  -- Lock first, then read the clock, then read the marks in later statements: values read before the lock could claim a
  -- partition that has nothing left.
  _locked := array(
    select seen.partition
    from (
      select c.partition, c.revision
      from event_store.partitions p
      cross join lateral event_store_private.checkpoint_of(v_view, p.partition) c
      where (
          c.position < p.high_water_mark
          or c.partition in (
            select k.partition from event_store.stream_locks k where k.view = v_view and k.parked_at is null and k.locked_until <= (select event_store_private.clock())
          )
        )
        and (c.leased_until is null or c.leased_until <= (select event_store_private.clock()))
      offset 0
    ) seen
    -- compare-and-set: no row if another consumer changed it
    cross join lateral (
      select from event_store.checkpoints c
      where c.view = v_view and c.partition = seen.partition and c.revision = seen.revision
      for update skip locked
    ) held
  );
  -- lock_idle_view locks all that can be leased. So it either failed at our locks or committed before them, and this
  -- statement sees what it changed.
  if cardinality(_locked) > 0 and not exists (
    select from event_store.views v where v.view = _view.view and v.mode = _view.mode and v.created_at = _view.created_at
  ) then
    return '{}';
  end if;
  if _view.deciders is null and _view.events is null then
    return _locked;
  end if;

  update event_store.checkpoints c
  set position = wanted.position, revision = c.revision + 1
  from (
    select at.version, coalesce(first.position, seen.up_to) as position
    from event_store.partitions p
    cross join lateral event_store_private.checkpoint_of(v_view, p.partition) at
    cross join lateral (select least(p.high_water_mark, at.position + 100000)) seen(up_to)
    left join lateral (
      select l.position
      from event_store.event_log l
      join event_store.events e using ("offset")
      where l.partition = at.partition
        and l.position >= at.position
        and l.position < seen.up_to
        and event_store_private.wants(_view.deciders, _view.events, e.decider, e.event)
      order by l.position
      limit 1
    ) first on true
    where p.partition = any (_locked)
  ) wanted
  where c.ctid = wanted.version and c.position < wanted.position;
  return _locked;
end
$$;

comment on function event_store_platform.pass_over_unwanted(text) is
'Moves the checkpoints of a bulk view past events that it does not want, up to the first wanted one. Returns the log '
'partitions that it locked until the transaction ends. It never waits; claim_batch calls it. MR010 unknown view; '
'MR012 a rows view.';
revoke all on function event_store_platform.pass_over_unwanted(text) from public;
grant execute on function event_store_platform.pass_over_unwanted(text) to event_store_consumer, event_store_owner;
