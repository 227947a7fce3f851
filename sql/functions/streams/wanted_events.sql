-- Example: select deciders, events from wanted_events('invoices')
create or replace function event_store_platform.wanted_events(
  v_view text
)
returns table (
  deciders text[],
  events text[]
)
language sql
stable
security definer
set search_path = event_store, pg_temp
as $$
  select v.deciders, v.events from event_store_private.known_view(v_view) v
$$;

comment on function event_store_platform.wanted_events(text) is
'Returns the deciders and the events that view v_view wants; null means all. MR010 unknown view.';
revoke all on function event_store_platform.wanted_events(text) from public;
grant execute on function event_store_platform.wanted_events(text) to event_store_reader, event_store_owner;
