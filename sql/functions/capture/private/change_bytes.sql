-- Small data are stored uncompressed; concatenating nothing makes a plain copy.
-- Stable, like the functions that it calls: otherwise Postgres does not inline it into the calling statements.
create or replace function event_store_private.change_bytes(
  v_data jsonb
)
returns int
language sql
stable
parallel safe
as $$
  select case
    when v_data is null then 0
    when pg_column_size(v_data) < 1000 and pg_column_compression(v_data) is null then pg_column_size(v_data)
    else pg_column_size(v_data || '{}'::jsonb)
  end
$$;

comment on function event_store_private.change_bytes(jsonb) is
'The size of an object''s data in memory, even if they are stored compressed.';
