-- An expired lease holds until another owner takes it: the token decides, not the clock.
create or replace function event_store_private.require_lease_of_row(
  v_capture event_store.captures,
  v_lease_token bigint
)
returns event_store.captures
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
begin
  if v_capture.lease_owner is null or v_capture.lease_token is distinct from v_lease_token then
    raise exception 'lease is lost'
      using
        errcode = 'MR011',
        detail = format(
          'capture %L: token %s stated, token %s in force%s',
          v_capture.capture, coalesce(v_lease_token::text, 'null'), v_capture.lease_token,
          coalesce(format(' for %s until %s', v_capture.lease_owner, v_capture.leased_until), ', no lease')
        ),
        hint = 'Stop, and claim the capture again: what was not committed is read from the source again.';
  end if;
  return v_capture;
end
$$;

comment on function event_store_private.require_lease_of_row(event_store.captures, bigint) is
'Returns a capture''s row if the token is that of its lease. MR011 lease lost.';
