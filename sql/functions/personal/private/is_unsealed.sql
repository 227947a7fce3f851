-- The key that a sealed value names may be unknown here.
-- It looks at the text: a path of jsonb and a pattern with counts take ten times as long, and each captured row comes here.
create or replace function event_store_private.is_unsealed(
  v_data jsonb
)
returns boolean
language plpgsql
immutable
set search_path = event_store, pg_temp
as $$
declare
  _parts constant text[] := string_to_array(v_data::text, '"$sealed"');
  _value text;
begin
  for _i in 2 .. cardinality(_parts) loop
    -- a text that is no key, or the end of a longer key
    continue when _parts[_i] not like ':%' or _parts[_i - 1] like '%\\';
    _value := split_part(_parts[_i], '"', 2);
    if _parts[_i - 1] not like '%{' or not starts_with(_parts[_i], ': "' || _value || '"}')
      or _value ~ '[^A-Za-z0-9_.-]' or _value not like '1.%' or length(split_part(_value, '.', 2)) <> 22
      or length(split_part(_value, '.', 3)) <> 22 and _value not like '%.0.0'
      or length(replace(_value, '.', '')) <> length(_value) - 3 or _value like '%.'
    then
      return true;
    end if;
  end loop;
  return false;
end
$$;

comment on function event_store_private.is_unsealed(jsonb) is
'Whether data use the word $sealed for something other than a sealed value.';
