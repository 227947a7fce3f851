-- Locks the producer before the transaction. The transaction has a result if it was committed or abandoned.
create or replace function event_store_private.lock_transaction(
  v_transaction_id uuid
)
returns event_store.transactions
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
declare
  _transaction event_store.transactions;
  _owner text;
begin
  if v_transaction_id is null then
    perform event_store_private.refuse_request('v_transaction_id is null', 'Pass on what begin_transaction returned.');
  end if;
  select * into _transaction from event_store.transactions where transaction_id = v_transaction_id;
  select owner into _owner from event_store.producers
  where producer_id = _transaction.producer_id and partition = _transaction.partition
  for no key update;
  if not event_store_private.may_use(_owner) then
    perform event_store_private.refuse_foreign_producer(_transaction.producer_id, _transaction.partition, _owner);
  end if;
  -- A snapshot older than a later message fails here (40001): the lock of the row of producers does not show it.
  perform from event_store.producer_progress
  where ctid = (select g.version from event_store_private.progress_of(_transaction.producer_id, _transaction.partition) g)
  for no key update;
  -- as it is now: a concurrent transaction may have ended it during the wait
  select * into _transaction from event_store.transactions where transaction_id = v_transaction_id for update;
  if not found and not exists (select from event_store.producer_results where transaction_id = v_transaction_id) then
    perform event_store_private.refuse_unknown_transaction(v_transaction_id);
  end if;
  return _transaction;
end
$$;

comment on function event_store_private.lock_transaction(uuid) is
'Locks a transaction and its producer; null if it has a result. MR005, MR026 unknown, MR045 another role''s.';
