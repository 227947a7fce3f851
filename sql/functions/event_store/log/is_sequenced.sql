-- Whether every event that a snapshot sees has its position.
create or replace function event_store_platform.is_sequenced(
  v_committed pg_snapshot
)
returns boolean
language sql
volatile
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered
  select not event_store_private.has_fresh_events(s.snapshot, v_committed)
  from (select q.snapshot from event_store.sequencer q where q.singleton order by q.revision desc limit 1) s
$$;

comment on function event_store_platform.is_sequenced(pg_snapshot) is
'Returns whether every event that the snapshot v_committed sees has its position. sequence_events may have returned 0 '
'because another session was sequencing.';
revoke all on function event_store_platform.is_sequenced(pg_snapshot) from public;
grant execute on function event_store_platform.is_sequenced(pg_snapshot) to event_store_owner;
