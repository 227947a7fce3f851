-- The captured table of a verification, with its number as that of a backfill: the number identifies the rows it found.
create or replace function event_store_private.read_table(
  v_verification event_store.verifications
)
returns event_store.captured_tables
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
declare
  _table event_store.captured_tables :=
    event_store_private.known_captured_table(v_verification.capture, v_verification.schema_name, v_verification.table_name);
begin
  _table.backfill_offset := v_verification.backfill_offset;
  _table.published_xid := v_verification.published_xid;
  return _table;
end
$$;

comment on function event_store_private.read_table(event_store.verifications) is 'The captured table of a verification.';
