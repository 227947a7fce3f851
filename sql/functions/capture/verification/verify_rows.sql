-- All rows are of one snapshot. unchanged equal those of their streams; differing do not, missing of them have no live
-- stream: a repair appends them as events backfilled. held wait in the quarantine or cannot be events; if a row can be,
-- a repair gives up the quarantined changes of its stream, which are older. left_out have newer changes. examples are
-- up to twenty keys of those that differ.
create or replace function event_store_platform.verify_rows(
  v_verification bigint,
  v_snapshot pg_snapshot,
  v_high_lsn pg_lsn,
  v_decider_ids text[],
  v_event_ids uuid[],
  v_command_id uuid,
  v_data text[],
  v_faults text[]
)
returns table (
  status text,
  differing bigint,
  missing bigint,
  unchanged bigint,
  held bigint,
  left_out bigint,
  examples text[]
)
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
-- planner: uncompiled
declare
  _verification event_store.verifications;
  _capture event_store.captures;
  _table event_store.captured_tables;
begin
  if v_snapshot is null or v_high_lsn is null then
    perform event_store_private.refuse_request(format('v_snapshot %L, v_high_lsn %L', v_snapshot, v_high_lsn), 'Both are stated.');
  end if;
  perform event_store_private.require_read_rows(v_decider_ids, v_event_ids, v_command_id, v_data, v_faults);
  _verification := event_store_private.current_verification(v_verification);
  _capture := event_store_private.known_capture(_verification.capture);
  _table := event_store_private.read_table(_verification);
  status := case
    when (pg_snapshot_xmin(v_snapshot) >= _table.published_xid) is not true then 'unpublished'
    when (_capture.stored_lsn >= v_high_lsn) is not true or event_store_private.has_unemitted_changes(_capture) then 'behind'
    else 'stored'
  end;
  if status = 'stored' then
    select p.appended, p.missing, p.unchanged, p.held, p.left_out, p.differing
    into differing, missing, unchanged, held, left_out, examples
    from event_store_private.place_rows(
      _capture,
      _table,
      v_snapshot,
      event_store_private.read_rows(v_decider_ids, v_event_ids, v_command_id, v_data, v_faults),
      case when _verification.repairs then 'repair' else 'verify' end
    ) p;
  end if;
  return next;
end
$$;

comment on function event_store_platform.verify_rows(bigint, pg_snapshot, pg_lsn, text[], uuid[], uuid, text[], text[]) is
'Compares rows of the table of v_verification with their streams, as emit_backfill takes them; a repair appends those '
'that differ. status is stored, behind (emit up to v_high_lsn first, then again) or unpublished (read the rows '
'again). MR005 an argument is malformed; MR049 the verification is over.';
revoke all on function event_store_platform.verify_rows(bigint, pg_snapshot, pg_lsn, text[], uuid[], uuid, text[], text[]) from public;
grant execute on function event_store_platform.verify_rows(bigint, pg_snapshot, pg_lsn, text[], uuid[], uuid, text[], text[]) to event_store_owner;
