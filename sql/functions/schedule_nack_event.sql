-- Gives back the event that is in flight for a stream: it is delivered again, not before v_milliseconds have passed.
-- Example: select * from schedule_nack_event('invoices', 'o-1', 60000)
create or replace function event_store.schedule_nack_event(
  v_view text,
  v_decider_id text,
  v_milliseconds bigint
)
returns setof event_store.locks
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
declare
  _now constant timestamptz := event_store.clock();
begin
  if v_milliseconds is null or v_milliseconds < 0 then
    raise exception 'request is malformed'
      using errcode = 'MR005', detail = format('v_milliseconds is %s', coalesce(v_milliseconds::text, 'null')), hint = 'v_milliseconds must be 0 or more.';
  end if;
  perform event_store.known_view(v_view, 'rows');
  update event_store.stream_locks
  set in_flight = null, locked_until = _now + v_milliseconds * interval '1 millisecond', updated_at = _now
  where view = v_view and decider_id = v_decider_id and in_flight is not null;
  if not found then
    perform event_store.refuse_not_in_flight(v_view, v_decider_id);
  end if;
  return query select * from event_store.locks l where l.view = v_view and l.decider_id = v_decider_id;
end
$$;

comment on function event_store.schedule_nack_event(text, text, bigint) is 'Gives back the event in flight for a later delivery. MR005, MR010, MR012, MR016 not in flight.';

create or replace function event_store.schedule_nack_event(
  v_view text,
  v_decider_id uuid,
  v_milliseconds bigint
)
returns setof event_store.locks
language sql
volatile
as $$
  select * from event_store.schedule_nack_event(v_view, v_decider_id::text, v_milliseconds)
$$;

comment on function event_store.schedule_nack_event(text, uuid, bigint) is 'schedule_nack_event for UUID identifiers.';
