-- A value that was sealed for a forgotten person names its key, too, and holds nothing.
create or replace function event_store_private.unknown_key(
  v_data jsonb
)
returns text
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
begin
  return (
    select s.key_id
    from (
      select split_part(p.value #>> '{}', '.', 2) as key_id, p.value #>> '{}' like '%.0.0' as is_empty
      from jsonb_path_query(v_data, '$.**."$sealed"') p(value)
    ) s
    left join event_store_keys.subject_keys k on k.key_id = s.key_id
    where k.key_id is null or k.forgotten_at is not null and not s.is_empty
    limit 1
  );
end
$$;

comment on function event_store_private.unknown_key(jsonb) is
'The first key that sealed a value of data and is unknown or forgotten; null if all live.';
