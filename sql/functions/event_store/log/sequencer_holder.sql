-- The holder is a running call of sequence_events, or an open transaction that made one. If two calls a second apart
-- return the same holder, it is no running call: end it by its pid.
-- Races: none; it takes no lock, and the returned transaction may have ended by then.
-- open_since is null where Postgres hides it from the role that migrated, which then lacks pg_read_all_stats.
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
  -- xmax is the mark that a row lock leaves; that of an ended transaction holds nothing
  join pg_locks l on l.locktype = 'transactionid' and l.transactionid = s.xmax and l.granted
  left join pg_stat_activity a on a.pid = l.pid
  where l.pid is distinct from pg_backend_pid()
$$;

comment on function event_store_platform.sequencer_holder() is
'Returns the session that holds the sequencer''s row in an open transaction, if there is one: its pid, its login, its'
' transaction and since when that is open, if visible. A transaction that two calls a second apart return holds'
' up the whole log.';
revoke all on function event_store_platform.sequencer_holder() from public;
grant execute on function event_store_platform.sequencer_holder() to event_store_consumer, event_store_reader, event_store_owner;
