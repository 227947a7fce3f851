-- Gives back the event that is in flight for a stream: it is delivered again at once.
-- Example: select * from nack_event('invoices', 'o-1')
create or replace function event_store.nack_event(
  v_view text,
  v_decider_id text
)
returns setof event_store.locks
language sql
volatile
as $$
  select * from event_store.schedule_nack_event(v_view, v_decider_id, 0)
$$;

comment on function event_store.nack_event(text, text) is 'Gives back the event in flight. MR010, MR012, MR016 not in flight.';

create or replace function event_store.nack_event(
  v_view text,
  v_decider_id uuid
)
returns setof event_store.locks
language sql
volatile
as $$
  select * from event_store.nack_event(v_view, v_decider_id::text)
$$;

comment on function event_store.nack_event(text, uuid) is 'nack_event for UUID identifiers.';
