-- A lost lease is no error here.
create or replace function event_store_platform.release_capture(
  v_capture text,
  v_lease_token bigint
)
returns boolean
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _capture constant event_store.captures := event_store_private.lock_capture(v_capture);
begin
  if _capture.lease_owner is null or _capture.lease_token is distinct from v_lease_token then
    return false;
  end if;
  update event_store.captures set lease_owner = null, leased_until = null
  where ctid = event_store_private.newest_capture(v_capture);
  return true;
end
$$;

comment on function event_store_platform.release_capture(text, bigint) is
'Releases the lease v_lease_token of a capture and returns whether it was still held. MR030 unknown capture.';
revoke all on function event_store_platform.release_capture(text, bigint) from public;
grant execute on function event_store_platform.release_capture(text, bigint) to event_store_owner;
