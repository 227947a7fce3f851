-- purge_events skips a log partition while an open transaction may have an old snapshot.
-- Races: none; it takes no lock, and its result may be outdated at once. Postgres does not show which session locks
-- which row, so holders are of the whole table: some may have appended to other log partitions only.
-- Example: select partition, holders from purge_state() where purged_position < earliest_position
create or replace function event_store_platform.purge_state(
  v_partition int default null
)
returns table (
  partition int,
  purged_position bigint,
  earliest_position bigint,
  holders int[]
)
language plpgsql
volatile -- locks are not part of a snapshot
security definer
set search_path = event_store, pg_temp
as $$
-- planner: uncompiled
begin
  if v_partition is not null then
    perform event_store_private.require_partition(v_partition);
  end if;
  return query
  select p.partition, p.purged_position, p.earliest_position, h.holders
  from event_store.log_partitions p
  cross join (
    select coalesce(array_agg(distinct coalesce(l.pid, 0)), '{}') as holders
    from pg_locks l
    where l.locktype = 'relation' and l.relation = 'event_store.log_partitions'::regclass and l.granted
      and l.database = (select d.oid from pg_database d where d.datname = current_database())
      -- sessions that lock or change rows, not those that only read
      and l.mode in ('RowShareLock', 'RowExclusiveLock')
      and l.pid is distinct from pg_backend_pid()
  ) h
  where v_partition is null or p.partition = v_partition
  order by p.partition;
end
$$;

comment on function event_store_platform.purge_state(int) is
'Returns how far each log partition (null), or v_partition, is purged: events between purged_position and '
'earliest_position are given up and still there. holders are the sessions that may delay a purge, 0 for a prepared '
'transaction. MR013 unknown log partition.';
revoke all on function event_store_platform.purge_state(int) from public;
grant execute on function event_store_platform.purge_state(int) to event_store_reader, event_store_owner;
