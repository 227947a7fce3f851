-- Acknowledges the event that is in flight for a stream of a rows view, frees the stream and returns its lock.
-- Any other offset is refused (MR016): one that was not delivered, was acknowledged before, or was given back.
-- Example: select * from ack_event('invoices', 'o-1', 1)
create or replace function event_store.ack_event(
  v_view text,
  v_decider_id text,
  v_offset bigint
)
returns setof event_store.locks
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
declare
  _now constant timestamptz := event_store.clock();
  _decider text;
begin
  perform event_store.known_view(v_view, 'rows');
  update event_store.stream_locks
  set last_offset = v_offset, in_flight = null, attempts = 0, last_error = null, locked_until = _now, updated_at = _now
  where view = v_view and decider_id = v_decider_id and in_flight = v_offset
  returning decider into _decider;
  if not found then
    perform event_store.refuse_not_in_flight(v_view, v_decider_id, v_offset);
  end if;
  return query
  select l.view, l.decider_id, s.last_offset, l.last_offset, l.locked_until, s.final, l.created_at, l.updated_at
  from event_store.stream_locks l
  join event_store.streams s using (decider_id, decider)
  where l.view = v_view and l.decider_id = v_decider_id and l.decider = _decider;
end
$$;

comment on function event_store.ack_event(text, text, bigint) is 'Acknowledges the event in flight and frees its stream. MR010, MR012, MR016 not in flight.';

create or replace function event_store.ack_event(
  v_view text,
  v_decider_id uuid,
  v_offset bigint
)
returns setof event_store.locks
language sql
volatile
as $$
  select * from event_store.ack_event(v_view, v_decider_id::text, v_offset)
$$;

comment on function event_store.ack_event(text, uuid, bigint) is 'ack_event for UUID identifiers.';
