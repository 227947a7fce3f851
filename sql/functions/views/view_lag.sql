-- How far a view is behind, per log partition. `lag` counts positions; `pending` counts the events that the view
-- wants (the two are equal without a filter); `pending_age_s` is the age of the first of these, null if there is none.
-- Events behind the checkpoint whose stream has a lock (in flight, waiting for a retry, parked) count as pending, too.
--
-- Without a filter pending is a subtraction, and one event is read for its age. With one, events must be read: of a view
-- that is 100,000 positions behind, all; of one that is further behind, the first 100,000, shared among the log
-- partitions. Then exact is false, and pending means "at least"; if none of these is wanted, pending_age_s is the age of
-- the first event that was not read. Of events behind the checkpoints 100,000 are counted, and 1,000 if the view is
-- further behind than that anyway.
-- Races: none; it takes no lock.
-- Example: select sum(lag), sum(pending), bool_and(exact) from view_lag('invoices')
create or replace function event_store.view_lag(
  v_view text
)
returns table (
  partition int,
  "position" bigint,
  high_water_mark bigint,
  lag bigint,
  pending bigint,
  pending_age_s double precision,
  exact boolean
)
language plpgsql
stable
security definer
set search_path = event_store, pg_temp
-- by index, whatever statistics say: they may be from when the tables were empty
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  _now constant timestamptz := event_store_private.clock();
  _view constant event_store.views := event_store_private.known_view(v_view);
  _filtered constant boolean := _view.deciders is not null or _view.events is not null;
  _most constant bigint := 100000;
  _share bigint; -- so many positions of each log partition are read
  _most_held bigint;
begin
  select
    case when sum(behind.positions) > _most then _most / count(*) else _most end,
    case when sum(behind.positions) > _most then _most / 100 else _most end
  into _share, _most_held
  from (
    select p.high_water_mark - greatest(c.position, p.earliest_position) as positions
    from event_store.partitions p
    cross join lateral event_store_private.checkpoint_of(v_view, p.partition) c
  ) behind
  where behind.positions > 0;
  return query
  with at as materialized (
    select
      c.partition, c.position, p.high_water_mark,
      -- what was given up is not pending
      greatest(c.position, p.earliest_position) as first,
      case
        when _filtered then least(p.high_water_mark, greatest(c.position, p.earliest_position) + _share)
        else greatest(c.position, p.earliest_position)
      end as read_to
    from event_store.partitions p
    cross join lateral event_store_private.checkpoint_of(v_view, p.partition) c
  ), held as materialized (
    select k.partition, count(*) as events, min(k.created_at) as oldest, sum(count(*)) over () as all_events
    from (
      select k.partition, e.created_at
      from event_store.stream_locks k
      join at using (partition)
      cross join lateral (
        select e."offset", e.created_at from event_store.events e
        where e.decider_id = k.decider_id and e.decider = k.decider and e."offset" > k.last_offset
          and event_store_private.wants(_view.deciders, _view.events, e.decider, e.event)
      ) e
      join event_store.event_log l using ("offset")
      where k.view = v_view and l.position < at.position
      limit _most_held
    ) k
    group by k.partition
  )
  select
    at.partition,
    at.position,
    at.high_water_mark,
    greatest(at.high_water_mark - at.position, 0),
    coalesce(ahead.events, 0) + case when _filtered then 0 else greatest(at.high_water_mark - at.first, 0) end
      + coalesce(held.events, 0),
    extract(epoch from _now - least(ahead.oldest, unread.oldest, held.oldest))::double precision,
    (not _filtered or at.read_to >= at.high_water_mark) and coalesce((select h.all_events from held h limit 1) < _most_held, true)
  from at
  left join held using (partition)
  left join lateral (
    select count(*) as events, min(e.created_at) as oldest
    from event_store.event_log l
    join event_store.events e using ("offset")
    where l.partition = at.partition
      and l.position >= at.first
      and l.position < at.read_to
      and event_store_private.wants(_view.deciders, _view.events, e.decider, e.event)
  ) ahead on _filtered
  left join lateral (
    select e.created_at as oldest
    from event_store.event_log l
    join event_store.events e using ("offset")
    where l.partition = at.partition and l.position = at.read_to and at.read_to < at.high_water_mark
  ) unread on ahead.oldest is null
  order by at.partition;
end
$$;

comment on function event_store.view_lag(text) is
'Returns how far a view is behind in each log partition: lag counts positions, pending the events that it wants, with '
'those whose stream has a lock; pending_age_s is the age of the first. Where a view is more than 100,000 positions '
'behind, pending may mean at least so many: then exact is false. MR010 unknown view.';
revoke all on function event_store.view_lag(text) from public;
grant execute on function event_store.view_lag(text) to event_store_consumer, event_store_reader, event_store_owner;
