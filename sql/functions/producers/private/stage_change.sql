-- Locks an open transaction and adds to its staged changes.
create or replace function event_store_private.stage_change(
  v_transaction_id uuid,
  v_key text,
  v_value jsonb,
  v_events jsonb
)
returns void
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
declare
  _transaction event_store.transactions;
begin
  if v_transaction_id is null then
    perform event_store_private.refuse_request('v_transaction_id is null', 'Pass on what begin_transaction returned.');
  end if;
  select * into _transaction from event_store.transactions where transaction_id = v_transaction_id for update;
  if not found then
    perform event_store_private.refuse_ended_transaction(v_transaction_id, outcome)
    from event_store.producer_results
    where transaction_id = v_transaction_id;
    perform event_store_private.refuse_unknown_transaction(v_transaction_id);
  end if;
  perform event_store_private.require_producer(_transaction.producer_id, _transaction.partition);
  if _transaction.state <> 'open' then
    perform event_store_private.require_current_epoch(_transaction); -- a later registration ended it
  end if;
  perform event_store_private.require_open(_transaction);
  insert into event_store.staged_changes (transaction_id, ordinal, key, value, events)
  select v_transaction_id, coalesce(max(ordinal), 0) + 1, v_key, v_value, v_events
  from event_store.staged_changes
  where transaction_id = v_transaction_id;
end
$$;

comment on function event_store_private.stage_change(uuid, text, jsonb, jsonb) is
'Adds a change to an open transaction. MR005, MR024 fenced, MR026 unknown, MR027 ended, MR045 another role''s.';
