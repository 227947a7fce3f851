-- Example: select schema_name, table_name, backfilled_rows from captured_tables('crm')
create or replace function event_store_platform.captured_tables(
  v_capture text
)
returns setof event_store.captured_tables
language sql
stable
security definer
set search_path = event_store, pg_temp
as $$
  select t.*
  from event_store.captured_tables t
  where t.capture = v_capture
  order by t.schema_name, t.table_name
$$;

comment on function event_store_platform.captured_tables(text) is
'Returns the tables of capture v_capture as they are registered, and the progress of each backfill; none for an '
'unknown capture.';
revoke all on function event_store_platform.captured_tables(text) from public;
grant execute on function event_store_platform.captured_tables(text) to event_store_reader, event_store_owner;
