-- A later instance of the producer fences the transaction out.
create or replace function event_store_private.require_current_epoch(
  v_transaction event_store.transactions
)
returns bigint
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
declare
  _producer event_store.producers;
begin
  select * into _producer
  from event_store.producers
  where producer_id = v_transaction.producer_id and partition = v_transaction.partition;
  if v_transaction.epoch < _producer.epoch then
    raise exception 'producer is fenced'
      using
        errcode = 'MR024',
        detail = format(
          'producer %L, partition %s: transaction %s is of epoch %s, the producer is at epoch %s',
          v_transaction.producer_id, v_transaction.partition, v_transaction.transaction_id, v_transaction.epoch, _producer.epoch
        ),
        hint = 'Another instance took over: stop this one, or register it again.';
  end if;
  return (select g.next_sequence from event_store_private.progress_of(v_transaction.producer_id, v_transaction.partition) g);
end
$$;

comment on function event_store_private.require_current_epoch(event_store.transactions) is
'The next sequence of a transaction''s producer. MR024 if that has a later epoch.';
