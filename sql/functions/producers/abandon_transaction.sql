-- A sender that sends the message again learns that it was abandoned. A repeated call gets the same answer.
-- Example: select outcome, next_sequence from abandon_transaction(transaction_id, 'line 41 is no order')
create or replace function event_store.abandon_transaction(
  v_transaction_id uuid,
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
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered once
#variable_conflict use_column
begin
  if coalesce(v_reason, '') = '' then
    perform event_store_private.refuse_request('v_reason is null or empty', 'Say why the message is given up.');
  elsif octet_length(v_reason) > 10000 then
    perform event_store_private.refuse_request(
      format('v_reason has %s bytes', octet_length(v_reason)), 'Say it in at most 10000 bytes.'
    );
  end if;
  return query select s.* from event_store_private.settle_transaction(v_transaction_id, 'abandoned', null, v_reason) s;
end
$$;

comment on function event_store.abandon_transaction(uuid, text) is
'Gives up a message for good with v_reason: none of it is ever seen, and the next one is accepted. If another '
'transaction of the same message was first, the answer is that one''s (duplicate). MR005 v_reason is empty, or '
'v_transaction_id is null; MR024 another instance of the producer registered; MR026 unknown transaction; MR027 the '
'transaction has ended; MR045 another role''s producer.';
revoke all on function event_store.abandon_transaction(uuid, text) from public;
grant execute on function event_store.abandon_transaction(uuid, text) to event_store_writer, event_store_owner;
