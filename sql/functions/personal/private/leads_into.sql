-- null in a path is any key.
create or replace function event_store_private.leads_into(
  v_path jsonb,
  v_above jsonb
)
returns boolean
language sql
immutable
as $$
  select jsonb_array_length(v_path) >= jsonb_array_length(v_above) and not exists (
    select from jsonb_array_elements(v_above) with ordinality a(key, n)
    where a.key <> 'null' and v_path -> (a.n - 1)::int not in (a.key, 'null')
  )
$$;

comment on function event_store_private.leads_into(jsonb, jsonb) is 'Whether a path begins with another one.';
