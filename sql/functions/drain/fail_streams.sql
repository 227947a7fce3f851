-- The locks of these streams take over the events that the batch delivered. A stream is retried from its first event in
-- the batch, after a growing delay (retry_delay); after the view's max_attempts it is parked (see dead_letters). All
-- other streams continue. With an offset, the commit acknowledges the events of the stream that the batch delivered
-- before it, and attempts count for the event at that offset.
-- Example: select fail_streams('invoices', 3, 17, '[{"decider": "order", "decider_id": "o-1", "error": "no
--   customer"}]')
create or replace function event_store.fail_streams(
  v_view text,
  v_partition int,
  v_lease_token bigint,
  v_failures jsonb
)
returns bigint
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered nested
declare
  _view constant event_store.views := event_store_private.own_view(v_view, 'bulk');
  _now timestamptz;
  _fault text := case
    when v_failures is null or jsonb_typeof(v_failures) <> 'array' or jsonb_array_length(v_failures) = 0 then
      'v_failures must be a JSON array of at least one {decider, decider_id, error, offset}, the last if it is known'
  end;
  _lease event_store.checkpoints;
  _parked bigint;
begin
  if _fault is null then
    select format('%s has no decider, no decider_id, no error or no whole offset, or is named twice', f.failure) into _fault
    from (
      select failure, count(*) over (partition by failure -> 'decider', failure -> 'decider_id') as named
      from jsonb_array_elements(v_failures) failure
    ) f
    where named > 1 or not coalesce(
      jsonb_typeof(failure -> 'decider') = 'string' and jsonb_typeof(failure -> 'decider_id') = 'string' and failure ->> 'error' <> ''
        and coalesce(failure ->> 'offset', '0') ~ '^[0-9]{1,18}$',
      false
    )
    limit 1;
  end if;
  if _fault is not null then
    perform event_store_private.refuse_request(_fault, 'Nothing was changed.');
  end if;
  perform event_store_private.require_leases(v_view, array[v_partition], array[v_lease_token]);
  select * into _lease from event_store.checkpoints c
  where c.view = v_view and c.partition = v_partition
  order by c.revision desc
  limit 1;
  _now := event_store_private.clock();

  select format('stream (%s, %s)', f.decider, f.decider_id) || coalesce(' at offset ' || f."offset", '') into _fault
  from jsonb_to_recordset(v_failures) f(decider text, decider_id text, "offset" bigint)
  left join lateral event_store_private.first_delivered(_view, _lease, f.decider, f.decider_id) first("offset") on true
  where first."offset" is null
    or f."offset" < first."offset"
    or f."offset" > first."offset" and not exists (
      select from (select x.* from event_store.events x where x."offset" = f."offset" offset 0) e -- by its index
      join event_store.event_log l using ("offset")
      where e.decider_id = f.decider_id and e.decider = f.decider
        and l.position < _lease.leased_to
        and event_store_private.wants(_view.deciders, _view.events, e.decider, e.event)
    )
  limit 1;
  if _fault is not null then
    raise exception 'event is not in flight'
      using
        errcode = 'MR016',
        detail = format('the lease of log partition %s delivers nothing of %s', v_partition, _fault),
        hint = 'Name streams that read_batch returned for this lease, before commit_batch.';
  end if;

  -- A claim with an older snapshot does not see these locks. It must fail (40001) and not deliver their events again.
  update event_store.checkpoints c
  set revision = c.revision + 1
  where c.ctid = any (array(select held.version from event_store_private.checkpoint_of(v_view, v_partition) held));
  with failed as materialized (
    select
      f.decider, f.decider_id, f.error, failing."offset" - 1 as last_offset, failing.version - 1 as last_version, n.attempts,
      case when n.attempts >= _view.max_attempts then 'infinity' else _now + event_store_private.retry_delay(n.attempts) end
        as locked_until,
      case when n.attempts >= _view.max_attempts then _now end as parked_at,
      known.view is not null as known
    from jsonb_to_recordset(v_failures) f(decider text, decider_id text, error text, "offset" bigint)
    left join lateral event_store_private.newest_lock(v_view, f.decider_id, f.decider) known on true
    left join lateral (
      select e."offset"
      from event_store.events e
      where e.decider_id = f.decider_id and e.decider = f.decider
        and e.version > known.last_version and e."offset" > known.last_offset
        and event_store_private.wants(_view.deciders, _view.events, e.decider, e.event)
      order by e.version
      limit 1
    ) tried on true
    -- An event other than the one tried before has had no attempt.
    cross join lateral (
      select case when f."offset" <> tried."offset" then 1 else coalesce(known.attempts, 0) + 1 end
    ) n(attempts)
    cross join lateral event_store_private.first_delivered(_view, _lease, f.decider, f.decider_id) first("offset")
    join event_store.events failing on failing."offset" = coalesce(f."offset", first."offset")
  ), again as (
    update event_store.stream_locks k
    set
      -- A retry continues after the acknowledged events; a rebuild begins again.
      last_offset = f.last_offset, last_version = f.last_version,
      in_flight = null, locked_until = f.locked_until, attempts = f.attempts, last_error = f.error, parked_at = f.parked_at,
      lease_token = v_lease_token, updated_at = _now, revision = k.revision + 1
    from failed f
    where f.known and k.view = v_view and k.decider_id = f.decider_id and k.decider = f.decider
  ), first as (
    -- No concurrent transaction can add a lock of the stream: adding one requires the checkpoint's lock.
    insert into event_store.stream_locks (
      view, decider, decider_id, partition, last_offset, last_version, locked_until, attempts, last_error, parked_at, lease_token,
      created_at, updated_at, revision
    )
    select
      v_view, f.decider, f.decider_id, v_partition, f.last_offset, f.last_version, f.locked_until, f.attempts, f.error, f.parked_at,
      v_lease_token, _now, _now, nextval('event_store.lease_token_seq')
    from failed f
    where not f.known
  )
  select count(parked_at) into _parked from failed;
  return _parked;
end
$$;

comment on function event_store.fail_streams(text, int, bigint, jsonb) is
'Reports which streams of leased log partition v_partition failed, in the transaction of commit_batch and before it. '
'v_failures is a JSON array of {decider, decider_id, error, offset}; offset, of the event that failed, may be left '
'out. The commit does not acknowledge them: they are retried later, then parked. Returns how many are parked. MR005 '
'v_failures is malformed; MR010 unknown view; MR011 the lease v_lease_token is lost; MR012 a rows view; MR016 the '
'lease delivers nothing of such a stream.';
revoke all on function event_store.fail_streams(text, int, bigint, jsonb) from public;
grant execute on function event_store.fail_streams(text, int, bigint, jsonb) to event_store_consumer, event_store_owner;
