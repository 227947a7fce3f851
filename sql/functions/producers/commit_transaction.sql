-- All staged changes become visible together, or none.
-- Example: select duplicate, result, next_sequence from commit_transaction(transaction_id, '{"total": 17}')
create or replace function event_store.commit_transaction(
  v_transaction_id uuid,
  v_result jsonb default null
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
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered once
#variable_conflict use_column
begin
  return query select s.* from event_store_private.settle_transaction(v_transaction_id, 'committed', v_result, null) s;
end
$$;

comment on function event_store.commit_transaction(uuid, jsonb) is
'Applies all that a transaction staged at once, keeps v_result as its answer, and returns it. If another transaction '
'of the same message was first, nothing is done and the answer is that one''s (duplicate); a repeated call gets the '
'same answer. A refused event leaves the transaction open. MR001 to MR005, MR034, MR046, MR050 and MR055 as append_events; '
'MR024 another instance of the producer registered; MR026 unknown transaction; MR027 the transaction has ended; MR045 '
'another role''s producer.';
revoke all on function event_store.commit_transaction(uuid, jsonb) from public;
grant execute on function event_store.commit_transaction(uuid, jsonb) to event_store_writer, event_store_owner;
