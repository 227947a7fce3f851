-- For one consumer that serves many views in rounds. A range [from_position, to_position) is as claim_batch gives it.
-- Sequences new events first. Call it in a short transaction: until it ends, other consumers get nothing of the log
-- partitions that it leases.
-- It changes no lock of a stream. read_batch leaves out the events of streams with a lock in a range (locked_streams
-- names these streams), and the commit of the range leaves these events with their locks.
-- Where no wanted event is ahead, it locks nothing and writes nothing. One exception: a checkpoint with 200 unwanted
-- positions ahead moves past them, because repeated looks would cost more than a new version of its row. A call looks
-- at 400,000 positions for all views together, or at 1,000 for each view in each log partition.
-- It skips what others hold. If one view is refused, it leases nothing.
-- Example: select view, partition, from_position, to_position from claim_views('{invoices,orders}', 'run-7')
create or replace function event_store_platform.claim_views(
  v_views text[],
  v_owner text,
  v_limit bigint default 20000,
  v_lease_s bigint default null
)
returns table (
  view text,
  partition int,
  from_position bigint,
  to_position bigint,
  lease_token bigint
)
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered nested once
#variable_conflict use_column
declare
  _views text[];
  _odd text;
  _now timestamptz;
  _locked record;
begin
  if v_views is null or array_ndims(v_views) > 1 or array_position(v_views, null) is not null then
    perform event_store_private.refuse_request(format('v_views is %L', v_views), 'v_views names the views, in a row; it may be empty.');
  end if;
  if coalesce(v_owner, '') = '' then
    perform event_store_private.refuse_request(format('v_owner is %L', v_owner), 'An owner is named: the id of a run, say.');
  end if;
  if coalesce(v_limit, 0) <= 0 then
    perform event_store_private.refuse_request(format('v_limit is %s', v_limit), 'v_limit must be at least 1.');
  end if;
  perform event_store_private.lease_duration(null, v_lease_s); -- refuses a length that is out of range
  select min(v.view) filter (where v.mode <> 'bulk' or not event_store_private.may_use(v.owner)),
    array_agg(v.view) filter (where v.enabled)
  into _odd, _views
  from event_store.views v
  where v.view = any (v_views);
  if _odd is not null then
    perform event_store_private.own_view(_odd, 'bulk'); -- names the fault
  end if;
  if _views is null then
    return;
  end if;
  perform event_store_platform.sequence_events();

  -- Look first, without a lock. The newest events of a log partition are read once for all views, grouped by kind: a
  -- view has pending events if the last event of a kind that it wants is not behind its checkpoint. For a view that
  -- lags further, the statement below looks at its own range.
  _now := event_store_private.clock();
  select
    array_agg(seen.view) as views, array_agg(seen.partition) as partitions, array_agg(seen.high_water_mark) as marks,
    array_agg(held.position) as positions, array_agg(held.version) as versions, array_agg(seen.is_passed) as passed,
    array_agg(seen.first) as firsts
  into _locked
  from (
    select t.view, g.partition, g.high_water_mark, t.position, t.revision, wanted.is_passed, wanted.first
    from (
      select
        p.partition, p.high_water_mark, array_agg(v.view) as views, array_agg(c.position) as positions,
        array_agg(c.revision) as revisions, min(c.position) filter (where p.high_water_mark - c.position <= 1000) as read_from
      from (select q.partition, q.high_water_mark from event_store.partitions q offset 0) p
      cross join unnest(_views) v(view)
      cross join lateral event_store_private.checkpoint_of(v.view, p.partition) c
      where c.position < p.high_water_mark
        and (c.leased_until is null or c.leased_until <= _now)
      group by p.partition, p.high_water_mark
    ) g
    cross join lateral (
      select array_agg(kind.decider) as deciders, array_agg(kind.event) as events, array_agg(kind.first) as firsts, array_agg(kind.last) as lasts
      from (
        select e.decider, e.event, min(l.position) as first, max(l.position) as last
        from event_store.event_log l
        join event_store.events e using ("offset")
        where l.partition = g.partition and l.position >= g.read_from and l.position < g.high_water_mark
        group by e.decider, e.event
      ) kind
    ) k
    cross join lateral unnest(g.views, g.positions, g.revisions) t(view, position, revision)
    join event_store.views v on v.view = t.view
    cross join lateral (
      select
        (v.deciders is not null or v.events is not null) and t.position >= g.read_from and count(*) = 0 as is_passed,
        -- if none of these kinds began behind the checkpoint; else the statement below looks
        case when t.position >= g.read_from and min(x.first) >= t.position then min(x.first) end as first
      from unnest(k.deciders, k.events, k.firsts, k.lasts) x(decider, event, first, last)
      where x.last >= t.position and event_store_private.wants(v.deciders, v.events, x.decider, x.event)
    ) wanted
    where wanted.is_passed is not true or g.high_water_mark - t.position >= 200 -- the price of a new version of the row
    offset 0
  ) seen
  -- compare-and-set: no row if another consumer changed it
  cross join lateral (
    select c.position, c.ctid as version from event_store.checkpoints c
    where c.view = seen.view and c.partition = seen.partition and c.revision = seen.revision and c.position = seen.position
    for update skip locked
  ) held;
  if _locked.views is null then
    return;
  end if;

  -- In a statement of its own, which sees what was committed before these locks. lock_idle_view locks all that can be
  -- leased, so it either failed at them or committed before.
  _now := event_store_private.clock();
  return query
  with at as materialized (
    select
      held.view, held.partition, held.version, held.high_water_mark, v.lock_timeout_s, held.position as from_position,
      coalesce(first."offset", oldest."offset") as "offset",
      v.all_events or held.first is not null or first.position is not null as is_pending,
      case
        when v.all_events then held.position
        when held.is_passed then held.high_water_mark
        when held.first is not null then held.first
        else coalesce(first.position, seen.up_to)
      end as position
    from unnest(_locked.views, _locked.partitions, _locked.marks, _locked.positions, _locked.versions, _locked.passed, _locked.firsts)
      held(view, partition, high_water_mark, position, version, is_passed, first)
    cross join lateral (
      select least(held.high_water_mark, held.position + greatest(400000 / cardinality(_locked.views), 1000))
    ) seen(up_to)
    cross join lateral (
      select x.deciders, x.events, x.lock_timeout_s, x.deciders is null and x.events is null as all_events
      from event_store.views x
      where x.view = held.view and x.mode = 'bulk' and x.enabled
    ) v
    left join lateral (
      select l.position, l."offset"
      from event_store.event_log l
      join event_store.events e using ("offset")
      where l.partition = held.partition
        and l.position >= held.position
        and l.position < seen.up_to
        and event_store_private.wants(v.deciders, v.events, e.decider, e.event)
        and held.is_passed is not true and held.first is null and not v.all_events
      order by l.position
      limit 1
    ) first on true
    left join event_store.event_log oldest
      on oldest.partition = held.partition and oldest.position = case when v.all_events then held.position else held.first end
  ), shared as (
    select
      a.*,
      coalesce(
        sum(a.high_water_mark - a.position) filter (where a.is_pending)
          over (partition by a.view order by a."offset" nulls first rows between unbounded preceding and 1 preceding),
        0
      )::bigint as taken_before
    from at a
  ), changed as (
    update event_store.checkpoints c
    set
      position = s.position,
      lease_owner = case when leased.here then v_owner else c.lease_owner end,
      lease_token = case when leased.here then nextval('event_store.lease_token_seq') else c.lease_token end,
      leased_until = case
        when leased.here then _now + make_interval(secs => coalesce(v_lease_s, s.lock_timeout_s)) else c.leased_until
      end,
      leased_from = case when leased.here then s.position else c.leased_from end,
      leased_to = case when leased.here then s.position + least(s.high_water_mark - s.position, v_limit - s.taken_before) else c.leased_to end,
      rebuilds = c.rebuilds and not leased.here,
      revision = c.revision + 1
    from shared s
    cross join lateral (select s.is_pending and s.taken_before < v_limit offset 0) leased(here)
    where c.ctid = s.version and (leased.here or s.position - s.from_position >= 200)
    returning c.view, c.partition, c.leased_from, c.leased_to, c.lease_token, leased.here
  )
  select d.view, d.partition, d.leased_from, d.leased_to, d.lease_token from changed d where d.here order by d.view, d.partition;
end
$$;

comment on function event_store_platform.claim_views(text[], text, bigint, bigint) is
'Leases log partitions of the bulk views v_views that have new events which the view wants to v_owner. Returns the '
'ranges to read, v_limit positions of each view, the oldest first. It never waits and retries no stream with a lock. '
'Views that are not registered or not enabled are left out. v_lease_s as for claim_batch. MR005 v_views is null or '
'has a null or several dimensions, v_owner is empty, or a number is out of range; MR012 a rows view; MR041 another '
'role''s.';
revoke all on function event_store_platform.claim_views(text[], text, bigint, bigint) from public;
grant execute on function event_store_platform.claim_views(text[], text, bigint, bigint) to event_store_consumer, event_store_owner;
