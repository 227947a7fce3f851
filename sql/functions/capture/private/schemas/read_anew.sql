-- The caller writes the row, and publish_tables is due. v_read_lsn is an earlier position of the source's log.
create or replace function event_store_private.read_anew(
  v_table event_store.captured_tables,
  v_read_lsn pg_lsn
)
returns event_store.captured_tables
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
begin
  v_table.is_new := v_table.is_new and v_table.published_xid is null;
  v_table.published_xid := null;
  v_table.backfill_offset := nextval('event_store.events_offset_seq');
  v_table.backfill_key := null;
  v_table.backfilled_rows := 0;
  v_table.unchanged_rows := 0;
  v_table.gone_rows := 0;
  v_table.rows_read := false;
  v_table.finishing_key := null;
  v_table.backfill_generation := null;
  v_table.read_lsn := v_read_lsn;
  v_table.unread_reason := null;
  v_table.unread_at := null;
  return v_table;
end
$$;

comment on function event_store_private.read_anew(event_store.captured_tables, pg_lsn) is
'A captured table as it must be for its backfill to begin again.';
