-- Gives back every lease of one owner, in all views, and returns how many: for a run that is known to be dead.
create or replace function event_store.release_owner(
  v_owner text
)
returns bigint
language sql
volatile
security definer
set search_path = event_store, pg_temp
as $$
  with released as (
    update event_store.checkpoints
    set lease_owner = null, leased_until = null, leased_from = null, leased_to = null, rebuilds = false
    where lease_owner = v_owner
    returning 1
  )
  select count(*) from released
$$;

comment on function event_store.release_owner(text) is
'Gives back every lease of v_owner in all views and returns how many: for a run that is known to be dead.';
revoke all on function event_store.release_owner(text) from public;
grant execute on function event_store.release_owner(text) to event_store_consumer, event_store_owner;
