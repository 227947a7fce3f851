-- In the other log partitions, a reader need not check each event for a lock.
-- Example: select * from locked_partitions('invoices', '{3,4}', '{17,18}')
create or replace function event_store_platform.locked_partitions(
  v_view text,
  v_partition int[],
  v_lease_token bigint[]
)
returns table (
  partition int,
  retries bigint
)
language plpgsql
stable
security definer
set search_path = event_store, pg_temp
as $$
#variable_conflict use_column
begin
  perform event_store_private.own_view(v_view, 'bulk');
  return query
  select k.partition, count(*) filter (where k.lease_token = b.lease_token and k.in_flight is not null and k.lease_pid is null)
  from event_store.stream_locks k
  join unnest(v_partition, v_lease_token) b(partition, lease_token) on b.partition = k.partition
  where k.view = v_view
  group by k.partition
  order by k.partition;
end
$$;

comment on function event_store_platform.locked_partitions(text, int[], bigint[]) is
'Returns which of the leased log partitions v_partition have streams with a lock, and how many streams their lease '
'(v_lease_token) retries. In all others, read_batch would return the plain range of the log. MR010 unknown view; '
'MR012 a rows view.';
revoke all on function event_store_platform.locked_partitions(text, int[], bigint[]) from public;
grant execute on function event_store_platform.locked_partitions(text, int[], bigint[])
to event_store_consumer, event_store_owner;
