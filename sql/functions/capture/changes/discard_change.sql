-- audit_log also keeps the change.
-- Example: select discard_change(12, 'a test row')
create or replace function event_store_platform.discard_change(
  v_quarantine_id bigint,
  v_reason text
)
returns void
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _change event_store.quarantined_changes;
begin
  if coalesce(v_reason, '') = '' then
    perform event_store_private.refuse_request('v_reason is empty', 'Say in v_reason why the change is given up.');
  end if;
  _change := event_store_private.lock_quarantined_change(v_quarantine_id);
  delete from event_store.quarantined_changes where quarantine_id = v_quarantine_id;
  perform event_store_private.audit(
    'discard_change', null, v_reason,
    jsonb_build_object(
      'capture', _change.capture, 'source_generation', _change.source_generation, 'commit_lsn', _change.commit_lsn,
      'commit_idx', _change.commit_idx, 'decider', _change.decider, 'decider_id', _change.decider_id, 'action', _change.action,
      'event_id', _change.event_id, 'fault', _change.fault, 'quarantined_at', _change.quarantined_at
    )
  );
end
$$;

comment on function event_store_platform.discard_change(bigint, text) is
'Gives up a quarantined change: it never becomes an event, and requeue_changes can emit the changes behind it. '
'Audited with v_reason. MR005 v_reason is empty; MR035 it is not quarantined.';
revoke all on function event_store_platform.discard_change(bigint, text) from public;
grant execute on function event_store_platform.discard_change(bigint, text) to event_store_owner;
