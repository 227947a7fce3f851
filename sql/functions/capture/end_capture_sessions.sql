-- A hanging session of a former owner locks the rows that it copied. This ends only sessions that still bear the name
-- that join_capture gave them. Names that other logins choose do not matter, and a session that the store's role may
-- not end is left.
-- Example: select end_capture_sessions('crm', 8)
create or replace function event_store_platform.end_capture_sessions(
  v_capture text,
  v_lease_token bigint
)
returns bigint
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _pid int;
  _ended bigint := 0;
begin
  perform event_store_private.require_capture_lease(v_capture, v_lease_token);
  for _pid in
    select a.pid
    from event_store.capture_sessions s
    join pg_stat_activity a on a.pid = s.pid and a.application_name = s.name and a.datname = current_database()
    where s.capture = v_capture and event_store_private.lives(s.pid, s.session_began_at) and s.pid <> pg_backend_pid()
  loop
    begin
      _ended := _ended + pg_terminate_backend(_pid)::int;
    exception when insufficient_privilege then
      null;
    end;
  end loop;
  delete from event_store.capture_sessions where capture = v_capture;
  return _ended;
end
$$;

comment on function event_store_platform.end_capture_sessions(text, bigint) is
'Ends the sessions that former owners of a capture joined to it (join_capture), and returns how many. MR011 the lease '
'v_lease_token is lost; MR030 unknown capture.';
revoke all on function event_store_platform.end_capture_sessions(text, bigint) from public;
grant execute on function event_store_platform.end_capture_sessions(text, bigint) to event_store_owner;
