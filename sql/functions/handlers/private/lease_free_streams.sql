-- The longest waiting streams come first. Streams that others hold are skipped. A stream is parked if its event was
-- delivered max_attempts times (deliveries that were given back do not count) and the last one got no answer.
create or replace function event_store_private.lease_free_streams(
  v_view event_store.views,
  v_limit int,
  v_seconds bigint,
  v_ahead boolean
)
returns bigint[]
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered nested unsorted once
declare
  _now timestamptz;
  -- before this time there are only dead index entries (see dispatch_events)
  _from timestamptz := coalesce(
    (select d.free_from from event_store.dispatches d where d.view = v_view.view order by d.revision desc limit 1), '-infinity'
  );
  _free tid[];
  _delivered bigint[];
begin
  -- Repeat if all streams that it took were parked, because a caller that gets no stream assumes that there is none.
  -- The number of turns is bounded.
  for _turn in 1..100 loop
    _now := event_store_private.clock(); -- events dispatched just now are free from then on
    if _from > _now then
      _from := '-infinity'; -- the clock was set back
    end if;
    -- Lock first, then read in another statement: with a snapshot older than the lock, this would lease events that are
    -- already acknowledged.
    _free := array(
      select k.ctid
      from event_store.stream_locks k
      cross join lateral (
        select 1
        from event_store.events e
        join event_store.event_log l using ("offset")
        where e.decider_id = k.decider_id and e.decider = k.decider
          and e.version > k.last_version and e."offset" > k.last_offset
          and event_store_private.wants(v_view.deciders, v_view.events, e.decider, e.event)
        limit 1
      ) pending
      where k.view = v_view.view and k.parked_at is null and k.locked_until >= _from and k.locked_until <= _now
      order by k.locked_until, k.last_offset
      limit v_limit
      for update of k skip locked
    );

    _now := greatest(_now, event_store_private.clock());
    with held as materialized (
      -- Only by ctid: another condition would allow an index that the plan may read from end to end.
      select k.ctid as version, k.* from event_store.stream_locks k where k.ctid = any (_free)
        -- lock_idle_view locks all that can be leased. So it either failed at our locks or committed before them, and
        -- this statement sees what it changed.
        and (select true from event_store.views v where v.view = v_view.view and v.mode = v_view.mode and v.created_at = v_view.created_at)
    ), leased as (
      update event_store.stream_locks k
      set
        in_flight = case when exhausted.yes then null else next_event."offset" end,
        caught_up = false,
        nothing_after = not exists (
          select from event_store.events e
          where e.decider_id = k.decider_id and e.decider = k.decider and e.version > next_event.version
            and event_store_private.wants(v_view.deciders, v_view.events, e.decider, e.event)
        ),
        lease_token = nextval('event_store.lease_token_seq'),
        lease_pid = pg_backend_pid(),
        -- an event that no consumer began still has this attempt ahead
        attempts = k.attempts + (not exhausted.yes and (held.in_flight is null or held.ahead = 0))::int,
        ahead = case when not v_ahead then 0 when held.in_flight is null then 1 else 2 end,
        last_error = case
          when exhausted.yes then
            format('The lock ended without an answer, at delivery %s.', k.attempts) || coalesce(' Before that: ' || k.last_error, '')
          else k.last_error
        end,
        parked_at = case when exhausted.yes then _now end,
        locked_until = case
          when exhausted.yes then 'infinity'
          else _now + make_interval(secs => coalesce(v_seconds, v_view.lock_timeout_s))
        end,
        updated_at = _now,
        revision = k.revision + 1
      from held
      cross join lateral (select held.in_flight is not null and held.ahead = 0 and held.attempts >= v_view.max_attempts) exhausted(yes)
      cross join lateral (
        select e."offset", e.version
        from event_store.events e
        join event_store.event_log l using ("offset")
        where e.decider_id = held.decider_id and e.decider = held.decider
          and e.version > held.last_version and e."offset" > held.last_offset
          and event_store_private.wants(v_view.deciders, v_view.events, e.decider, e.event)
        order by e.version
        limit 1
      ) next_event
      where k.ctid = held.version and held.parked_at is null and held.locked_until <= _now
      returning k.in_flight
    )
    select array_agg(in_flight) into _delivered from leased where in_flight is not null;
    exit when _delivered is not null or cardinality(_free) = 0;
  end loop;
  return _delivered;
end
$$;

comment on function event_store_private.lease_free_streams(event_store.views, int, bigint, boolean) is
'Leases free streams of a rows view; returns the offsets of their next events, null for none.';
