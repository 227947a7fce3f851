-- Marks this session as a live consumer of a view until the session ends, however it ends. poll_views counts them, so a
-- poller knows a consumer that waits for events from one that died. Advisory lock of the session, shared; nothing is
-- written.
create or replace function event_store.attach_consumer(
  v_view text
)
returns void
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
begin
  perform event_store_private.known_view(v_view);
  perform pg_advisory_lock_shared(event_store_private.consumer_lock_class(), hashtext(v_view));
end
$$;

comment on function event_store.attach_consumer(text) is
'Marks this session as a live consumer of a view until the session ends, however it ends; poll_views and view_info '
'count it. MR010 unknown view.';
revoke all on function event_store.attach_consumer(text) from public;
grant execute on function event_store.attach_consumer(text) to event_store_consumer, event_store_owner;
