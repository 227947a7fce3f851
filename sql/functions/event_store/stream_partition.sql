-- It has no search_path of its own, which would cost each event that is sequenced, and calls no private function, as
-- callers may not.
create or replace function event_store.stream_partition(
  v_decider_id text,
  v_partitions bigint
)
returns int
language plpgsql
immutable
parallel safe
as $$
begin
  if v_partitions not between 1 and 2147483647 then
    raise exception 'request is malformed'
      using
        errcode = 'MR005',
        detail = format('v_partitions is %s', v_partitions),
        hint = 'v_partitions is from 1 to 2147483647.';
  end if;
  -- % keeps the dividend's sign
  return ((hashtextextended(v_decider_id collate "C", 0) % v_partitions) + v_partitions) % v_partitions;
end
$$;

comment on function event_store.stream_partition(text, bigint) is
'Returns the log partition, from 0, of v_decider_id in a database with v_partitions of them: the same for all '
'deciders, and for good. MR005 v_partitions is not from 1 to 2147483647.';
revoke all on function event_store.stream_partition(text, bigint) from public;
grant execute on function event_store.stream_partition(text, bigint)
to event_store_writer, event_store_consumer, event_store_reader, event_store_owner;
