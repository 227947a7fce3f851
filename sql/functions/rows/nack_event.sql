-- Gives back the event that is in flight for a stream: it is delivered again at once. Not an attempt that failed; see fail_event.
-- Without v_offset and v_lease_token only the session that got the event can: it may be somebody else's by now.
-- v_error says why, for operators: it is the lock's last_error until the event is acknowledged.
-- Example: select * from nack_event('invoices', 'o-1')
create or replace function event_store.nack_event(
  v_view text,
  v_decider_id text,
  v_offset bigint default null,
  v_lease_token bigint default null,
  v_error text default null
)
returns setof event_store.locks
language sql
volatile
security definer
set search_path = event_store, pg_temp
as $$
  select * from event_store_private.give_back_event(v_view, v_decider_id, 0, v_offset, v_lease_token, v_error)
$$;

comment on function event_store.nack_event(text, text, bigint, bigint, text) is 'Gives back the event in flight. MR005, MR010, MR012, MR016 not in flight.';
revoke all on function event_store.nack_event(text, text, bigint, bigint, text) from public;
grant execute on function event_store.nack_event(text, text, bigint, bigint, text)
to event_store_consumer, event_store_owner;

create or replace function event_store.nack_event(
  v_view text,
  v_decider_id uuid,
  v_offset bigint default null,
  v_lease_token bigint default null,
  v_error text default null
)
returns setof event_store.locks
language sql
volatile
as $$
  select * from event_store.nack_event(v_view, v_decider_id::text, v_offset, v_lease_token, v_error)
$$;

comment on function event_store.nack_event(text, uuid, bigint, bigint, text) is 'nack_event for UUID identifiers.';
revoke all on function event_store.nack_event(text, uuid, bigint, bigint, text) from public;
grant execute on function event_store.nack_event(text, uuid, bigint, bigint, text)
to event_store_consumer, event_store_owner;
