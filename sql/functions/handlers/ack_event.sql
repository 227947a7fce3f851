-- An event that was not delivered, was acknowledged before, or was given back is not in flight. With v_lease_token (see
-- lease_events) only the delivery that the token came with counts. Without it any session may answer: behind a
-- connection pool, the session does not identify the consumer.
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
  with acknowledged as (
    update event_store.stream_locks k
    set
      last_offset = v_offset,
      last_version = (select e.version from event_store.events e where e."offset" = v_offset), in_flight = null, attempts = 0, last_error = null, locked_until = _now,
      updated_at = _now, revision = k.revision + 1,
      caught_up = k.nothing_after
    -- By its delivery: an index condition on the stream would lead to all dead versions of its lock.
    where k.view = v_view and k.in_flight = v_offset and (k.decider_id = v_decider_id) is true
      and event_store_private.holds_lock(k, v_lease_token, _now)
      and k.lease_pid is not null -- in bulk mode no consumer has a single event
      and (select event_store_private.may_use(v.owner) from event_store.views v where v.view = v_view)
    returning k.*
  )
  select k.view, k.decider_id, s.last_offset, k.last_offset, k.locked_until, s.final, k.created_at, k.updated_at
  from acknowledged k
  cross join lateral event_store_private.head_of_stream(k.decider_id, k.decider) s;
  if not found then
    perform event_store_private.own_view(v_view, 'rows');
    perform event_store_private.refuse_not_in_flight(v_view, v_decider_id, v_offset, v_lease_token);
  end if;
end
$$;

comment on function event_store.ack_event(text, text, bigint, bigint) is
'Acknowledges the event at v_offset that is in flight for stream v_decider_id of a rows view, frees the stream and '
'returns its lock. With v_lease_token the answer counts until another consumer gets the event; without it, while the '
'lock lasts, from any session. MR010 unknown view; MR012 a bulk view; MR016 the event is not in flight for the '
'caller; MR041 another role''s view.';
revoke all on function event_store.ack_event(text, text, bigint, bigint) from public;
grant execute on function event_store.ack_event(text, text, bigint, bigint) to event_store_consumer, event_store_owner;
