-- A pass for each log partition would read all events after the time once for each.
-- Example: select partition, position from offsets_for_timestamp('2030-01-01 00:00:00+00')
create or replace function event_store.offsets_for_timestamp(
  v_timestamp timestamptz,
  v_partitions int[] default null
)
returns table (
  partition int,
  "position" bigint
)
language plpgsql
stable
security definer
set search_path = event_store, pg_temp
-- how many events come after the time decides whether the index on created_at helps
as $$
-- planner: each
#variable_conflict use_column
begin
  if v_timestamp is null or cardinality(v_partitions) = 0 then
    return;
  end if;
  if v_timestamp = '-infinity' then
    return query
    select p.partition, p.earliest_position
    from event_store.partitions p
    where v_partitions is null or p.partition = any (v_partitions);
    return;
  end if;
  return query
  select p.partition, coalesce(found.position, p.high_water_mark)
  from event_store.partitions p
  left join (
    select l.partition, min(l.position) as position
    from event_store.events e
    join event_store.event_log l using ("offset")
    join event_store.partitions kept on kept.partition = l.partition and l.position >= kept.earliest_position
    where e.created_at >= v_timestamp and (v_partitions is null or l.partition = any (v_partitions))
    group by l.partition
  ) found using (partition)
  where v_partitions is null or p.partition = any (v_partitions);
end
$$;

comment on function event_store.offsets_for_timestamp(timestamptz, int[]) is
'Does as offset_for_timestamp for the log partitions v_partitions (null: all) in one pass over the events. A '
'v_timestamp that is null has no rows.';
revoke all on function event_store.offsets_for_timestamp(timestamptz, int[]) from public;
grant execute on function event_store.offsets_for_timestamp(timestamptz, int[])
to event_store_consumer, event_store_reader, event_store_owner;
