-- The captured table of a reading, as of its own backfill: what tells which rows it found.
create or replace function event_store_private.read_table(
  v_reading event_store.readings
)
returns event_store.captured_tables
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
declare
  _table event_store.captured_tables :=
    event_store_private.known_captured_table(v_reading.capture, v_reading.schema_name, v_reading.table_name);
begin
  _table.backfill_offset := v_reading.backfill_offset;
  _table.published_xid := v_reading.published_xid;
  return _table;
end
$$;

comment on function event_store_private.read_table(event_store.readings) is 'The captured table of a reading.';
