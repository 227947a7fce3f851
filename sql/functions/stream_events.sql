-- Leases up to v_limit free streams of a rows view, those that wait longest first, and returns the next event of each.
-- The lease lasts v_seconds (default: the view's lock_timeout_s), by the wall clock also inside a long transaction;
-- ack_event, nack_event or its end make the stream free again. Streams that others hold are skipped, never waited for.
--
-- New events must be sequenced and dispatched first. Inside a longer transaction that would keep them from others until its
-- end, so this leaves it to others (`millrace sequence` is one) where somebody did it within the last second. Postgres tells
-- a transaction of one statement only in the simple protocol; there this does it at once.
-- Example: select * from stream_events('invoices', 100, 300)
create or replace function event_store.stream_events(
  v_view_name text,
  v_limit int default 1,
  v_seconds int default null
)
returns setof event_store.recorded_events
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
declare
  _now timestamptz := event_store.clock();
  _recently constant timestamptz := _now - interval '1 second';
  _alone constant boolean := statement_timestamp() = transaction_timestamp();
  _view constant event_store.views := event_store.known_view(v_view_name, 'rows');
  _free tid[];
  _delivered bigint[];
begin
  if coalesce(v_limit, 0) <= 0 or v_seconds <= 0 then
    raise exception 'request is malformed'
      using
        errcode = 'MR005',
        detail = format('v_limit %s, v_seconds %s', v_limit, v_seconds),
        hint = 'v_limit and v_seconds must be at least 1; v_seconds null means the view''s lock_timeout_s.';
  end if;
  if not _view.enabled then
    return;
  end if;
  if _alone or (select sequenced_at from event_store.sequencer) < _recently then
    perform event_store.sequence_events();
  end if;
  if _alone or _view.dispatched_at < _recently then
    perform event_store.dispatch_events(v_view_name);
  end if;

  _now := event_store.clock(); -- what was just dispatched is free from then on
  -- Lock first, then read in another statement: a snapshot older than the lock would lease what is already acknowledged.
  _free := array(
    select k.ctid
    from event_store.stream_locks k
    cross join lateral (
      select 1
      from event_store.events e
      join event_store.event_log l using ("offset")
      where e.decider_id = k.decider_id and e.decider = k.decider and e."offset" > k.last_offset
        and (_view.events is null or e.event = any (_view.events))
      limit 1
    ) pending
    where k.view = v_view_name and k.parked_at is null and k.locked_until <= _now
    order by k.locked_until, k.last_offset
    limit v_limit
    for update of k skip locked
  );

  _now := event_store.clock();
  with delivered as (
    update event_store.stream_locks k
    set
      in_flight = next_event."offset",
      attempts = k.attempts + 1,
      locked_until = _now + make_interval(secs => coalesce(v_seconds, _view.lock_timeout_s)),
      updated_at = _now
    from event_store.stream_locks held
    cross join lateral (
      select e."offset"
      from event_store.events e
      join event_store.event_log l using ("offset")
      where e.decider_id = held.decider_id and e.decider = held.decider and e."offset" > held.last_offset
        and (_view.events is null or e.event = any (_view.events))
      order by e."offset"
      limit 1
    ) next_event
    where held.ctid = any (_free) and k.ctid = held.ctid and k.locked_until <= _now
    returning k.in_flight
  )
  select array_agg(in_flight) into _delivered from delivered;

  return query
  select r.* from event_store.recorded_events r where r."offset" = any (_delivered) order by r."offset";
end
$$;

comment on function event_store.stream_events(text, int, int) is 'Leases free streams of a rows view and returns the next event of each. MR005 malformed, MR010 unknown view, MR012 other mode.';
