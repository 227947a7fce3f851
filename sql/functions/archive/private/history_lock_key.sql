-- The key of the advisory lock that whoever places a view in the log shares, and whoever shortens the log holds alone.
create or replace function event_store_private.history_lock_key()
returns bigint
language sql
immutable
parallel safe
as $$
  select hashtextextended('event_store.history', 0)
$$;

comment on function event_store_private.history_lock_key() is 'The key of the advisory lock of the log''s history.';
