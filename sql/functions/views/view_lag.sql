-- How far a view is behind, per log partition. `lag` counts positions; `pending` counts the events that the view
-- wants (the two are equal without a filter); `pending_age_s` is the age of the oldest of these, null if there is none.
-- Events behind the checkpoint whose stream has a lock (in flight, waiting for a retry, parked) count as pending, too.
create or replace function event_store.view_lag(
  v_view text
)
returns table (
  partition int,
  "position" bigint,
  high_water_mark bigint,
  lag bigint,
  pending bigint,
  pending_age_s double precision
)
language plpgsql
stable
security definer
set search_path = event_store, pg_temp
as $$
#variable_conflict use_column
declare
  _now constant timestamptz := event_store_private.clock();
  _view constant event_store.views := event_store_private.known_view(v_view);
begin
  return query
  select
    c.partition,
    c.position,
    p.high_water_mark,
    greatest(p.high_water_mark - c.position, 0),
    coalesce(ahead.events, 0) + coalesce(held.events, 0),
    extract(epoch from _now - least(ahead.oldest, held.oldest))::double precision
  from event_store.checkpoints c
  join event_store.partitions p using (partition)
  left join lateral (
    select count(*) as events, min(e.created_at) as oldest
    from event_store.event_log l
    join event_store.events e using ("offset")
    where l.partition = c.partition
      and l.position >= c.position
      and event_store_private.wants(_view.deciders, _view.events, e.decider, e.event)
      and c.position < p.high_water_mark
  ) ahead on true
  left join lateral (
    select count(*) as events, min(e.created_at) as oldest
    from event_store.stream_locks k
    join event_store.events e on e.decider_id = k.decider_id and e.decider = k.decider and e."offset" > k.last_offset
    join event_store.event_log l using ("offset")
    where k.view = c.view
      and k.partition = c.partition
      and l.partition = c.partition
      and l.position < c.position
      and event_store_private.wants(_view.deciders, _view.events, e.decider, e.event)
  ) held on true
  where c.view = v_view
  order by c.partition;
end
$$;

comment on function event_store.view_lag(text) is
'Returns how far a view is behind in each log partition: lag counts positions, pending the events that it wants, with'
' those whose stream has a lock; pending_age_s is the age of the oldest. MR010 unknown view.';
revoke all on function event_store.view_lag(text) from public;
grant execute on function event_store.view_lag(text) to event_store_consumer, event_store_reader, event_store_owner;
