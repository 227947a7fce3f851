-- A backup holds producers while it takes its snapshot: each answer that a producer got must be in the backup's log.
create or replace function event_store_platform.hold_producers()
returns pg_snapshot
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
begin
  lock table event_store.producer_progress in share mode; -- judging or committing a message changes it
  return pg_current_snapshot();
end
$$;

comment on function event_store_platform.hold_producers() is
'Waits for transactions that judge or commit a producer''s message, blocks further ones until this transaction ends, '
'and returns the snapshot of what is committed then. For a backup.';
revoke all on function event_store_platform.hold_producers() from public;
grant execute on function event_store_platform.hold_producers() to event_store_owner;
