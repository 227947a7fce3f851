-- Changes that are not emitted never become events.
-- Example: select unregister_capture('crm', 'the source is switched off')
create or replace function event_store_platform.unregister_capture(
  v_capture text,
  v_reason text default null
)
returns void
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _capture constant event_store.captures := event_store_private.lock_capture(v_capture);
  _stored bigint;
  _quarantined bigint;
begin
  if _capture.leased_until > event_store_private.clock() then
    raise exception 'capture is in use'
      using
        errcode = 'MR031',
        detail = format('capture %L is leased by %s until %s', v_capture, _capture.lease_owner, _capture.leased_until),
        hint = 'Stop its process first, or wait until the lease has expired.';
  end if;
  delete from event_store.wal_events
  where source_generation in (select source_generation from event_store.source_generations where capture = v_capture);
  get diagnostics _stored = row_count;
  delete from event_store.quarantined_changes where capture = v_capture;
  get diagnostics _quarantined = row_count;
  delete from event_store.capture_names where capture = v_capture; -- with all rows that refer to it
  perform event_store_private.audit(
    'unregister_capture', null, v_reason,
    jsonb_build_object(
      'capture', v_capture, 'source_generation', _capture.source_generation, 'slot', _capture.slot, 'publication',
      _capture.publication, 'stored_lsn', _capture.stored_lsn, 'wal_events', _stored, 'quarantined', _quarantined
    )
  );
end
$$;

comment on function event_store_platform.unregister_capture(text, text) is
'Removes a capture with its tables, stored and quarantined changes; its events, generations and gaps stay, and the '
'source is not touched. Audited with v_reason. MR030 unknown capture; MR031 it is leased.';
revoke all on function event_store_platform.unregister_capture(text, text) from public;
grant execute on function event_store_platform.unregister_capture(text, text) to event_store_owner;
