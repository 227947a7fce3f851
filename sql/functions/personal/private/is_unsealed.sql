-- The key that a sealed value names may be unknown here.
create or replace function event_store_private.is_unsealed(
  v_data jsonb
)
returns boolean
language plpgsql
immutable
set search_path = event_store, pg_temp
as $$
begin
  return exists (
    select
    from jsonb_path_query(v_data, 'strict $.** ? (@.type() == "object" && exists(@."$sealed"))', '{}', true) p(value)
    where jsonb_typeof(p.value -> '$sealed') <> 'string'
      or p.value ->> '$sealed' !~ event_store_private.sealed_pattern()
      or p.value - '$sealed' <> '{}'
  );
end
$$;

comment on function event_store_private.is_unsealed(jsonb) is
'Whether data use the word $sealed for something other than a sealed value.';
