-- The marks of a log partition, or MR013.
create or replace function event_store_private.require_partition(
  v_partition int
)
returns event_store.partitions
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
declare
  _partition event_store.partitions;
begin
  select * into _partition from event_store.partitions where partition = v_partition;
  if not found then
    raise exception 'log partition does not exist'
      using
        errcode = 'MR013',
        detail = format('partition %s', coalesce(v_partition::text, 'null')),
        hint = (select format('Log partitions are 0 to %s.', max(partition)) from event_store.partitions);
  end if;
  return _partition;
end
$$;

comment on function event_store_private.require_partition(int) is
'The marks of a log partition. MR013 unknown partition.';
