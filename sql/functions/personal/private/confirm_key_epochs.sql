-- Of two holders that destroy the last two files at once neither may see the other: the next note confirms it.
create or replace function event_store_private.confirm_key_epochs()
returns void
language sql
volatile
set search_path = event_store, pg_temp
as $$
  update event_store_keys.epochs e
  set confirmed_at = case when n.is_gone then event_store_private.clock() end
  from (
    select o.epoch, g.is_gone
    from event_store_keys.epochs o
    cross join lateral (
      select o.destroyed_at is not null and not exists (select from event_store_keys.holders h where o.epoch = any (h.epochs)) as is_gone
    ) g
    where (o.confirmed_at is not null) <> g.is_gone
    for update of o skip locked
  ) n
  where e.epoch = n.epoch
$$;

comment on function event_store_private.confirm_key_epochs() is
'Notes which epochs of destroyed files no holder has any more.';
