-- A backup holds producers for the moment in which it looks: what a producer was answered must be in the log that it
-- has.
create or replace function event_store_platform.hold_producers()
returns pg_snapshot
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
begin
  lock table event_store.producer_progress in share mode; -- whoever judges or commits changes it
  return pg_current_snapshot();
end
$$;

comment on function event_store_platform.hold_producers() is
'Waits for those who judge or commit a producer''s message, lets nobody do so until this transaction ends, and '
'returns what is committed then. For a backup.';
revoke all on function event_store_platform.hold_producers() from public;
grant execute on function event_store_platform.hold_producers() to event_store_owner;
