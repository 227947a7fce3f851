-- To change what is stored, or the lease, this lock is enough: it waits for no emission.
-- The lock changes the row, so that a transaction whose snapshot is older than another writer's commit is told (40001)
-- and never goes on from what it sees. The registration is as it is after the lock.
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
    -- another writer made a newer version while this one waited for it
    perform event_store_private.known_capture(v_capture);
  end loop;
end
$$;

comment on function event_store_private.lock_capture_row(text) is
'Makes the transaction the only one that changes the row of a capture. MR030 unknown.';
