-- Postgres inlines it: an event without personal fields is judged by its schema alone.
create or replace function event_store_private.meets(
  v_accepts jsonpath,
  v_seals boolean,
  v_data jsonb
)
returns boolean
language sql
stable
as $$
  select (v_accepts is null or (v_data @@ v_accepts) is true)
    and (not v_seals or event_store_private.unknown_key(v_data) is null)
$$;

comment on function event_store_private.meets(jsonpath, boolean, jsonb) is
'Whether data meet the predicate of their schema, and their personal fields are sealed with keys that live.';
