-- The source's log did not hold the values of these columns.
-- Without settings of its own, so that Postgres inlines it into the calling statements.
create or replace function event_store_private.lacking_columns(
  v_data jsonb
)
returns text[]
language sql
immutable
as $$
  select case
    when jsonb_typeof(v_data -> 'unavailable') = 'array' then array(select jsonb_array_elements_text(v_data -> 'unavailable'))
    else '{}'
  end
$$;

comment on function event_store_private.lacking_columns(jsonb) is
'The columns without a value in the event of a captured change.';
