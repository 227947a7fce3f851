-- Deletes events below the low-water mark of a log partition (raise_low_water_mark), at most v_limit of them, the oldest first,
-- and returns how many: call it again until it returns 0. Killed anywhere, nothing is half done: nobody reads below the mark.
-- Example: select purge_events(3)
create or replace function event_store.purge_events(
  v_partition int,
  v_limit bigint default 100000
)
returns bigint
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _purged bigint;
begin
  if coalesce(v_limit, 0) <= 0 then
    raise exception 'request is malformed'
      using errcode = 'MR005', detail = format('v_limit is %s', coalesce(v_limit::text, 'null')), hint = 'v_limit must be at least 1.';
  end if;
  perform event_store.require_partition(v_partition);
  perform set_config('event_store.purging', 'on', true);
  with oldest as materialized (
    select l.partition_offset
    from event_store.event_log l
    where l.partition = v_partition
      and l.partition_offset < (select p.earliest_offset from event_store.partitions p where p.partition = v_partition)
    order by l.partition_offset
    limit v_limit
    for update skip locked -- two purges share the work
  ), unlisted as (
    delete from event_store.event_log l
    using oldest
    where l.partition = v_partition and l.partition_offset = oldest.partition_offset
    returning l."offset"
  ), purged as (
    delete from event_store.events e using unlisted where e."offset" = unlisted."offset" returning 1
  )
  select count(*) into _purged from purged;
  perform set_config('event_store.purging', 'off', true);
  return _purged;
end
$$;

comment on function event_store.purge_events(int, bigint) is 'Deletes events below the low-water mark of a log partition; returns how many. MR005, MR013.';
