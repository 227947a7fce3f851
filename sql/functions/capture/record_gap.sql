-- Changes are lost if a slot is gone, or stands beyond the stored position. begin_generation ends the gap.
-- Example: select record_gap('crm', '0/16B3748', null, 'The slot was invalidated: wal_removed.')
create or replace function event_store_platform.record_gap(
  v_capture text,
  v_from_lsn pg_lsn,
  v_to_lsn pg_lsn,
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
begin
  if coalesce(v_reason, '') = '' then
    perform event_store_private.refuse_request('v_reason is empty', 'Say in v_reason what was lost and how.');
  elsif octet_length(v_reason) > 10000 then
    perform event_store_private.refuse_request(format('v_reason has %s bytes', octet_length(v_reason)), 'Say it in at most 10000 bytes.');
  end if;
  -- The caller repairs the source next, and then nothing else shows the loss.
  perform event_store_private.commit_durably();
  _capture := event_store_private.lock_capture(v_capture);
  insert into event_store.capture_gaps (capture, source_generation, from_lsn, to_lsn, reason, detected_at)
  values (v_capture, _capture.source_generation, v_from_lsn, v_to_lsn, v_reason, event_store_private.clock())
  on conflict (capture) where resolved_by_generation is null do nothing;
  if found then
    perform event_store_private.audit(
      'record_gap', null, v_reason, jsonb_build_object('capture', v_capture, 'from_lsn', v_from_lsn, 'to_lsn', v_to_lsn)
    );
  end if;
  return (select gap_id from event_store.capture_gaps where capture = v_capture and resolved_by_generation is null);
end
$$;

comment on function event_store_platform.record_gap(text, pg_lsn, pg_lsn, text) is
'Records that changes of a source between v_from_lsn and v_to_lsn (null: unknown) are lost, for v_reason, and returns '
'the gap''s number. An open gap stays as it is. MR005 v_reason is empty; MR030 unknown capture.';
revoke all on function event_store_platform.record_gap(text, pg_lsn, pg_lsn, text) from public;
grant execute on function event_store_platform.record_gap(text, pg_lsn, pg_lsn, text) to event_store_owner;
