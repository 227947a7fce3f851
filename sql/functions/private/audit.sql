-- In the transaction of the action: neither happens alone.
-- done_by is the login; the role chosen by SET ROLE, which gave the rights, is in the detail.
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
  select event_store_private.refuse_request(
    format('v_reason has %s bytes', octet_length(v_reason)), 'A reason has at most 10000 bytes.'
  )
  where octet_length(v_reason) > 10000;
  insert into event_store.audit_log (done_at, done_by, operation, view, reason, detail)
  -- the caller, even inside a security definer function
  select
    event_store_private.clock(), session_user, v_operation, v_view, v_reason,
    case event_store_private.caller_role()
      when session_user then v_detail
      else v_detail || jsonb_build_object('set_role', event_store_private.caller_role())
    end
$$;

comment on function event_store_private.audit(text, text, text, jsonb) is
'Records an operator''s action, the operator and the reason. MR005 the reason is too long.';
