-- Sequences new events first. read_batch reads the claimed ranges. A lease lasts from the claim or its last extension.
-- Call it in a short transaction: until it ends, other consumers get nothing of the log partitions that this looks at.
create or replace function event_store.claim_batch(
  v_view text,
  v_owner text,
  v_limit bigint default 100000,
  v_lease_s bigint default null
)
returns table (
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
  _view constant event_store.views := event_store_private.own_view(v_view, 'bulk');
  _lease constant interval := event_store_private.lease_duration(_view, v_lease_s);
  _now timestamptz;
  _claimed int[];
begin
  if coalesce(v_owner, '') = '' then
    perform event_store_private.refuse_request(format('v_owner is %L', v_owner), 'An owner is named: the id of a run, say.');
  end if;
  if coalesce(v_limit, 0) <= 0 then
    perform event_store_private.refuse_request(format('v_limit is %s', v_limit), 'v_limit must be at least 1.');
  end if;
  if not _view.enabled then
    return;
  end if;
  perform event_store_platform.sequence_events();
  _now := event_store_private.clock();
  -- Usually no event is ahead and no stream is due for a retry: then this locks nothing and writes nothing.
  if not exists (
      select from event_store.partitions p
      cross join lateral event_store_private.checkpoint_of(v_view, p.partition) c
      where c.position < p.high_water_mark
    )
    and not exists (
      select from event_store.stream_locks k
      where k.view = v_view and k.parked_at is null and k.locked_until <= _now
      order by k.locked_until -- so that the plan uses the index on (view, locked_until)
    )
  then
    return;
  end if;

  -- This locks the log partitions; later statements read their ranges.
  _claimed := event_store_platform.pass_over_unwanted(v_view);
  perform event_store_private.sweep_locks(_view, _claimed, true);

  _now := event_store_private.clock();
  return query
  with pending as (
    select c.partition, c.position, c.version, p.high_water_mark, oldest."offset" as oldest
    from event_store.partitions p
    cross join lateral event_store_private.checkpoint_of(v_view, p.partition) c
    left join event_store.event_log oldest on oldest.partition = c.partition and oldest.position = c.position
    where p.partition = any (_claimed)
      and (
        c.position < p.high_water_mark
        or c.partition in (
          select k.partition
          from event_store.stream_locks k
          -- An event that is not sequenced cannot be delivered: a lease for it would be empty.
          cross join lateral (
            select from event_store.events e
            join event_store.event_log l using ("offset")
            where e.decider_id = k.decider_id and e.decider = k.decider
              and e.version > k.last_version and e."offset" > k.last_offset
              and event_store_private.wants(_view.deciders, _view.events, e.decider, e.event)
            limit 1
          ) next_event
          where k.view = v_view and k.parked_at is null and k.locked_until <= _now
        )
      )
  ), shared as (
    select
      q.version, q.high_water_mark,
      coalesce(
        sum(greatest(q.high_water_mark - q.position, 0))
          over (order by q.oldest nulls first rows between unbounded preceding and 1 preceding),
        0
      )::bigint as taken_before
    from pending q
  ), leased as (
    update event_store.checkpoints c
    set
      lease_owner = v_owner,
      lease_token = nextval('event_store.lease_token_seq'),
      leased_until = _now + _lease,
      leased_from = c.position,
      leased_to = c.position + least(greatest(s.high_water_mark - c.position, 0), v_limit - s.taken_before),
      rebuilds = false,
      revision = c.revision + 1
    from shared s
    where c.ctid = s.version and s.taken_before < v_limit
    returning c.partition, c.leased_from, c.leased_to, c.lease_token
  ), retried as (
    -- This lease delivers the events of a stream with a lock up to in_flight.
    update event_store.stream_locks k
    set
      in_flight = last_event."offset",
      -- With this token and nothing in flight, the stream would count as failed in this lease.
      lease_token = case when last_event."offset" is null then k.lease_token else due.lease_token end,
      lease_pid = null, updated_at = _now, revision = k.revision + 1
    from (
      select x.decider_id, x.decider, x.last_offset, x.last_version, d.partition, d.leased_to, d.lease_token
      from event_store.stream_locks x
      join leased d using (partition)
      where x.view = v_view and x.locked_until <= _now and x.parked_at is null
      order by x.locked_until
      limit 10000
    ) due
    left join lateral (
      select e."offset"
      from event_store.events e
      join event_store.event_log l using ("offset")
      where e.decider_id = due.decider_id and e.decider = due.decider
        and e.version > due.last_version and e."offset" > due.last_offset
        and l.position < due.leased_to
        and event_store_private.wants(_view.deciders, _view.events, e.decider, e.event)
      order by e.version desc
      limit 1
    ) last_event on true
    where k.view = v_view and k.decider_id = due.decider_id and k.decider = due.decider
  )
  select d.partition, d.leased_from, d.leased_to, d.lease_token from leased d;
end
$$;

comment on function event_store.claim_batch(text, text, bigint, bigint) is
'Leases log partitions of a bulk view that have pending events, or a stream due for a retry, to v_owner. Returns the '
'ranges to read, v_limit positions in all, the oldest first. It never waits and skips log partitions that others '
'hold. A lease lasts v_lease_s (null: the view''s lock_timeout_s) and ends by commit_batch or release_batch. MR005 '
'v_owner is empty, or a number is out of range; MR010 unknown view; MR012 a rows view.';
revoke all on function event_store.claim_batch(text, text, bigint, bigint) from public;
grant execute on function event_store.claim_batch(text, text, bigint, bigint)
to event_store_consumer, event_store_owner;
