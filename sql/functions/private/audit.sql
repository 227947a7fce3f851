-- Writes down what an operator did. In the transaction of what is done: neither happens alone.
create or replace function event_store_private.audit(
  v_operation text,
  v_view text,
  v_reason text,
  v_detail jsonb
)
returns void
language sql
volatile
as $$
  insert into event_store.audit_log (done_at, done_by, operation, view, reason, detail)
  -- the caller, also inside a security definer function
  values (event_store_private.clock(), session_user, v_operation, v_view, v_reason, v_detail)
$$;

comment on function event_store_private.audit(text, text, text, jsonb) is
'Writes down what an operator did, who and why.';
