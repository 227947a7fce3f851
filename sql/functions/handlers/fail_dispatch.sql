-- Only `standing` uses this. Any login may dispatch a view, and operators read the error: so it records nothing for a
-- view that its caller may not use.
-- Races: it never waits; during a concurrent dispatch it records nothing.
-- Example: select fail_dispatch('invoices', 'index row size 2872 exceeds btree version 4 maximum 2704')
create or replace function event_store_platform.fail_dispatch(
  v_view text,
  v_error text
)
returns void
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
begin
  if v_view is null then
    perform event_store_private.refuse_request('v_view is null', 'The view is named.');
  end if;
  update event_store.dispatches d
  set failed_at = coalesce(d.failed_at, event_store_private.clock()), error = left(coalesce(v_error, 'no reason given'), 500)
  where d.view = (select h.view from event_store.dispatches h where h.view = v_view for update skip locked)
    and exists (select from event_store.views v where v.view = v_view and event_store_private.may_use(v.owner));
end
$$;

comment on function event_store_platform.fail_dispatch(text, text) is
'Records that the new events of v_view could not be dispatched, and why; the next successful dispatch clears it. For '
'a view that the caller may not use it records nothing. MR005 v_view is null.';
revoke all on function event_store_platform.fail_dispatch(text, text) from public;
grant execute on function event_store_platform.fail_dispatch(text, text) to event_store_consumer, event_store_owner;
