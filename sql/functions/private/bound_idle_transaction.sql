-- A shorter bound that is already set stays. The setting is of this transaction alone. No committed work is lost: the
-- transaction is rolled back.
-- Every function that locks a shared row or table (the sequencer's row, the table of deciders, others' views and
-- producers) calls it. The caller may reset the bound: so end_log_holder finds the transaction by its lock of a table
-- that nothing else takes.
create or replace function event_store_private.bound_idle_transaction(
  v_longest interval default '10 seconds'
)
returns void
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
declare
  _set constant interval := current_setting('idle_in_transaction_session_timeout');
begin
  -- A prepared transaction would hold it without a session. One that notifies cannot be prepared. No session listens.
  perform pg_notify('event_store_held', '')
  where current_setting('max_prepared_transactions') <> '0' and pg_notification_queue_usage() < 0.5;
  lock table event_store.model_locks in row share mode;
  if _set = interval '0' or _set > v_longest then
    perform set_config('idle_in_transaction_session_timeout', (extract(epoch from v_longest) * 1000)::bigint::text, true);
  end if;
end
$$;

comment on function event_store_private.bound_idle_transaction(interval) is
'Ends the session if it idles in this transaction for longer than v_longest.';
