-- A path is a list of keys, with null for any item of a list or any further key. v_shown: the fields that are described
-- and not personal. The schema is one that compile_schema takes, so no $ref leads back into itself.
create or replace function event_store_private.personal_paths(
  v_schema jsonb,
  v_shown boolean default false,
  v_root jsonb default null,
  v_path jsonb default '[]'
)
returns setof jsonb
language plpgsql
immutable
set search_path = event_store, pg_temp
as $$
declare
  _root constant jsonb := coalesce(v_root, v_schema);
  _each record;
begin
  if jsonb_typeof(v_schema) <> 'object' then
    return;
  elsif v_schema ? 'x-personal' then
    return query select v_path where not v_shown;
    return;
  elsif v_shown then
    return next v_path;
  end if;
  for _each in
    select v_path || jsonb_build_array(p.key) as path, p.value as schema from jsonb_each(v_schema -> 'properties') p
    union all
    select v_path || '[null]', v_schema -> k.key from unnest('{items,additionalProperties}'::text[]) k(key) where v_schema ? k.key
    union all
    select v_path, jsonb_array_elements(v_schema -> k.key) from unnest('{anyOf,allOf,oneOf}'::text[]) k(key) where v_schema ? k.key
    union all
    select v_path, _root #> event_store_private.pointer_path(substr(v_schema ->> '$ref', 2)) where v_schema ? '$ref'
  loop
    return query select * from event_store_private.personal_paths(_each.schema, v_shown, _root, _each.path);
  end loop;
end
$$;

comment on function event_store_private.personal_paths(jsonb, boolean, jsonb, jsonb) is
'The paths of the personal fields of a schema, or of its other ones.';
