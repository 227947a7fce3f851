-- Example: select drop_push_secret('hook', 'the receiver knows it by its address')
create or replace function event_store_platform.drop_push_secret(
  v_view text,
  v_reason text default null
)
returns void
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
begin
  perform event_store_private.known_view(v_view, 'rows');
  delete from event_store.push_secrets s where s.view = v_view;
  if found then
    perform event_store_private.audit('drop_push_secret', v_view, v_reason, '{}');
  end if;
end
$$;

comment on function event_store_platform.drop_push_secret(text, text) is
'Stops the signing of pushes of view v_view; audited with v_reason. MR010 unknown view; MR012 a bulk view.';
revoke all on function event_store_platform.drop_push_secret(text, text) from public;
grant execute on function event_store_platform.drop_push_secret(text, text) to event_store_owner;
