-- It reads one event at most, and none of an open transaction.
create or replace function event_store_private.has_fresh_events(
  v_earlier pg_snapshot,
  v_later pg_snapshot
)
returns boolean
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
-- planner: indexed once
begin
  return exists (
    select from event_store_private.fresh_transactions(v_earlier, v_later) f
    cross join lateral (
      select from event_store.events e
      where e.transaction_id >= f.from_id and e.transaction_id < f.before_id
      limit 1
    ) fresh
  );
end
$$;

comment on function event_store_private.has_fresh_events(pg_snapshot, pg_snapshot) is
'Whether v_later sees an event that v_earlier does not.';
