-- Two look-ups by key. With them a writer that appended the event can wait until a view has it: until the view's
-- checkpoint is beyond the position.
-- Races: an event that is returned without a position may get one at any moment; a position never changes.
-- Example: select partition, position from log_position('6f1d2f0a-64a5-4b5e-9f0e-1c1e7b0a0001')
create or replace function event_store.log_position(
  v_event_id uuid
)
returns table (
  partition int,
  "position" bigint
)
language plpgsql
stable
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered nested once
begin
  return query
  select coalesce(l.partition, event_store.stream_partition(e.decider_id, (select count(*) from event_store.partitions))), l.position
  from event_store.events e
  left join event_store.event_log l using ("offset")
  where e.event_id = v_event_id;
end
$$;

comment on function event_store.log_position(uuid) is
'Returns the log partition of an event and its position there, null while it is not sequenced; no row for an event '
'that is not stored, or was purged.';
revoke all on function event_store.log_position(uuid) from public;
grant execute on function event_store.log_position(uuid)
to event_store_writer, event_store_consumer, event_store_reader, event_store_owner;
