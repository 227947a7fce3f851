-- Example: select * from open_keys(array['q83vEjRWeJCrze8SNFZ4kA'])
create or replace function event_store.open_keys(
  v_key_ids text[]
)
returns table (
  key_id text,
  epoch int,
  wrapped bytea
)
language sql
stable
security definer
set search_path = event_store, pg_temp
as $$
  select k.key_id, k.epoch, k.wrapped from event_store_keys.subject_keys k where k.key_id = any (v_key_ids)
$$;

comment on function event_store.open_keys(text[]) is
'Returns keys by their names, as they are wrapped; wrapped is null for a forgotten one. An unknown name gives no row.';
revoke all on function event_store.open_keys(text[]) from public;
grant execute on function event_store.open_keys(text[]) to event_store_personal, event_store_owner;
