-- Extends the lease of a capture to v_lease_s seconds from now, and returns until when.
create or replace function event_store_platform.extend_capture(
  v_capture text,
  v_lease_token bigint,
  v_lease_s bigint default 30
)
returns timestamptz
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _lease constant interval := event_store_private.capture_lease_duration(v_lease_s);
  _until timestamptz;
begin
  perform event_store_private.require_lease_of_row(event_store_private.lock_capture_row(v_capture), v_lease_token);
  _until := event_store_private.clock() + _lease;
  update event_store.captures set leased_until = _until where ctid = event_store_private.newest_capture(v_capture);
  return _until;
end
$$;

comment on function event_store_platform.extend_capture(text, bigint, bigint) is
'Extends the lease of a capture to v_lease_s from now and returns until when. MR005 v_lease_s is out of range; MR011 '
'the lease v_lease_token is lost; MR030 unknown capture.';
revoke all on function event_store_platform.extend_capture(text, bigint, bigint) from public;
grant execute on function event_store_platform.extend_capture(text, bigint, bigint) to event_store_owner;
