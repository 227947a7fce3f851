-- Example: select validate_offset_range(3, 0, 100)
create or replace function event_store.validate_offset_range(
  v_partition int,
  v_from_position bigint,
  v_to_position bigint
)
returns void
language plpgsql
stable
security definer
set search_path = event_store, pg_temp
as $$
declare
  _partition constant event_store.partitions := event_store_private.require_partition(v_partition);
  _fault text := case
    when v_from_position < 0 then format('%s is negative', v_from_position)
    when v_from_position < _partition.earliest_position then format('%s lies below the earliest position', v_from_position)
    when v_to_position < v_from_position then format('the range ends at %s before it begins at %s', v_to_position, v_from_position)
    when v_to_position > _partition.high_water_mark then format('%s lies beyond the high-water mark', v_to_position)
  end;
begin
  if v_from_position is null or v_to_position is null then
    perform event_store_private.refuse_request('an end of the range is null', 'A range has two ends.');
  end if;
  if _fault is not null then
    perform event_store_private.refuse_position(_partition, _fault);
  end if;
end
$$;

comment on function event_store.validate_offset_range(int, bigint, bigint) is
'Refuses a range of positions, from v_from_position up to before v_to_position, that log partition v_partition does '
'not hold whole. An empty range within it is fine. MR005 an end is null; MR013 unknown log partition; MR015 the log '
'does not hold the range.';
revoke all on function event_store.validate_offset_range(int, bigint, bigint) from public;
grant execute on function event_store.validate_offset_range(int, bigint, bigint)
to event_store_consumer, event_store_reader, event_store_owner;
