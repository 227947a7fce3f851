-- The first kept partition offset whose event was appended at or after a time; the high-water mark if there is none.
create or replace function event_store.offset_for_timestamp(
  v_partition int,
  v_timestamp timestamptz
)
returns bigint
language sql
stable
security definer
set search_path = event_store, pg_temp
as $$
  select case
    when v_timestamp = '-infinity' then p.earliest_offset
    else coalesce(
      (
        select min(l.partition_offset)
        from event_store.events e
        join event_store.event_log l using ("offset")
        where e.created_at >= v_timestamp and l.partition = v_partition
      ),
      p.high_water_mark
    )
  end
  from event_store.partitions p
  where p.partition = v_partition
$$;

comment on function event_store.offset_for_timestamp(int, timestamptz) is 'The first kept partition offset appended at or after a time; the high-water mark if none; null for an unknown partition.';
