-- The log partition of a stream: the same for all deciders that share an id, and for good.
create or replace function event_store.stream_partition(
  v_decider_id text,
  v_partitions bigint
)
returns int
language sql
immutable
parallel safe
as $$
  -- % keeps the dividend's sign
  select (((hashtextextended(v_decider_id collate "C", 0) % v_partitions) + v_partitions) % v_partitions)::int
$$;

comment on function event_store.stream_partition(text, bigint) is
'Returns the log partition, from 0, of v_decider_id in a database with v_partitions of them: the same for all '
'deciders, and for good.';
revoke all on function event_store.stream_partition(text, bigint) from public;
grant execute on function event_store.stream_partition(text, bigint)
to event_store_writer, event_store_consumer, event_store_reader, event_store_owner;
