-- The common part of nack_event and schedule_nack_event. It does not count as an attempt: nothing failed. Callers of
-- fstore-sql state no offset: then the answer is for the event in flight. If two deciders that share the id have events
-- in flight, the offset is required.
-- Without v_error the lock keeps the error of an earlier attempt.
create or replace function event_store_private.give_back_event(
  v_view text,
  v_decider_id text,
  v_milliseconds bigint,
  v_offset bigint,
  v_lease_token bigint,
  v_error text
)
returns setof event_store.locks
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
-- planner: indexed once
declare
  _now constant timestamptz := event_store_private.clock();
  _locks event_store.stream_locks[];
begin
  if v_milliseconds is null or v_milliseconds not between 0 and 2147483647000 then
    perform event_store_private.refuse_request(
      format('v_milliseconds is %s', coalesce(v_milliseconds::text, 'null')),
      'v_milliseconds must be from 0 to 2147483647000.'
    );
  end if;
  perform event_store_private.own_view(v_view, 'rows');
  -- Lock first: an event that another consumer gets in between is not ours.
  _locks := array(
    select k
    from event_store.stream_locks k
    where k.view = v_view and (k.decider_id = v_decider_id) is true
      and k.in_flight = any (
        case
          when v_offset is null then array(select l.in_flight from event_store_private.locks_of_id(v_view, v_decider_id) l)
          else array[v_offset]
        end
      )
      and event_store_private.holds_lock(k, v_lease_token, _now)
    order by k.decider
    for update
  );
  if cardinality(_locks) = 0 then
    perform event_store_private.refuse_not_in_flight(v_view, v_decider_id, v_offset, v_lease_token);
  elsif cardinality(_locks) > 1 then
    perform event_store_private.refuse_request(
      format('decider_id %L has events in flight for deciders %s', v_decider_id, (select string_agg(k.decider, ', ') from unnest(_locks) k)),
      'State v_offset: the offset of the event that is given back.'
    );
  end if;
  update event_store.stream_locks k
  set
    in_flight = null, attempts = greatest(k.attempts - 1, 0), last_error = coalesce(nullif(v_error, ''), k.last_error),
    locked_until = _now + v_milliseconds * interval '1 millisecond', updated_at = _now, revision = k.revision + 1
  where k.view = v_view and k.in_flight = (_locks[1]).in_flight;
  return query select * from event_store_private.lock_of_stream(v_view, v_decider_id, (_locks[1]).decider);
end
$$;

comment on function event_store_private.give_back_event(text, text, bigint, bigint, bigint, text) is
'Gives back the event in flight for a later delivery. MR005, MR010, MR012, MR016 not in flight.';
