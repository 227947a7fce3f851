-- Positions are dense: a gap is a fault of the store or of its disk.
-- Example: select log_gaps(10000)
create or replace function event_store_platform.log_gaps(
  v_recent bigint default 10000
)
returns setof int
language plpgsql
stable
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed
begin
  if coalesce(v_recent, 0) <= 0 then
    perform event_store_private.refuse_request(
      format('v_recent is %s', coalesce(v_recent::text, 'null')), 'v_recent must be at least 1.'
    );
  end if;
  return query
  select p.partition
  from event_store.partitions p
  cross join lateral (
    select count(*) as positions
    from event_store.event_log l
    where l.partition = p.partition and l.position >= greatest(p.earliest_position, p.high_water_mark - v_recent)
  ) newest
  where newest.positions <> least(p.high_water_mark - p.earliest_position, v_recent)
  order by p.partition;
end
$$;

comment on function event_store_platform.log_gaps(bigint) is
'Returns the log partitions in which one of the newest v_recent positions is missing: none unless something is '
'broken. MR005 v_recent is not positive.';
revoke all on function event_store_platform.log_gaps(bigint) from public;
grant execute on function event_store_platform.log_gaps(bigint) to event_store_consumer, event_store_reader, event_store_owner;
