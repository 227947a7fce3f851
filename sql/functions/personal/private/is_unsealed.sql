-- The key that a sealed value names may be unknown here.
-- It looks at the text, in which a quote stands only around keys and texts: a path of jsonb and a pattern with counts, as
-- in compile_schema, take ten times as long, and each captured row comes here.
create or replace function event_store_private.is_unsealed(
  v_data jsonb
)
returns boolean
language plpgsql
immutable
-- no search_path of its own, which would cost every event of some size: it uses only built-ins
as $$
declare
  _parts constant text[] := string_to_array(v_data::text, '"$sealed":');
  _value text;
begin
  for _i in 2 .. cardinality(_parts) loop
    _value := split_part(_parts[_i], '"', 2);
    if _parts[_i - 1] not like '%{' or _parts[_i] not like ' "1.%' or substr(_parts[_i], length(_value) + 3, 2) <> '"}'
      or substr(_value, 25, 1) <> '.' or substr(_value, 48, 1) <> '.' and substr(_value, 25) <> '.0.0'
      or _value ~ '[^A-Za-z0-9_.-]' or length(replace(_value, '.', '')) <> length(_value) - 3 or _value like '%.'
    then
      -- else it is the end of a longer key
      if right(_parts[_i - 1], 1) <> chr(92) then -- a backslash
        return true;
      end if;
    end if;
  end loop;
  return false;
end
$$;

comment on function event_store_private.is_unsealed(jsonb) is
'Whether data use the word $sealed for something other than a sealed value.';
