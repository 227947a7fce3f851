-- The key of the advisory lock that whoever leases something of a view shares, and whoever changes the view itself
-- holds alone.
create or replace function event_store_private.view_lock_key(
  v_view text
)
returns bigint
language sql
immutable
parallel safe
as $$
  select hashtextextended('event_store.views ' || v_view, 0)
$$;

comment on function event_store_private.view_lock_key(text) is 'The key of the advisory lock of a view.';
