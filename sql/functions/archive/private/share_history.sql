-- A caller that places a view in the log calls this before it reads where the log begins. raise_low_water_mark locks
-- the same row exclusively. A row's lock needs the right to change its table, which only the store's functions have;
-- any login could hold an advisory key for ever.
create or replace function event_store_private.share_history()
returns void
language sql
volatile
set search_path = event_store, pg_temp
as $$
  select from event_store.archive for key share
$$;

comment on function event_store_private.share_history() is 'Blocks shortening of the log until the transaction ends.';
