-- The form is that of the operator #>.
create or replace function event_store_private.pointer_path(
  v_pointer text
)
returns text[]
language sql
immutable
as $$
  select coalesce(array_agg(replace(replace(s.step, '~1', '/'), '~0', '~') order by s.ordinal), '{}')
  from unnest(string_to_array(substr(v_pointer, 2), '/')) with ordinality s(step, ordinal)
$$;

comment on function event_store_private.pointer_path(text) is 'The steps of a JSON pointer.';
