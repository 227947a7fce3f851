-- What a backup needs beside the tables: its store, and the numbers above which a restored store continues.
create or replace function event_store_platform.backup_cut()
returns table (
  archive_id uuid,
  last_offset bigint,
  lease_token bigint
)
language sql
stable
security definer
set search_path = event_store, pg_temp
as $$
  select a.archive_id, o.last_value, t.last_value
  from event_store.archive a
  cross join event_store.events_offset_seq o
  cross join event_store.lease_token_seq t
$$;

comment on function event_store_platform.backup_cut() is
'Returns the store that the backup belongs to (archive_id), and the last offset and lease token that were given out: '
'a restored store continues above these.';
revoke all on function event_store_platform.backup_cut() from public;
grant execute on function event_store_platform.backup_cut() to event_store_owner;
