-- For a transaction that makes events, or changes their sources.
create or replace function event_store_private.require_capture_lease(
  v_capture text,
  v_lease_token bigint
)
returns event_store.captures
language sql
volatile
set search_path = event_store, pg_temp
as $$
  select event_store_private.require_lease_of_row(event_store_private.lock_capture(v_capture), v_lease_token)
$$;

comment on function event_store_private.require_capture_lease(text, bigint) is
'Makes the transaction the only writer of a capture, if the token is that of its lease. MR011 lease lost, MR030.';
