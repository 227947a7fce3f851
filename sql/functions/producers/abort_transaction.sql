-- If the transaction has ended without an effect, this does nothing.
create or replace function event_store.abort_transaction(
  v_transaction_id uuid
)
returns void
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered once
declare
  _transaction constant event_store.transactions := event_store_private.lock_transaction(v_transaction_id);
begin
  if _transaction.transaction_id is null then
    perform event_store_private.refuse_ended_transaction(v_transaction_id, outcome)
    from event_store.producer_results
    where transaction_id = v_transaction_id;
  end if;
  perform event_store_private.end_transactions(
    _transaction.producer_id, _transaction.partition, array[v_transaction_id], 'aborted'
  );
end
$$;

comment on function event_store.abort_transaction(uuid) is
'Gives up a transaction: none of it is ever seen, and its message may be begun again. MR005 v_transaction_id is null; '
'MR026 unknown transaction; MR027 it was committed or abandoned; MR045 another role''s producer.';
revoke all on function event_store.abort_transaction(uuid) from public;
grant execute on function event_store.abort_transaction(uuid) to event_store_writer, event_store_owner;
