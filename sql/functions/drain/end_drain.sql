-- The drain that is under way ends only if v_owner owns it: the drain of all views also calls this for a view that it
-- leaves, and a run of that view's own may have begun.
-- Example: select end_drain('invoices', 'run 7', 'a value is out of range')
create or replace function event_store_platform.end_drain(
  v_drain text,
  v_owner text,
  v_error text default null
)
returns void
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
begin
  if v_drain is null or v_owner is null then
    perform event_store_private.refuse_request(format('v_drain %L, v_owner %L', v_drain, v_owner), 'Neither is null.');
  end if;
  insert into event_store.drains as d (drain, failures, error, ended_at)
  values (v_drain, (v_error is not null)::int, left(v_error, 500), event_store_private.clock())
  on conflict (drain) do update
  set
    asked_at = case when d.owner = v_owner then null else d.asked_at end,
    began_at = case when d.owner = v_owner then null else d.began_at end,
    owner = nullif(d.owner, v_owner),
    failures = case when v_error is null then 0 else d.failures + 1 end,
    error = excluded.error,
    ended_at = excluded.ended_at;
end
$$;

comment on function event_store_platform.end_drain(text, text, text) is
'Records how v_owner''s try at a drain ended: a success clears the failures, v_error counts one more. MR005 v_drain '
'or v_owner is null.';
revoke all on function event_store_platform.end_drain(text, text, text) from public;
grant execute on function event_store_platform.end_drain(text, text, text) to event_store_owner;
