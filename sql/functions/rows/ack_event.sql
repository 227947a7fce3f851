-- Acknowledges the event that is in flight for a stream of a rows view, frees the stream and returns its lock.
-- Any other offset is refused (MR016): one that was not delivered, was acknowledged before, or was given back. So is an
-- answer that comes late, when another consumer has the event: with v_lease_token (see lease_events) always; without
-- one, unless this session got the event last.
-- Example: select * from ack_event('invoices', 'o-1', 1)
create or replace function event_store.ack_event(
  v_view text,
  v_decider_id text,
  v_offset bigint,
  v_lease_token bigint default null
)
returns setof event_store.locks
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _now constant timestamptz := event_store_private.clock();
begin
  return query
  update event_store.stream_locks k
  set
    last_offset = v_offset, in_flight = null, taken_over = false, attempts = 0, last_error = null, locked_until = _now,
    updated_at = _now,
    caught_up = k.nothing_after
  from event_store.streams s
  where k.view = v_view and k.decider_id = v_decider_id and k.in_flight = v_offset
    and event_store_private.holds_lock(k, v_offset, v_lease_token)
    and k.lease_pid is not null -- in bulk mode nobody has a single event
    and s.decider_id = k.decider_id and s.decider = k.decider
  returning k.view, k.decider_id, s.last_offset, k.last_offset, k.locked_until, s.final, k.created_at, k.updated_at;
  if not found then
    perform event_store_private.known_view(v_view, 'rows');
    perform event_store_private.refuse_not_in_flight(v_view, v_decider_id, v_offset, v_lease_token);
  end if;
end
$$;

comment on function event_store.ack_event(text, text, bigint, bigint) is
'Acknowledges the event at v_offset that is in flight for stream v_decider_id of a rows view, frees the stream and '
'returns its lock. A late answer is refused once another consumer got the event: by v_lease_token always, without one'
' unless this session got it last. MR010 unknown view; MR012 a bulk view; MR016 the event is not in flight for the '
'caller.';
revoke all on function event_store.ack_event(text, text, bigint, bigint) from public;
grant execute on function event_store.ack_event(text, text, bigint, bigint) to event_store_consumer, event_store_owner;

create or replace function event_store.ack_event(
  v_view text,
  v_decider_id uuid,
  v_offset bigint,
  v_lease_token bigint default null
)
returns setof event_store.locks
language sql
volatile
as $$
  select * from event_store.ack_event(v_view, v_decider_id::text, v_offset, v_lease_token)
$$;

comment on function event_store.ack_event(text, uuid, bigint, bigint) is 'Does the same for a UUID as v_decider_id.';
revoke all on function event_store.ack_event(text, uuid, bigint, bigint) from public;
grant execute on function event_store.ack_event(text, uuid, bigint, bigint) to event_store_consumer, event_store_owner;
