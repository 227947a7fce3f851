-- Exact, though created_at does not rise strictly along the log: created_at is the time of the append, the position
-- follows the commit. Infinities cost nothing; for other times the events are read from v_timestamp on.
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
as $$
begin
  perform event_store_private.require_partition(v_partition);
  if v_timestamp is null then
    perform event_store_private.refuse_request('v_timestamp is null', '-infinity is the earliest position, infinity the high-water mark.');
  end if;
  return (select found.position from event_store.offsets_for_timestamp(v_timestamp, array[v_partition]) found);
end
$$;

comment on function event_store.offset_for_timestamp(int, timestamptz) is
'Returns the first kept position of log partition v_partition with an event appended at or after v_timestamp; the '
'high-water mark if there is none. -infinity gives the earliest position, infinity the mark. MR005 v_timestamp is '
'null; MR013 unknown log partition.';
revoke all on function event_store.offset_for_timestamp(int, timestamptz) from public;
grant execute on function event_store.offset_for_timestamp(int, timestamptz)
to event_store_consumer, event_store_reader, event_store_owner;
