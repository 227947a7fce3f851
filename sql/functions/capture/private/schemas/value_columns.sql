-- The parts of a table's columns that affect the values of its rows: names and types.
create or replace function event_store_private.value_columns(
  v_columns jsonb
)
returns jsonb
language sql
immutable
as $$
  -- in their order: nothing else shows that two columns exchanged their names
  select jsonb_agg(
    jsonb_build_array(c.element -> 'name', c.element -> 'type_oid', c.element -> 'type_modifier') order by c.number
  )
  from jsonb_array_elements(v_columns) with ordinality c(element, number)
$$;

comment on function event_store_private.value_columns(jsonb) is
'The names and types of columns, in their order, as keep_schemas takes them; null for null and for none.';
