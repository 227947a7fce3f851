-- The holder is a call of sequence_events that runs, or a transaction that made one and is open. One that two calls a
-- second apart return is no call that runs: end it by its pid.
-- Races: none; it takes no lock, and what it returns may be over by then.
-- open_since is null where Postgres hides it from the role that migrated: it shows that of others to pg_read_all_stats.
-- Example: select pid, login, open_since from sequencer_holder()
create or replace function event_store_platform.sequencer_holder()
returns table (
  pid integer,
  login text,
  application_name text,
  transaction_id text,
  open_since timestamptz
)
language sql
volatile
security definer
set search_path = event_store, pg_temp
as $$
-- planner: uncompiled
  select l.pid, a.usename::text, a.application_name, l.transactionid::text, a.xact_start
  from event_store.sequencer s
  -- the mark that locking a row leaves on it; that of a transaction that is over holds nothing
  join pg_locks l on l.locktype = 'transactionid' and l.transactionid = s.xmax and l.granted
  left join pg_stat_activity a on a.pid = l.pid
  where l.pid is distinct from pg_backend_pid()
$$;

comment on function event_store_platform.sequencer_holder() is
'Returns the session whose open transaction holds the sequencer''s row, if there is one: its pid, its login, its'
' transaction and since when that is open, if that may be seen. The same transaction at two calls a second apart holds'
' up the whole log.';
revoke all on function event_store_platform.sequencer_holder() from public;
grant execute on function event_store_platform.sequencer_holder() to event_store_consumer, event_store_reader, event_store_owner;
