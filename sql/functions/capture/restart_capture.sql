-- The changes in between are unknown, as the gap says.
-- Example: select restart_capture('crm', 'the source was set back to yesterday')
create or replace function event_store_platform.restart_capture(
  v_capture text,
  v_reason text
)
returns bigint
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _capture event_store.captures;
  _gap bigint;
begin
  if coalesce(v_reason, '') = '' then
    perform event_store_private.refuse_request('v_reason is empty', 'Say in v_reason why the tables are to be read anew.');
  end if;
  _capture := event_store_private.lock_capture(v_capture);
  _gap := event_store_platform.record_gap(v_capture, _capture.stored_lsn, null, format('An operator asked for a new start: %s', v_reason));
  perform event_store_private.audit(
    'restart_capture', null, v_reason,
    jsonb_build_object(
      'capture', v_capture, 'source_generation', _capture.source_generation, 'stored_lsn', _capture.stored_lsn, 'gap_id', _gap
    )
  );
  return _gap;
end
$$;

comment on function event_store_platform.restart_capture(text, text) is
'Asks for a new slot and a backfill of all tables: opens a gap from the stored position on, and returns its number. '
'Audited with v_reason. MR005 v_reason is empty; MR030 unknown capture.';
revoke all on function event_store_platform.restart_capture(text, text) from public;
grant execute on function event_store_platform.restart_capture(text, text) to event_store_owner;
