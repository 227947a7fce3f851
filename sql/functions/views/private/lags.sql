-- How far views are behind, a row for each view and log partition: the one place where lag is counted. `behind` counts
-- positions. `lag` counts events that the view wants and was not given, or did not acknowledge: those ahead of its
-- checkpoint, and those behind it whose stream has a lock (in flight, waiting for a retry, parked). `lag_seconds` is the
-- age of the first of these; null if there is none.
--
-- For a view without a filter the events ahead are a subtraction, and one event is read for its age. For one with a
-- filter events must be read: 100,000 for all of v_views together, each but once for all that are not far behind. A view
-- that is further behind in a log partition is counted from its checkpoint on, as far as its share of the 100,000 reaches,
-- 100 at least. Then exact is false, and lag means "at least"; if none of these is wanted, lag_seconds is the age of the
-- first event that was not read. Of events behind the checkpoints of a view 100,000 are counted, or its share of these
-- where there are many views, and 1,000 if it is further behind than 100,000 positions anyway.
-- Races: none; it takes no lock. Its callers say which views somebody may ask for: everybody may ask for all.
-- Example: select partition, lag from event_store_private.lags('{invoices}')
create or replace function event_store_private.lags(
  v_views text[]
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
  _most constant bigint := 100000;
begin
  return query
  with at as materialized (
    select
      v.view, v.deciders, v.events, v.deciders is not null or v.events is not null as is_filtered,
      p.partition, c.position, p.high_water_mark,
      -- what was given up is not lag
      greatest(c.position, p.earliest_position) as first
    from (select q.partition, q.high_water_mark, q.earliest_position from event_store.partitions q offset 0) p
    cross join (select w.* from event_store.views w where w.view = any (v_views) offset 0) v
    cross join lateral event_store_private.checkpoint_of(v.view, p.partition) c
  ), unread as materialized (
    select a.*, a.high_water_mark - a.first as positions from at a where a.is_filtered and a.first < a.high_water_mark
  ), bounds as materialized (
    -- so much of the newest of each log partition is read for all views that are not further behind
    select case when sum(w.positions) <= _most then _most else _most / (2 * count(*)) end as near
    from (select max(u.positions) as positions from unread u group by u.partition) w
  ), near as (
    select
      u.partition, u.high_water_mark, min(u.first) as read_from, array_agg(distinct u.first order by u.first) as steps,
      array_agg(u.view) as views, array_agg(u.first) as firsts
    from unread u
    where u.positions <= (select b.near from bounds b)
    group by u.partition, u.high_water_mark
  ), far as (
    select
      u.*,
      greatest(
        (_most - (select coalesce(sum(n.high_water_mark - n.read_from), 0) from near n)) / count(*) over (), 100
      )::bigint as share
    from unread u
    where u.positions > (select b.near from bounds b)
  ), at_views as (
    select
      a.view, a.deciders, a.events, array_agg(a.position order by a.partition) as positions,
      case
        when sum(a.high_water_mark - a.first) filter (where a.first < a.high_water_mark) > _most then _most / 100
        else greatest(_most / cardinality(v_views), _most / 100)
      end as most
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
      true as exact, true as exact_locks
    from at a
    union all
    select t.view, n.partition, null, null, wanted.events, wanted.oldest, true, true
    from near n
    cross join lateral (
      select
        array_agg(x.decider) as deciders, array_agg(x.event) as events, array_agg(x.step) as steps,
        array_agg(x.numbers) as numbers, array_agg(x.oldest) as oldest
      from (
        -- what lies between the places where two views stand is counted once, by kind
        select
          e.decider, e.event, width_bucket(l.position, n.steps) as step, count(*) as numbers, min(e.created_at) as oldest
        from event_store.event_log l
        join event_store.events e using ("offset")
        where l.partition = n.partition and l.position >= n.read_from and l.position < n.high_water_mark
        group by 1, 2, 3
      ) x
    ) k
    cross join lateral unnest(n.views, n.firsts) t(view, first)
    join event_store.views v on v.view = t.view
    cross join lateral (
      select sum(x.numbers)::bigint as events, min(x.oldest) as oldest
      from unnest(k.deciders, k.events, k.steps, k.numbers, k.oldest) x(decider, event, step, numbers, oldest)
      where x.step >= width_bucket(t.first, n.steps) and event_store_private.wants(v.deciders, v.events, x.decider, x.event)
    ) wanted
    where wanted.events > 0
    union all
    select
      f.view, f.partition, null, null, wanted.events,
      coalesce(wanted.oldest, (
        select e.created_at
        from event_store.event_log l
        join event_store.events e using ("offset")
        where l.partition = f.partition and l.position = f.first + f.share and f.first + f.share < f.high_water_mark
      )),
      f.first + f.share >= f.high_water_mark, true
    from far f
    cross join lateral (
      select count(*) as events, min(e.created_at) as oldest
      from event_store.event_log l
      join event_store.events e using ("offset")
      where l.partition = f.partition and l.position >= f.first and l.position < least(f.first + f.share, f.high_water_mark)
        and event_store_private.wants(f.deciders, f.events, e.decider, e.event)
    ) wanted
    union all
    select v.view, held.partition, null, null, held.events, held.oldest, true, held.all_events < v.most
    from at_views v
    cross join lateral (
      select k.partition, count(*) as events, min(k.created_at) as oldest, sum(count(*)) over () as all_events
      from (
        select k.partition, e.created_at
        from event_store.stream_locks k
        cross join lateral (
          select e."offset", e.created_at from event_store.events e
          where e.decider_id = k.decider_id and e.decider = k.decider and e."offset" > k.last_offset
            and event_store_private.wants(v.deciders, v.events, e.decider, e.event)
        ) e
        join event_store.event_log l using ("offset")
        -- log partitions are numbered from 0
        where k.view = v.view and l.position < v.positions[k.partition + 1]
        limit v.most
      ) k
      group by k.partition
    ) held
  )
  select
    f.view, f.partition, max(f.position), max(f.high_water_mark), greatest(max(f.high_water_mark) - max(f.position), 0),
    sum(f.lag)::bigint, extract(epoch from _now - min(f.oldest))::double precision,
    -- where not all locks were looked at, nobody knows of which log partition the others are
    bool_and(f.exact) and bool_and(bool_and(f.exact_locks)) over (partition by f.view)
  from found f
  group by f.view, f.partition
  order by f.view, f.partition;
end
$$;

comment on function event_store_private.lags(text[]) is
'Returns how far each of v_views is behind in each log partition, counted as view_lag says.';
revoke all on function event_store_private.lags(text[]) from public;
