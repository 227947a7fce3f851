-- Example: select add_state_change(transaction_id, 'total', '17')
create or replace function event_store.add_state_change(
  v_transaction_id uuid,
  v_key text,
  v_value jsonb
)
returns void
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered once
begin
  perform event_store_private.require_state_key(v_key);
  perform event_store_private.require_kept('v_value', v_value);
  perform event_store_private.stage_change(v_transaction_id, v_key, v_value, null);
end
$$;

comment on function event_store.add_state_change(uuid, text, jsonb) is
'Stages a change of a producer''s state for the commit of a transaction: v_key gets v_value, or is removed if that is '
'null (a JSON null is a value). The last change of a key counts. MR005 v_key is malformed, or an argument is null; '
'MR024 another instance of the producer registered; MR026 unknown transaction; MR027 the transaction has ended; MR045 '
'another role''s producer.';
revoke all on function event_store.add_state_change(uuid, text, jsonb) from public;
grant execute on function event_store.add_state_change(uuid, text, jsonb) to event_store_writer, event_store_owner;
