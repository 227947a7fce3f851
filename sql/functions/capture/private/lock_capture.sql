-- The lock changes the capture's row, so that a transaction whose snapshot is older than another writer's commit is
-- told (40001) and never goes on from what it sees. The registration is as it is after the lock.
create or replace function event_store_private.lock_capture(
  v_capture text
)
returns event_store.captures
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
declare
  _capture event_store.captures;
begin
  perform from event_store.capture_names where capture = v_capture for no key update;
  -- a statement of its own, after the lock: as it is now
  update event_store.captures
  set updated_at = event_store_private.clock(), revision = revision + 1
  where ctid = event_store_private.newest_capture(v_capture)
  returning * into _capture;
  if not found then
    perform event_store_private.known_capture(v_capture);
  end if;
  return _capture;
end
$$;

comment on function event_store_private.lock_capture(text) is
'Makes the transaction the only writer of a capture. MR030 unknown.';
