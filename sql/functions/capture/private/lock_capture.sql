-- Takes two locks: that of the name, which an emission holds, and then that of the row.
create or replace function event_store_private.lock_capture(
  v_capture text
)
returns event_store.captures
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
begin
  perform from event_store.capture_names where capture = v_capture for no key update;
  return event_store_private.lock_capture_row(v_capture);
end
$$;

comment on function event_store_private.lock_capture(text) is
'Makes the transaction the only writer of a capture. MR030 unknown.';
