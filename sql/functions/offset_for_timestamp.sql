-- The first kept partition offset whose event was appended at or after a time; the high-water mark if there is none.
-- Exact, though created_at does not rise strictly along the log: an event has the time of its append, its position that of its
-- commit. -infinity is the earliest offset, infinity the mark, at no cost; else the events are read from v_timestamp on.
-- Example: select offset_for_timestamp(3, '2030-01-01 00:00:00+00')
create or replace function event_store.offset_for_timestamp(
  v_partition int,
  v_timestamp timestamptz
)
returns bigint
language plpgsql
stable
security definer
set search_path = event_store, pg_temp
-- how many events come after the time decides whether the index on created_at helps
set plan_cache_mode = force_custom_plan
as $$
declare
  _partition constant event_store.partitions := event_store.require_partition(v_partition);
begin
  if v_timestamp is null then
    perform event_store.refuse_request('v_timestamp is null', '-infinity is the earliest offset, infinity the high-water mark.');
  end if;
  if v_timestamp = '-infinity' then
    return _partition.earliest_offset;
  end if;
  return coalesce(
    (
      select min(l.partition_offset)
      from event_store.events e
      join event_store.event_log l using ("offset")
      where e.created_at >= v_timestamp and l.partition = v_partition and l.partition_offset >= _partition.earliest_offset
    ),
    _partition.high_water_mark
  );
end
$$;

comment on function event_store.offset_for_timestamp(int, timestamptz) is 'The first kept partition offset appended at or after a time; the high-water mark if none. MR005 malformed, MR013 unknown partition.';
