-- One statement reads files and log. So a reader of the files, and of the log from the end of the last file on, reads
-- each event once.
-- Example: select partition, from_position, to_position, path, high_water_mark from archive_state(3)
create or replace function event_store_platform.archive_state(
  v_partition int default null
)
returns table (
  archive_id uuid,
  partition int,
  earliest_position bigint,
  archived_position bigint,
  high_water_mark bigint,
  from_position bigint,
  to_position bigint,
  path text,
  bytes bigint,
  checksum text
)
language plpgsql
stable
security definer
set search_path = event_store, pg_temp
as $$
-- planner: uncompiled
begin
  if v_partition is not null then
    perform event_store_private.require_partition(v_partition);
  end if;
  return query
  select
    a.archive_id, p.partition, p.earliest_position, p.archived_position, p.high_water_mark,
    f.from_position, f.to_position, f.path, f.bytes, f.checksum
  from event_store.partitions p
  cross join event_store.archive a
  left join event_store.archive_files f on f.partition = p.partition
  where v_partition is null or p.partition = v_partition
  order by p.partition, f.from_position;
end
$$;

comment on function event_store_platform.archive_state(int) is
'Returns the listed files of the archive with the marks of the log, in one snapshot and in order, for all log '
'partitions (null) or v_partition. A log partition without files has one row without a range. MR013 unknown log '
'partition.';
revoke all on function event_store_platform.archive_state(int) from public;
grant execute on function event_store_platform.archive_state(int) to event_store_consumer, event_store_reader, event_store_owner;
