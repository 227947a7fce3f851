-- The first key of the advisory locks that mark live consumers; the second is the hash of the view's name.
create or replace function event_store_private.consumer_lock_class()
returns int
language sql
immutable
parallel safe
as $$
  select hashtext('event_store.attach_consumer')
$$;

comment on function event_store_private.consumer_lock_class() is
'The first key of the advisory locks that mark live consumers.';
