-- v_old and v_new are JSON Schemas. The rule is Avro's: a field that the reader requires must be there, and have a type
-- that it accepts.
create or replace function event_store_private.unreadable_fields(
  v_old jsonb,
  v_new jsonb,
  v_field text default 'data'
)
returns text
language plpgsql
immutable
set search_path = event_store, pg_temp
as $$
declare
  -- a list, also for a single name
  _types jsonb := '[]' || (v_old -> 'type');
  _taken jsonb := '[]' || (v_new -> 'type');
begin
  if jsonb_typeof(v_old) <> 'object' or jsonb_typeof(v_new) <> 'object'
    or (v_old || v_new) ?| '{$ref,anyOf,allOf,oneOf,not}'
  then
    return null;
  end if;
  if _taken ? 'number' then
    _taken := _taken || '"integer"';
  end if;
  if not _taken @> _types then
    return format('%s may be of type %s, and the new schema takes %s', v_field, _types, v_new -> 'type');
  end if;
  return (
    select string_agg(u.fault, '; ' order by u.fault)
    from (
      select format('%s.%s is required, and was not', v_field, r.key) as fault
      from jsonb_array_elements_text(v_new -> 'required') r(key)
      where not coalesce(v_old -> 'required', '[]') ? r.key
      union all
      select event_store_private.unreadable_fields(v_old -> 'properties' -> p.key, p.value, format('%s.%s', v_field, p.key))
      from jsonb_each(v_new -> 'properties') p
      where v_old -> 'properties' ? p.key
    ) u
  );
end
$$;

comment on function event_store_private.unreadable_fields(jsonb, jsonb, text) is
'The fields that keep a reader of one schema from data of another, and why; null where it reads them or that is unknown.';
