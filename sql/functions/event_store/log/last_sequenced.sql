-- Where a sequencer runs, it is just now. Where none runs and no view is consumed, new events wait from then on.
-- Races: none; it takes no lock.
-- Example: select clock_timestamp() - last_sequenced()
create or replace function event_store_platform.last_sequenced()
returns timestamptz
language sql
stable
security definer
set search_path = event_store, pg_temp
as $$
-- planner: uncompiled
  select s.sequenced_at from event_store.sequencer s where s.singleton order by s.revision desc limit 1
$$;

comment on function event_store_platform.last_sequenced() is
'Returns when a session last looked for events without a position, to half a second; infinity during a restore.';
revoke all on function event_store_platform.last_sequenced() from public;
grant execute on function event_store_platform.last_sequenced() to event_store_consumer, event_store_reader, event_store_owner;
