-- A name that is not registered gives no row. A view that is not enabled is counted as if it were. For a view more than
-- a thousand positions behind in a log partition, only the first of these are read, about 20,000 in all: if the view
-- wants none of them, `due` is 1 until a consumer has passed over them. An event ahead counts also if its stream has a
-- lock: a consumer hands it over to the lock. `retries` are streams that have an event. `locked` is null for a rows
-- view, where each delivered stream has a lock. A URL may hold a secret. Where nothing is ahead, no event is read. The
-- newest thousand positions of a log partition are read once for all views.
-- Example: select view, due, retries from poll_views('{invoices}')
create or replace function event_store_platform.poll_views(
  v_views text[] default null
)
returns table (
  view text,
  mode text,
  enabled boolean,
  pooling_delay_s bigint,
  edge_function_url text,
  due bigint,
  consumers bigint,
  retries bigint,
  locked bigint,
  ahead bigint
)
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
-- By index, whatever statistics say: they may be from when the tables were empty. So one plan serves all calls: SQL
-- would be planned at each call, which took three quarters of the time.
as $$
-- planner: indexed ordered nested once
#variable_conflict use_column
declare
  _now constant timestamptz := event_store_private.clock();
  _views constant text[] := array(select v.view from event_store.views v where v_views is null or v.view = any (v_views));
  _behind record;
  _wanted record;
  _locks record;
  _attached record;
begin
  -- A statement for each question: mostly the first one finds nothing, and the costly ones do not run.
  select
    array_agg(v.view) as views, array_agg(p.partition) as partitions, array_agg(p.high_water_mark) as marks,
    array_agg(c.position) as positions
  into _behind
  from (select q.partition, q.high_water_mark from event_store.partitions q offset 0) p
  cross join unnest(_views) v(view)
  cross join lateral event_store_private.checkpoint_of(v.view, p.partition) c
  where c.position < p.high_water_mark;

  if _behind.views is not null then
    with behind as materialized (
      select
        b.view, b.partition, b.high_water_mark, b.position, v.deciders, v.events,
        v.deciders is not null or v.events is not null as is_filtered,
        b.high_water_mark - b.position > 1000 as is_far
      from unnest(_behind.views, _behind.partitions, _behind.marks, _behind.positions) b(view, partition, high_water_mark, position)
      join event_store.views v on v.view = b.view
    ), near as (
      -- the kinds of the newest events of a log partition, for all views that are not far behind
      select t.view, wanted.events
      from (
        select
          b.partition, b.high_water_mark, min(b.position) as read_from, array_agg(b.view) as views, array_agg(b.position) as positions
        from behind b
        where b.is_filtered and not b.is_far
        group by b.partition, b.high_water_mark
      ) g
      cross join lateral (
        select
          array_agg(x.decider) as deciders, array_agg(x.event) as events, array_agg(x.events) as numbers,
          array_agg(x.first) as firsts, array_agg(x.last) as lasts
        from (
          select e.decider, e.event, count(*) as events, min(l.position) as first, max(l.position) as last
          from event_store.event_log l
          join event_store.events e using ("offset")
          where l.partition = g.partition and l.position >= g.read_from and l.position < g.high_water_mark
          group by e.decider, e.event
        ) x
      ) k
      cross join lateral unnest(g.views, g.positions) t(view, position)
      join event_store.views v on v.view = t.view
      cross join lateral (
        select sum(x.events) as events, bool_or(x.first < t.position) as is_cut
        from unnest(k.deciders, k.events, k.numbers, k.firsts, k.lasts) x(decider, event, events, first, last)
        where x.last >= t.position and event_store_private.wants(v.deciders, v.events, x.decider, x.event)
      ) kinds
      cross join lateral (
        select case
          when kinds.is_cut then (
            -- some of these are behind the checkpoint
            select count(*)
            from event_store.event_log l
            join event_store.events e using ("offset")
            where l.partition = g.partition and l.position >= t.position and l.position < g.high_water_mark
              and event_store_private.wants(v.deciders, v.events, e.decider, e.event)
          )
          else kinds.events
        end
      ) wanted(events)
    ), far as (
      -- each view by itself: its share of 20,000 positions, or 100 where there are many
      select b.view, wanted.events, wanted.events = 0 and b.position + b.share < b.high_water_mark as is_hidden
      from (
        select f.*, greatest(20000 / count(*) over (), 100) as share from behind f where f.is_filtered and f.is_far
      ) b
      cross join lateral (
        select count(*) as events
        from event_store.event_log l
        join event_store.events e using ("offset")
        where l.partition = b.partition and l.position >= b.position and l.position < b.position + b.share
          and event_store_private.wants(b.deciders, b.events, e.decider, e.event)
      ) wanted
    ), summed as (
      select x.view, greatest(least(sum(x.events), 1000), max(x.is_hidden::int), 0)::bigint as events, sum(x.ahead)::bigint as ahead
      from (
        select n.view, n.events, false as is_hidden, 0 as ahead from near n where n.events > 0
        union all
        select f.view, f.events, f.is_hidden, 0 from far f
        union all
        select b.view, case when b.is_filtered then 0 else b.high_water_mark - b.position end, false, b.high_water_mark - b.position
        from behind b
      ) x
      group by x.view
    )
    select array_agg(x.view) as views, array_agg(x.events) as events, array_agg(x.ahead) as ahead into _wanted from summed x;
  else
    select null::text[] as views, null::bigint[] as events, null::bigint[] as ahead into _wanted;
  end if;

  select array_agg(v.view) as views, array_agg(d.free_from) as free_from into _locks
  from event_store.views v
  cross join lateral (
    -- In a rows view only free locks are checked: locks of deliveries leave a dead entry for each event.
    -- Below free_from there are only dead entries, too: see dispatch_events.
    select
      case when v.mode = 'rows' and x.free_from <= _now then x.free_from else '-infinity' end as free_from,
      case when v.mode = 'rows' then _now else 'infinity' end as free_to
    from event_store.dispatches x where x.view = v.view order by x.revision desc limit 1
  ) d
  where v.view = any (_views)
    and (
      exists (
        select from event_store.stream_locks k
        where k.view = v.view and k.parked_at is null and k.locked_until >= d.free_from and k.locked_until <= d.free_to
        order by k.locked_until -- by the index that begins there, also where all plans look alike
        offset 0 -- which keeps the order
      )
      or v.mode = 'bulk'
        and exists (select from event_store.stream_locks k where k.view = v.view and k.parked_at is not null order by k.parked_at offset 0)
    );
  if _locks.views is not null then
    select
      array_agg(v.view) as views, array_agg(due.streams) as due, array_agg(least(live.streams + parked.streams, 1000)) as locked
    into _locks
    from unnest(_locks.views, _locks.free_from) d(view, free_from)
    join event_store.views v on v.view = d.view
    cross join lateral (
      select least(free.streams + caught_up.streams, 1000) as streams
      from (
        select count(*) as streams from (
          select from event_store.stream_locks k
          where k.view = v.view and k.parked_at is null and not k.caught_up and k.locked_until <= _now and k.locked_until >= d.free_from
            and v.mode = 'rows'
          order by k.locked_until
          limit 1000
        ) k
      ) free
      cross join (
        -- an event may have come since their last delivery; in a bulk view any of them may have nothing left
        select count(*) as streams
        from (
          (
            select k.decider, k.decider_id, k.last_offset, k.last_version from event_store.stream_locks k
            where k.view = v.view and k.caught_up and k.parked_at is null and k.locked_until <= _now and k.locked_until >= d.free_from
              and v.mode = 'rows'
            order by k.locked_until
            limit 1000
          )
          union all
          (
            select k.decider, k.decider_id, k.last_offset, k.last_version from event_store.stream_locks k
            where k.view = v.view and k.parked_at is null and k.locked_until <= _now and v.mode = 'bulk'
            order by k.locked_until
            limit 1000
          )
        ) k
        where exists (
          select from event_store.events e
          join event_store.event_log l using ("offset")
          where e.decider_id = k.decider_id and e.decider = k.decider
            and e.version > k.last_version and e."offset" > k.last_offset
            and event_store_private.wants(v.deciders, v.events, e.decider, e.event)
          offset 0 -- a look-up for each lock, never all events
        )
      ) caught_up
    ) due
    cross join lateral (
      select count(*) as streams from (
        select from event_store.stream_locks k
        where k.view = v.view and k.parked_at is null and v.mode = 'bulk'
        order by k.locked_until
        limit 1000
      ) k
    ) live
    cross join lateral (
      select count(*) as streams from (
        select from event_store.stream_locks k
        where k.view = v.view and k.parked_at is not null and v.mode = 'bulk'
        order by k.parked_at
        limit 1000
      ) k
    ) parked;
  else
    select null::text[] as views, null::bigint[] as due, null::bigint[] as locked into _locks;
  end if;

  if exists (select from event_store.consumers c where c.attached_until > _now and c.view = any (_views)) then
    select array_agg(a.view) as views, array_agg(a.consumers) as consumers into _attached
    from event_store_private.attached_consumers() a;
  else
    select null::text[] as views, null::bigint[] as consumers into _attached;
  end if;

  return query
  select
    v.view,
    v.mode,
    v.enabled,
    v.pooling_delay_s,
    case when event_store_private.may_use(v.owner) then v.edge_function_url end,
    coalesce(_wanted.events[array_position(_wanted.views, v.view)], 0) + coalesce(_locks.due[array_position(_locks.views, v.view)], 0),
    coalesce(_attached.consumers[array_position(_attached.views, v.view)], 0),
    coalesce(_locks.due[array_position(_locks.views, v.view)], 0),
    case when v.mode = 'bulk' then coalesce(_locks.locked[array_position(_locks.views, v.view)], 0) end,
    coalesce(_wanted.ahead[array_position(_wanted.views, v.view)], 0)
  from event_store.views v
  where v.view = any (_views)
  order by v.view;
end
$$;

comment on function event_store_platform.poll_views(text[]) is
'Returns one row per view, or only v_views: a poller decides by it whether to start a consumer. It is one cheap '
'call. due counts what the view would get now, wanted events and retries; retries counts streams with a lock that is due; '
'locked counts streams of a bulk view with a lock, each to a thousand; ahead counts positions, wanted or not; consumers counts those that '
'called attach_consumer and live. edge_function_url is null for callers that may not use the view.';
revoke all on function event_store_platform.poll_views(text[]) from public;
grant execute on function event_store_platform.poll_views(text[]) to event_store_consumer, event_store_reader, event_store_owner;
