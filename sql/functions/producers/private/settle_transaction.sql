-- If another transaction of the same message was first, this one is a duplicate. A repeated call gets the same answer.
create or replace function event_store_private.settle_transaction(
  v_transaction_id uuid,
  v_outcome text,
  v_result jsonb,
  v_reason text
)
returns table (
  duplicate boolean,
  outcome text,
  result jsonb,
  offsets bigint[],
  appended boolean[],
  next_sequence bigint
)
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
#variable_conflict use_column
declare
  _transaction constant event_store.transactions := event_store_private.lock_transaction(v_transaction_id);
  _settled event_store.producer_results;
  _next_sequence bigint;
begin
  if _transaction.transaction_id is null then
    select r.* into _settled from event_store.producer_results r where r.transaction_id = v_transaction_id;
    perform event_store_private.require_producer(_settled.producer_id, _settled.partition);
    if _settled.outcome <> v_outcome then
      perform event_store_private.refuse_ended_transaction(v_transaction_id, _settled.outcome);
    end if;
  else
    _next_sequence := event_store_private.require_current_epoch(_transaction);
    if _transaction.state <> 'superseded' then
      perform event_store_private.require_open(_transaction);
      if _transaction.sequence < _next_sequence then
        perform event_store_private.end_transactions(
          _transaction.producer_id, _transaction.partition, array[v_transaction_id], 'superseded'
        );
      elsif v_outcome = 'committed' then
        perform event_store_private.apply_staged_changes(_transaction, v_result);
      else
        perform event_store_private.record_outcome(
          _transaction.producer_id, _transaction.partition, _transaction.sequence, v_outcome, null, '{}', '{}', v_reason, v_transaction_id,
          _transaction.digest
        );
      end if;
    end if;
    select * into _settled
    from event_store.producer_results
    where producer_id = _transaction.producer_id and partition = _transaction.partition and sequence = _transaction.sequence;
    if _settled.digest <> _transaction.digest then
      perform event_store_private.refuse_other_message(_settled.producer_id, _settled.partition, _settled.sequence);
    end if;
  end if;
  return query
  select
    _settled.transaction_id is distinct from v_transaction_id, _settled.outcome, _settled.result, _settled.offsets, _settled.appended, g.next_sequence
  from event_store_private.progress_of(_settled.producer_id, _settled.partition) g;
end
$$;

comment on function event_store_private.settle_transaction(uuid, text, jsonb, text) is
'Ends a transaction as committed or abandoned, or returns the outcome of another one of the same message. MR024 '
'fenced, MR026 unknown, MR027 ended otherwise.';
