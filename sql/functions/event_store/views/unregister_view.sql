-- A view that is registered again by this name has other tokens; it cannot tell a late answer without a token from its
-- own.
-- Example: select unregister_view('invoices', 'replaced by billing')
create or replace function event_store_platform.unregister_view(
  v_view text,
  v_reason text default null
)
returns void
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _view event_store.views;
begin
  -- Lasting obstacles are raised first, and checked again once no other session can change them.
  perform event_store_private.known_view(v_view);
  perform event_store_private.refuse_if_read_model(v_view);
  _view := event_store_private.lock_idle_view(v_view);
  perform event_store_private.refuse_if_read_model(v_view);
  perform event_store_private.audit(
    'unregister_view',
    v_view,
    v_reason,
    jsonb_build_object(
      'view', to_jsonb(_view),
      'positions', (select jsonb_object_agg(partition, position) from event_store.checkpoints where view = v_view),
      'locks', (select count(*) from event_store.stream_locks where view = v_view)
    )
  );
  delete from event_store.drains where drain = v_view;
  delete from event_store.views where view = v_view;
end
$$;

comment on function event_store_platform.unregister_view(text, text) is
'Removes a view with its progress, its locks and its dead letters; audited with v_reason. MR010 unknown view; MR017 '
'something is leased or in flight; MR019 it is the view of a read model.';
revoke all on function event_store_platform.unregister_view(text, text) from public;
grant execute on function event_store_platform.unregister_view(text, text) to event_store_owner;
