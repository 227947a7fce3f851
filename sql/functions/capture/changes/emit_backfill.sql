-- One transaction stores the events and the progress of the backfill. v_command_id is that of all rows; v_faults say
-- why rows cannot be read. Unless status is stored, nothing is.
--   stored       left_out are stored already, or the log has newer changes of them; held wait in the quarantine. If the
--                newest change lacks values that the log does not hold (unavailable), the row still becomes an event
--                behind it: as it was read, with the later changes applied;
--   unpublished  the snapshot is older than the publication of the table.
-- After the last chunk finish_backfill is due. A table without any earlier event has no stream that could have lost its
-- row: its backfill ends with the last chunk.
create or replace function event_store_platform.emit_backfill(
  v_capture text,
  v_lease_token bigint,
  v_schema text,
  v_table text,
  v_snapshot pg_snapshot,
  v_high_lsn pg_lsn,
  v_decider_ids text[],
  v_event_ids uuid[],
  v_command_id uuid,
  v_data text[],
  v_faults text[],
  v_last_key text,
  v_done boolean
)
returns table (
  status text,
  appended bigint,
  left_out bigint,
  held bigint,
  unchanged bigint
)
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
-- planner: uncompiled
declare
  _capture event_store.captures;
  _table event_store.captured_tables;
  _appended uuid[];
  _placed record;
begin
  if v_snapshot is null or v_high_lsn is null or v_done is null then
    perform event_store_private.refuse_request(
      format('v_snapshot %L, v_high_lsn %L, v_done %L', v_snapshot, v_high_lsn, v_done), 'All are stated.'
    );
  end if;
  perform event_store_private.require_read_rows(v_decider_ids, v_event_ids, v_command_id, v_data, v_faults);
  _capture := event_store_private.require_capture_lease(v_capture, v_lease_token);
  _table := event_store_private.known_captured_table(v_capture, v_schema, v_table);
  appended := 0;
  left_out := 0;
  held := 0;
  unchanged := 0;
  status := case
    when (pg_snapshot_xmin(v_snapshot) >= _table.published_xid) is not true then 'unpublished'
    when (_capture.stored_lsn >= v_high_lsn) is not true or event_store_private.has_unemitted_changes(_capture) then 'behind'
    else 'stored'
  end;
  if status <> 'stored' or _table.rows_read then
    return next;
    return;
  end if;

  -- usually the rows have no events yet
  _appended := event_store_private.append_new_rows(_table, v_decider_ids, v_event_ids, v_command_id, v_data, v_faults);
  appended := cardinality(_appended);
  if appended < cardinality(v_event_ids) then
    select p.* into _placed
    from event_store_private.place_rows(
      _capture,
      _table,
      v_snapshot,
      array(
        select r
        from unnest(event_store_private.read_rows(v_decider_ids, v_event_ids, v_command_id, v_data, v_faults)) r
        where not exists (select from unnest(_appended) a(event_id) where a.event_id = r.event_id)
        order by r.number
      ),
      'backfill'
    ) p;
    appended := appended + _placed.appended;
    left_out := _placed.left_out;
    held := _placed.held;
    unchanged := _placed.unchanged;
  end if;
  update event_store.captured_tables
  set backfill_key = coalesce(v_last_key, backfill_key), backfilled_rows = backfilled_rows + cardinality(v_event_ids), rows_read = v_done,
    unchanged_rows = unchanged_rows + emit_backfill.unchanged,
    backfill_generation = case when v_done and is_new then _capture.source_generation end,
    backfilled_at = case when v_done and is_new then event_store_private.clock() else backfilled_at end
  where capture = v_capture and schema_name = v_schema and table_name = v_table;
  if v_done and _table.is_new then
    delete from event_store.unchanged_rows u where u.backfill_offset = _table.backfill_offset;
  end if;
  return next;
end
$$;

comment on function event_store_platform.emit_backfill(text, bigint, text, text, pg_snapshot, pg_lsn, text[], uuid[], uuid, text[], text[], text, boolean) is
'Turns a chunk of the rows of v_schema.v_table, which a backfill read in v_snapshot of the source, into events and '
'keeps its progress (v_last_key, v_done). v_decider_ids, v_event_ids, v_data and v_faults have an entry for each row; '
'data are texts of JSON, faults may be empty. v_high_lsn is a position of the source''s log behind all that the '
'snapshot sees. Rows that equal those of their streams (unchanged) make no event. status is stored, behind (emit up '
'to v_high_lsn first, then again) or unpublished (read the chunk again). MR005 an argument is malformed; MR011 the '
'lease v_lease_token is lost; MR030 unknown capture.';
revoke all on function event_store_platform.emit_backfill(text, bigint, text, text, pg_snapshot, pg_lsn, text[], uuid[], uuid, text[], text[], text, boolean) from public;
grant execute on function event_store_platform.emit_backfill(text, bigint, text, text, pg_snapshot, pg_lsn, text[], uuid[], uuid, text[], text[], text, boolean)
to event_store_owner;
