-- A lease past its time holds as long as nobody else took it: the token decides, not the clock.
create or replace function event_store_private.require_capture_lease(
  v_capture text,
  v_lease_token bigint
)
returns event_store.captures
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
declare
  _capture constant event_store.captures := event_store_private.lock_capture(v_capture);
begin
  if _capture.lease_owner is null or _capture.lease_token is distinct from v_lease_token then
    raise exception 'lease is lost'
      using
        errcode = 'MR011',
        detail = format(
          'capture %L: token %s stated, token %s in force%s',
          v_capture, coalesce(v_lease_token::text, 'null'), _capture.lease_token,
          coalesce(format(' for %s until %s', _capture.lease_owner, _capture.leased_until), ', no lease')
        ),
        hint = 'Stop, and claim the capture again: what was not committed is read from the source again.';
  end if;
  return _capture;
end
$$;

comment on function event_store_private.require_capture_lease(text, bigint) is
'Makes the transaction the only writer of a capture, if the token is that of its lease. MR011 lease lost, MR030.';
