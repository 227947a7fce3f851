-- Example: select * from available_offset_range(3)
create or replace function event_store.available_offset_range(
  v_partition int default null
)
returns table (
  partition int,
  earliest_position bigint,
  high_water_mark bigint,
  events bigint
)
language plpgsql
stable
security definer
set search_path = event_store, pg_temp
as $$
#variable_conflict use_column
begin
  if v_partition is not null then
    perform event_store_private.require_partition(v_partition);
  end if;
  return query
  select p.partition, p.earliest_position, p.high_water_mark, p.high_water_mark - p.earliest_position
  from event_store.partitions p
  where v_partition is null or p.partition = v_partition
  order by p.partition;
end
$$;

comment on function event_store.available_offset_range(int) is
'Returns what each log partition holds, or only v_partition: the positions from earliest_position up to before '
'high_water_mark. MR013 unknown log partition.';
revoke all on function event_store.available_offset_range(int) from public;
grant execute on function event_store.available_offset_range(int)
to event_store_consumer, event_store_reader, event_store_owner;
