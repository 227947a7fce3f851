-- One row per view with what a poller needs to decide whether to start a consumer, in one cheap call. `due` is what
-- it would be given now: the positions ahead, a subtraction per log partition without reading an event, and each stream
-- with a lock whose time has come, counted to a thousand. A stream whose last delivery had nothing after it is asked
-- again: since then an event may have come. How far a view is behind is the lag of view_lag and
-- view_info. `consumers` are those that said so (attach_consumer) and live. A URL, which
-- may hold a secret, is shown to those who may use the view.
create or replace function event_store.poll_views()
returns table (
  view text,
  mode text,
  enabled boolean,
  pooling_delay_s bigint,
  edge_function_url text,
  due bigint,
  consumers bigint
)
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
-- By index, whatever statistics say: they may be from when the tables were empty. So it is planned once: a function in
-- SQL would be planned at each call, which took three quarters of its time.
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
begin
  return query
  select
    v.view,
    v.mode,
    v.enabled,
    v.pooling_delay_s,
    case when event_store_private.may_use(v.owner) then v.edge_function_url end,
    coalesce(c.ahead, 0)::bigint + (
      select count(*) from (
        select from event_store.stream_locks k
        where k.view = v.view and k.parked_at is null and not k.caught_up and k.locked_until <= (select event_store_private.clock())
          and k.locked_until >= case when v.mode = 'rows' and d.free_from <= (select event_store_private.clock()) then d.free_from else '-infinity' end
        order by k.locked_until -- by the index that begins there, also where all look alike
        limit 1000
      ) free
    ) + (
      select count(*) from (
        select k.decider, k.decider_id, k.last_offset from event_store.stream_locks k
        where k.view = v.view and k.caught_up and k.parked_at is null and k.locked_until <= (select event_store_private.clock())
          and k.locked_until >= case when v.mode = 'rows' and d.free_from <= (select event_store_private.clock()) then d.free_from else '-infinity' end
        order by k.locked_until
        limit 1000
      ) k
      where exists (
        select from event_store.events e
        join event_store.event_log l using ("offset")
        where e.decider_id = k.decider_id and e.decider = k.decider and e."offset" > k.last_offset
          and event_store_private.wants(v.deciders, v.events, e.decider, e.event)
        offset 0 -- a look-up for each, never all events
      )
    ),
    coalesce(a.consumers, 0)
  from event_store.views v
  cross join lateral (
    select d.free_from from event_store.dispatches d where d.view = v.view order by d.revision desc limit 1
  ) d
  left join (
    select w.view, sum(greatest(p.high_water_mark - c.position, 0)) as ahead
    from (select q.partition, q.high_water_mark from event_store.partitions q offset 0) p
    cross join event_store.views w
    cross join lateral event_store_private.checkpoint_of(w.view, p.partition) c
    group by w.view
  ) c using (view)
  left join event_store_private.attached_consumers() a using (view)
  order by v.view;
end
$$;

comment on function event_store.poll_views() is
'Returns one row per view with what a poller needs to decide whether to start a consumer, in one cheap call: due is '
'about how much it would be given now, consumers counts those that called attach_consumer and live. edge_function_url is null '
'for those who may not use the view.';
revoke all on function event_store.poll_views() from public;
grant execute on function event_store.poll_views() to event_store_consumer, event_store_reader, event_store_owner;
