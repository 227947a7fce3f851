-- Leases log partitions of many bulk views in one call, for one consumer that serves them all in rounds: those with an
-- event that the view wants and no live lease, v_limit positions of each view, its oldest pending events first. A range
-- [from_position, to_position) is as claim_batch gives it. Sequences new events first. Never waits: what others hold is
-- left out. Call it in a short transaction: until it ends, others are given nothing of the log partitions it leases.
-- Only new events: no stream with a lock is tried again here, and no lock is touched. Their events in a range are left
-- out by read_batch (locked_streams names these streams) and stay with their locks when the range is committed.
-- Where nothing wanted is ahead, nothing is locked and nothing is written; except that a checkpoint with 1,000 unwanted
-- positions behind it moves past them, so that nobody looks at them for ever. A call looks at 100,000 positions of a
-- log partition at most.
-- A view that is not registered, or not enabled, is left out: the others go on. A rows view or another role's is
-- refused, and then nothing is leased.
-- Example: select view, partition, from_position, to_position from claim_views('{invoices,orders}', 'run-7')
create or replace function event_store.claim_views(
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
-- By index, whatever statistics say: they may be from when the tables were empty. So it is planned once.
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  _views text[];
  _odd text;
  _now timestamptz;
  _locked_views text[];
  _locked int[];
begin
  if v_views is null or array_position(v_views, null) is not null then
    perform event_store_private.refuse_request(format('v_views is %L', v_views), 'v_views names the views; it may be empty.');
  end if;
  if coalesce(v_owner, '') = '' then
    perform event_store_private.refuse_request(format('v_owner is %L', v_owner), 'An owner is named: the id of a run, say.');
  end if;
  if coalesce(v_limit, 0) <= 0 then
    perform event_store_private.refuse_request(format('v_limit is %s', v_limit), 'v_limit must be at least 1.');
  end if;
  perform event_store_private.lease_duration(null, v_lease_s); -- refuses one that is out of range
  select min(v.view) filter (where v.mode <> 'bulk' or not event_store_private.may_use(v.owner)),
    array_agg(v.view) filter (where v.enabled)
  into _odd, _views
  from event_store.views v
  where v.view = any (v_views);
  if _odd is not null then
    perform event_store_private.own_view(_odd, 'bulk'); -- says what is wrong
  end if;
  if _views is null then
    return;
  end if;
  perform event_store.sequence_events();

  -- Look first, and lock only what there is something to do for.
  _now := event_store_private.clock();
  select array_agg(seen.view), array_agg(seen.partition) into _locked_views, _locked
  from (
    select v.view, p.partition, c.revision
    from (select q.partition, q.high_water_mark from event_store.partitions q offset 0) p
    cross join event_store.views v
    cross join lateral event_store_private.checkpoint_of(v.view, p.partition) c
    where v.view = any (_views)
      and c.position < p.high_water_mark
      and (c.leased_until is null or c.leased_until <= _now)
      and (
        p.high_water_mark - c.position >= 1000
        or exists (
          select from event_store.event_log l
          join event_store.events e using ("offset")
          where l.partition = p.partition
            and l.position >= c.position
            and event_store_private.wants(v.deciders, v.events, e.decider, e.event)
          offset 0 -- a look-up for each, never all events
        )
      )
    offset 0
  ) seen
  -- the row that was seen, or none: who changed it since has it
  cross join lateral (
    select from event_store.checkpoints c
    where c.view = seen.view and c.partition = seen.partition and c.revision = seen.revision
    for update skip locked
  ) held;
  if _locked is null then
    return;
  end if;

  -- In a statement of its own, which sees what was committed before the locks were ours: lock_idle_view, which holds all
  -- that can be leased, either failed at them, or was done before.
  _now := event_store_private.clock();
  return query
  with at as materialized (
    select
      v.view, c.partition, c.version, p.high_water_mark, v.lock_timeout_s,
      first.position is not null as is_pending, first."offset",
      greatest(coalesce(first.position, seen.up_to), c.position) as position,
      c.position as from_position
    from unnest(_locked_views, _locked) held(view, partition)
    join event_store.views v on v.view = held.view and v.mode = 'bulk' and v.enabled
    join event_store.partitions p on p.partition = held.partition
    cross join lateral event_store_private.checkpoint_of(held.view, held.partition) c
    cross join lateral (select least(p.high_water_mark, c.position + 100000)) seen(up_to)
    left join lateral (
      select l.position, l."offset"
      from event_store.event_log l
      join event_store.events e using ("offset")
      where l.partition = held.partition
        and l.position >= c.position
        and l.position < seen.up_to
        and event_store_private.wants(v.deciders, v.events, e.decider, e.event)
      order by l.position
      limit 1
    ) first on true
  ), shared as (
    select
      a.*,
      coalesce(
        sum(a.high_water_mark - a.position) filter (where a.is_pending)
          over (partition by a.view order by a."offset" rows between unbounded preceding and 1 preceding),
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
    cross join lateral (select s.is_pending and s.taken_before < v_limit) leased(here)
    where c.ctid = s.version and (leased.here or s.position - s.from_position >= 1000)
    returning c.view, c.partition, c.leased_from, c.leased_to, c.lease_token, leased.here
  )
  select d.view, d.partition, d.leased_from, d.leased_to, d.lease_token from changed d where d.here order by d.view, d.partition;
end
$$;

comment on function event_store.claim_views(text[], text, bigint, bigint) is
'Leases log partitions of the bulk views v_views that have new events which the view wants to v_owner, and returns the '
'ranges to read, v_limit positions of each view, the oldest first. It never waits, and tries no stream with a lock '
'again. Views that are not registered or not enabled are left out. v_lease_s as for claim_batch. MR005 v_views is null '
'or has one, v_owner is empty, or a number is out of range; MR012 a rows view; MR041 another role''s view.';
revoke all on function event_store.claim_views(text[], text, bigint, bigint) from public;
grant execute on function event_store.claim_views(text[], text, bigint, bigint) to event_store_consumer, event_store_owner;
