-- The path of a move consists of keys of objects.
create or replace function event_store_private.is_move_path(
  v_path jsonb
)
returns boolean
language sql
immutable
as $$
  select case jsonb_typeof(v_path)
    when 'array' then
      jsonb_array_length(v_path) between 1 and 32
      and not jsonb_path_exists(v_path, 'strict $[*] ? (@.type() != "string")')
    else false
  end
$$;

comment on function event_store_private.is_move_path(jsonb) is 'Whether a value is a list of 1 to 32 keys.';
