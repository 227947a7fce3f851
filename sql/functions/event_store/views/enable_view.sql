-- Example: select view, enabled from enable_view('invoices', false, 'its receiver moves')
create or replace function event_store_platform.enable_view(
  v_view text,
  v_enabled boolean default true,
  v_reason text default null
)
returns setof event_store.views
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
begin
  if v_enabled is null then
    perform event_store_private.refuse_request('v_enabled is null', 'v_enabled must be true or false.');
  end if;
  perform event_store_private.known_view(v_view);
  update event_store.views set enabled = v_enabled, updated_at = event_store_private.clock() where view = v_view and enabled <> v_enabled;
  if found then
    perform event_store_private.audit('enable_view', v_view, v_reason, jsonb_build_object('enabled', v_enabled));
  end if;
  return query select * from event_store.views where view = v_view;
end
$$;

comment on function event_store_platform.enable_view(text, boolean, text) is
'Enables a view, so that it gets events, or disables it (v_enabled false), and returns it. Events in flight may still be '
'answered. A change is audited with v_reason. MR005 v_enabled is null; MR010 unknown view.';
revoke all on function event_store_platform.enable_view(text, boolean, text) from public;
grant execute on function event_store_platform.enable_view(text, boolean, text) to event_store_owner;
