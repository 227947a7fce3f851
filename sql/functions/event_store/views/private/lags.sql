-- The one place where lag is counted. `behind` counts positions. `lag` counts events that the view wants and did not
-- get or acknowledge: those ahead of its checkpoint, and those behind it in streams with a lock (in flight, waiting for
-- a retry, parked). `lag_seconds` is the age of the first of these that waits for the consumer; null if there is none.
-- A parked stream waits for an operator: it does not make its view late.
--
-- For a view without a filter the events ahead are a subtraction, and one event is read for its age. With a filter
-- events must be read: v_most for all of v_views together. Each is read once for all views that are not far behind.
-- Views that are further behind in a log partition are counted from their checkpoints on, as far as their share of
-- v_most reaches; views at the same position share what is read. Then exact is false, and lag means "at least"; if the
-- view wants none of these events, lag_seconds is the age of the first event that was not read.
-- Of the locks and their streams' events, v_most are read in all: each view has its share, and at most a hundredth of
-- v_most if it is further behind than v_most positions anyway. So many views do not make this costly.
-- Races: none; it takes no lock. Its callers say which views a role may ask for: every role may ask for all.
-- Example: select partition, lag from event_store_private.lags('{invoices}')
create or replace function event_store_private.lags(
  v_views text[],
  v_most bigint default 100000
)
returns table (
  view text,
  partition int,
  "position" bigint,
  high_water_mark bigint,
  behind bigint,
  lag bigint,
  lag_seconds double precision,
  exact boolean
)
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered nested once
#variable_conflict use_column
declare
  _now constant timestamptz := event_store_private.clock();
begin
  return query
  with at as materialized (
    select
      v.view, v.deciders, v.events, v.deciders is not null or v.events is not null as is_filtered,
      p.partition, c.position, p.high_water_mark,
      -- positions that are no longer kept are not lag
      greatest(c.position, p.earliest_position) as first
    from (select q.partition, q.high_water_mark, q.earliest_position from event_store.partitions q offset 0) p
    cross join (select w.* from event_store.views w where w.view = any (v_views) offset 0) v
    cross join lateral event_store_private.checkpoint_of(v.view, p.partition) c
  ), unread as materialized (
    select a.*, a.high_water_mark - a.first as positions from at a where a.is_filtered and a.first < a.high_water_mark
  ), bounds as materialized (
    -- this many of the newest positions of a log partition are read for all views that are not further behind
    select case when sum(w.positions) <= v_most then v_most else v_most / (2 * count(*)) end as near
    from (select max(u.positions) as positions from unread u group by u.partition) w
  ), near as (
    select
      u.partition, u.high_water_mark, min(u.first) as read_from, u.high_water_mark as read_to,
      array_agg(distinct u.first order by u.first) as steps, array_agg(u.view) as views, array_agg(u.first) as firsts
    from unread u
    where u.positions <= (select b.near from bounds b)
    group by u.partition, u.high_water_mark
  ), reads as (
    select n.* from near n
    union all
    select
      u.partition, u.high_water_mark, u.first,
      least(u.high_water_mark, u.first + greatest(
        (v_most - (select coalesce(sum(n.read_to - n.read_from), 0) from near n)) / count(*) over (), 1
      ))::bigint,
      array[u.first], array_agg(u.view), array_agg(u.first)
    from unread u
    where u.positions > (select b.near from bounds b)
    group by u.partition, u.high_water_mark, u.first
  ), at_views as (
    select
      a.view, a.deciders, a.events, array_agg(a.position order by a.partition) as positions,
      greatest(least(
        v_most / cardinality(v_views),
        case when sum(a.high_water_mark - a.first) filter (where a.first < a.high_water_mark) > v_most then v_most / 100 end
      ), 1) as most
    from at a
    group by a.view, a.deciders, a.events
  ), found as (
    select
      a.view, a.partition, a.position, a.high_water_mark,
      case when a.is_filtered then 0 else greatest(a.high_water_mark - a.first, 0) end as lag,
      case
        when not a.is_filtered and a.first < a.high_water_mark then (
          select e.created_at
          from event_store.event_log l
          join event_store.events e using ("offset")
          where l.partition = a.partition and l.position = a.first
        )
      end as oldest,
      false as is_parked, true as exact, true as exact_locks
    from at a
    union all
    select
      t.view, r.partition, null, null, coalesce(wanted.events, 0),
      coalesce(wanted.oldest, (
        select e.created_at
        from event_store.event_log l
        join event_store.events e using ("offset")
        where l.partition = r.partition and l.position = r.read_to and r.read_to < r.high_water_mark
      )),
      false, r.read_to = r.high_water_mark, true
    from reads r
    cross join lateral (
      select
        array_agg(x.decider) as deciders, array_agg(x.event) as events, array_agg(x.step) as steps,
        array_agg(x.numbers) as numbers, array_agg(x.oldest) as oldest
      from (
        -- events between the positions of two views are counted once, by kind
        select
          e.decider, e.event, width_bucket(l.position, r.steps) as step, count(*) as numbers, min(e.created_at) as oldest
        from event_store.event_log l
        join event_store.events e using ("offset")
        where l.partition = r.partition and l.position >= r.read_from and l.position < r.read_to
        group by 1, 2, 3
      ) x
    ) k
    cross join lateral unnest(r.views, r.firsts) t(view, first)
    join event_store.views v on v.view = t.view
    cross join lateral (
      select sum(x.numbers)::bigint as events, min(x.oldest) as oldest
      from unnest(k.deciders, k.events, k.steps, k.numbers, k.oldest) x(decider, event, step, numbers, oldest)
      where x.step >= width_bucket(t.first, r.steps) and event_store_private.wants(v.deciders, v.events, x.decider, x.event)
    ) wanted
    where wanted.events > 0 or r.read_to < r.high_water_mark
    union all
    select v.view, held.partition, null, null, held.events, held.oldest, held.is_parked, true, held.seen < v.most
    from at_views v
    cross join lateral (
      select
        k.partition, k.is_parked, count(*) filter (where k.is_behind) as events, min(k.created_at) filter (where k.is_behind) as oldest,
        sum(count(*)) over () as seen
      from (
        select k.partition, k.parked_at is not null as is_parked, e.created_at, l.position < v.positions[k.partition + 1] as is_behind
        from event_store.stream_locks k
        left join lateral (
          select e."offset", e.created_at from event_store.events e
          where e.decider_id = k.decider_id and e.decider = k.decider
            and e.version > k.last_version and e."offset" > k.last_offset
            and event_store_private.wants(v.deciders, v.events, e.decider, e.event)
        ) e on true
        -- log partitions are numbered from 0
        left join event_store.event_log l using ("offset")
        where k.view = v.view
        limit v.most
      ) k
      group by k.partition, k.is_parked
    ) held
  )
  select
    f.view, f.partition, max(f.position), max(f.high_water_mark), greatest(max(f.high_water_mark) - max(f.position), 0),
    sum(f.lag)::bigint, extract(epoch from _now - min(f.oldest) filter (where not f.is_parked))::double precision,
    -- if not all locks were read, the log partitions of the others are unknown
    bool_and(f.exact) and bool_and(bool_and(f.exact_locks)) over (partition by f.view)
  from found f
  group by f.view, f.partition
  order by f.view, f.partition;
end
$$;

comment on function event_store_private.lags(text[], bigint) is
'Returns how far each of v_views is behind in each log partition, counted as view_lag says, of v_most events in all.';
revoke all on function event_store_private.lags(text[], bigint) from public;
