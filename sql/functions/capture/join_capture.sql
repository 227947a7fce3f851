-- Example: select join_capture('crm', 7)
create or replace function event_store_platform.join_capture(
  v_capture text,
  v_lease_token bigint
)
returns void
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
begin
  perform event_store_private.require_capture_lease(v_capture, v_lease_token);
  insert into event_store.capture_sessions (capture, pid, session_began_at, name)
  values (v_capture, pg_backend_pid(), event_store_private.session_began(), current_setting('application_name'))
  on conflict on constraint capture_sessions_pkey do update
  set session_began_at = excluded.session_began_at, name = excluded.name;
end
$$;

comment on function event_store_platform.join_capture(text, bigint) is
'Marks the calling session as working for the owner of a capture''s lease: the next owner ends it '
'(end_capture_sessions). MR011 the lease v_lease_token is lost; MR030 unknown capture.';
revoke all on function event_store_platform.join_capture(text, bigint) from public;
grant execute on function event_store_platform.join_capture(text, bigint) to event_store_owner;
