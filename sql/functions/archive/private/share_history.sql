-- Whoever places a view in the log calls this before it looks where the log begins. raise_low_water_mark takes the same
-- row alone. A row's lock needs the right to change its table, which only the store's functions have; an advisory key
-- could be held by any login, for ever.
create or replace function event_store_private.share_history()
returns void
language sql
volatile
set search_path = event_store, pg_temp
as $$
  select from event_store.archive for key share
$$;

comment on function event_store_private.share_history() is 'Lets nobody shorten the log until the transaction ends.';
