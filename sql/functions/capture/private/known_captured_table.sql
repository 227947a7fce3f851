-- The registration of a captured table; raises MR005 if there is none.
create or replace function event_store_private.known_captured_table(
  v_capture text,
  v_schema text,
  v_table text
)
returns event_store.captured_tables
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
declare
  _table event_store.captured_tables;
begin
  select * into _table
  from event_store.captured_tables
  where capture = v_capture and schema_name = v_schema and table_name = v_table;
  if not found then
    perform event_store_private.refuse_request(
      format('capture %L has no table %s.%s', v_capture, coalesce(v_schema, 'null'), coalesce(v_table, 'null')),
      'captured_tables lists what it has.'
    );
  end if;
  return _table;
end
$$;

comment on function event_store_private.known_captured_table(text, text, text) is
'The registration of a captured table. MR005 unknown.';
