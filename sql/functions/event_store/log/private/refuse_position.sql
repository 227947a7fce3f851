-- Raises that a position is out of range, and states the range.
create or replace function event_store_private.refuse_position(
  v_partition event_store.partitions,
  v_fault text
)
returns void
language plpgsql
immutable
set search_path = event_store, pg_temp
as $$
begin
  raise exception 'position is out of range'
    using
      errcode = 'MR015',
      detail = format(
        'log partition %s: %s; earliest position %s, high-water mark %s',
        v_partition.partition, v_fault, v_partition.earliest_position, v_partition.high_water_mark
      ),
      hint = 'available_offset_range() returns what each log partition holds.';
end
$$;

comment on function event_store_private.refuse_position(event_store.partitions, text) is
'Raises MR015 and says what the log partition holds.';
