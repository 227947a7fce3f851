-- This lock is enough to change the stored changes or the lease: it waits for no emission.
-- The lock changes the row. So a transaction with a snapshot older than another writer's commit fails (40001) and never
-- continues from outdated rows. The returned registration is as of after the lock.
create or replace function event_store_private.lock_capture_row(
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
  loop
    update event_store.captures
    set updated_at = event_store_private.clock(), revision = revision + 1
    where ctid = event_store_private.newest_capture(v_capture)
    returning * into _capture;
    if found then
      return _capture;
    end if;
    -- another writer made a newer version during the wait
    perform event_store_private.known_capture(v_capture);
  end loop;
end
$$;

comment on function event_store_private.lock_capture_row(text) is
'Makes the transaction the only one that changes the row of a capture. MR030 unknown.';
