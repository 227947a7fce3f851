-- v_error gives operators the reason; it is kept until the event is acknowledged.
-- Example: select * from nack_event('invoices', 'o-1')
create or replace function event_store.nack_event(
  v_view text,
  v_decider_id text,
  v_offset bigint default null,
  v_lease_token bigint default null,
  v_error text default null
)
returns setof event_store.locks
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
begin
  return query
  select * from event_store_private.give_back_event(v_view, v_decider_id, 0, v_offset, v_lease_token, v_error);
end
$$;

comment on function event_store.nack_event(text, text, bigint, bigint, text) is
'Gives back the event in flight for stream v_decider_id of a rows view: it is delivered again at once, which is no '
'failed attempt. Without v_offset, any event in flight is meant. v_error is kept as the lock''s last_error. MR005 '
'v_offset is needed to tell two deciders apart; MR010 unknown view; MR012 a bulk view; MR016 the event is not in '
'flight for the caller.';
revoke all on function event_store.nack_event(text, text, bigint, bigint, text) from public;
grant execute on function event_store.nack_event(text, text, bigint, bigint, text)
to event_store_consumer, event_store_owner;
