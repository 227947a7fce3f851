-- Leases up to v_limit free streams of a rows view, those that wait longest first, and returns the offsets of their next
-- events: what stream_events and lease_events have in common. Streams that others hold are skipped, never waited for.
-- A stream whose event was delivered max_attempts times (what was given back not counted), and the last time not answered
-- either, is parked.
--
-- New events must be sequenced and dispatched first. Inside a longer transaction that would keep them from others until its
-- end, so this leaves it to others (`millrace sequence` is one) where somebody did it within the last second. Postgres tells
-- a transaction of one statement only in the simple protocol; there this does it at once.
create or replace function event_store.lease_streams(
  v_view text,
  v_limit int,
  v_seconds int
)
returns bigint[]
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
declare
  _now timestamptz := event_store.clock();
  _recently constant timestamptz := _now - interval '1 second';
  _alone constant boolean := statement_timestamp() = transaction_timestamp();
  _view event_store.views;
  _free tid[];
  _delivered bigint[];
begin
  if coalesce(v_limit, 0) <= 0 or v_seconds <= 0 then
    perform event_store.refuse_request(
      format('v_limit %s, v_seconds %s', coalesce(v_limit::text, 'null'), coalesce(v_seconds::text, 'null')),
      'v_limit and v_seconds must be at least 1; v_seconds null means the view''s lock_timeout_s.'
    );
  end if;
  _view := event_store.lock_view(v_view, 'rows');
  if _view.enabled is not true then
    return null;
  end if;
  if _alone or (select sequenced_at from event_store.sequencer) < _recently then
    perform event_store.sequence_events();
  end if;
  if _alone or (select dispatched_at from event_store.dispatches where view = v_view) < _recently then
    perform event_store.dispatch_events(v_view);
  end if;

  -- again where all that were taken were parked: who is given nothing believes that there is nothing; but not without end
  for _turn in 1..100 loop
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
          and event_store.wants(_view.deciders, _view.events, e.decider, e.event)
        limit 1
      ) pending
      where k.view = v_view and k.parked_at is null and k.locked_until <= _now
      order by k.locked_until, k.last_offset
      limit v_limit
      for update of k skip locked
    );

    _now := greatest(_now, event_store.clock());
    with leased as (
      update event_store.stream_locks k
      set
        in_flight = case when exhausted.yes then null else next_event."offset" end,
        taken_over = k.taken_over or k.in_flight is not null,
        lease_token = nextval('event_store.lease_token_seq'),
        lease_pid = pg_backend_pid(),
        attempts = case when exhausted.yes then k.attempts else k.attempts + 1 end,
        last_error = case
          when exhausted.yes then
            format('The lock ended without an answer, at delivery %s.', k.attempts) || coalesce(' Before that: ' || k.last_error, '')
          else k.last_error
        end,
        parked_at = case when exhausted.yes then _now end,
        locked_until = case
          when exhausted.yes then 'infinity'
          else _now + make_interval(secs => coalesce(v_seconds, _view.lock_timeout_s))
        end,
        updated_at = _now
      from event_store.stream_locks held
      cross join lateral (select held.in_flight is not null and held.attempts >= _view.max_attempts) exhausted(yes)
      cross join lateral (
        select e."offset"
        from event_store.events e
        join event_store.event_log l using ("offset")
        where e.decider_id = held.decider_id and e.decider = held.decider and e."offset" > held.last_offset
          and event_store.wants(_view.deciders, _view.events, e.decider, e.event)
        order by e."offset"
        limit 1
      ) next_event
      where held.ctid = any (_free) and k.ctid = held.ctid and k.parked_at is null and k.locked_until <= _now
      returning k.in_flight
    )
    select array_agg(in_flight) into _delivered from leased where in_flight is not null;
    exit when _delivered is not null or cardinality(_free) = 0;
  end loop;
  return _delivered;
end
$$;

comment on function event_store.lease_streams(text, int, int) is 'Leases free streams of a rows view; returns the offsets of their next events, null for none. MR005, MR010, MR012.';
