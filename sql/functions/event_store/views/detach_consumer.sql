-- A consumer is also detached once its time is over or its view is removed.
create or replace function event_store_platform.detach_consumer(
  v_view text,
  v_consumer text default null
)
returns void
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _owner text;
begin
  if v_view is null then
    perform event_store_private.refuse_request('v_view is null', 'The view is named.');
  end if;
  select v.owner into _owner from event_store.views v where v.view = v_view;
  if not event_store_private.may_use(_owner) then
    perform event_store_private.refuse_foreign_view(v_view, _owner);
  end if;
  delete from event_store.consumers
  where view = v_view and consumer = coalesce(v_consumer, 'session ' || pg_backend_pid());
end
$$;

comment on function event_store_platform.detach_consumer(text, text) is
'Detaches v_consumer (null: this session), which attach_consumer attached: it no longer counts as a consumer of the view. '
'Nothing happens if it is not attached. MR005 v_view is null; MR041 another role''s view.';
revoke all on function event_store_platform.detach_consumer(text, text) from public;
grant execute on function event_store_platform.detach_consumer(text, text) to event_store_consumer, event_store_owner;
