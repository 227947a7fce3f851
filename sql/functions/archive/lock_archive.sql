-- Makes the session the only one that writes the archive of a log partition, until the session ends. False, at once,
-- where another one is at it.
-- Example: select lock_archive(3)
create or replace function event_store.lock_archive(
  v_partition int
)
returns boolean
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
begin
  perform event_store_private.require_partition(v_partition);
  return pg_try_advisory_lock(hashtextextended('event_store.archive.' || v_partition, 0));
end
$$;

comment on function event_store.lock_archive(int) is
'Makes this session the only one that writes the archive of log partition v_partition until the session ends; false, '
'at once, where another one does. MR013 unknown log partition.';
revoke all on function event_store.lock_archive(int) from public;
grant execute on function event_store.lock_archive(int) to event_store_owner;
