-- Example: select is_registered('invoices')
create or replace function event_store.is_registered(
  v_view text
)
returns boolean
language sql
stable
security definer
set search_path = event_store, pg_temp
as $$
  select exists (select from event_store.views where view = v_view)
$$;

comment on function event_store.is_registered(text) is 'Says whether a view named v_view is registered.';
revoke all on function event_store.is_registered(text) from public;
grant execute on function event_store.is_registered(text)
to event_store_consumer, event_store_reader, event_store_owner;
