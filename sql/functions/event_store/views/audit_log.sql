-- Example: select done_at, done_by, operation, reason from audit_log('invoices')
create or replace function event_store_platform.audit_log(
  v_view text default null,
  v_limit bigint default 100
)
returns setof event_store.audit_log
language sql
stable
security definer
set search_path = event_store, pg_temp
as $$
  select event_store_private.refuse_request(format('v_limit is %s', v_limit), 'v_limit must be at least 1.')
  where v_limit <= 0;
  select a.*
  from event_store.audit_log a
  where v_view is null or a.view = v_view
  order by a.audit_id desc
  limit v_limit
$$;

comment on function event_store_platform.audit_log(text, bigint) is
'Returns the last v_limit entries of the audit log, the newest first: what operators did to v_view, or to any view '
'and to the log (null); when, by which login and why. MR005 v_limit is not positive.';
revoke all on function event_store_platform.audit_log(text, bigint) from public;
grant execute on function event_store_platform.audit_log(text, bigint) to event_store_reader, event_store_owner;
