-- Example: select * from key_holders()
create or replace function event_store.key_holders()
returns table (
  host text,
  folder text,
  epochs int[],
  seen_at timestamptz
)
language sql
stable
security definer
set search_path = event_store, pg_temp
as $$
  select h.host, h.folder, h.epochs, h.seen_at from event_store_keys.holders h order by h.host, h.folder
$$;

comment on function event_store.key_holders() is 'Returns the folders of keys, each with the epochs whose files it has.';
revoke all on function event_store.key_holders() from public;
grant execute on function event_store.key_holders() to event_store_personal, event_store_reader, event_store_owner;
