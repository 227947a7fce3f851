-- It begins where the log begins if v_from lies before that. A position that is missing before the first one is a
-- fault, too.
-- Races: all of it is as of one moment; a purge between two calls is no fault.
-- Example: select looked, reached, found, faults from verify_positions(3, 0, 50000)
create or replace function event_store_platform.verify_positions(
  v_partition int,
  v_from bigint,
  v_limit bigint
)
returns table (
  looked bigint,
  reached bigint,
  found bigint,
  faults jsonb
)
language plpgsql
stable
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered nested
begin
  if coalesce(v_limit, 0) <= 0 or v_from is null then
    perform event_store_private.refuse_request(
      format('v_from is %s, v_limit is %s', coalesce(v_from::text, 'null'), coalesce(v_limit::text, 'null')),
      'State a position, and look at one or more.'
    );
  end if;
  perform event_store_private.require_partition(v_partition);
  return query
  with positions as materialized (
    select l.position, l."offset", lag(l.position, 1, greatest(v_from, p.earliest_position) - 1) over (order by l.position) as before
    from event_store.log_partitions p
    join event_store.event_log l on l.partition = p.partition
    where p.partition = v_partition and l.position >= greatest(v_from, p.earliest_position)
    order by l.position
    limit v_limit
  ), wrong as materialized (
    select
      n.position,
      'positions_missing' as kind,
      format('log partition %s, positions %s to %s', v_partition, n.before + 1, n.position - 1) as place
    from positions n
    where n.before <> n.position - 1
    union all
    select n.position, 'event_missing', format('log partition %s, position %s, offset %s', v_partition, n.position, n."offset")
    from positions n
    where not exists (select from event_store.events e where e."offset" = n."offset")
  )
  select
    (select count(*) from positions),
    (select max(n.position) from positions n),
    (select count(*) from wrong),
    (
      select coalesce(jsonb_agg(jsonb_build_array(w.kind, w.place) order by w.position, w.kind), '[]')
      from (select * from wrong order by position, kind limit 20) w
    );
end
$$;

comment on function event_store_platform.verify_positions(int, bigint, bigint) is
'Checks v_limit positions of log partition v_partition from v_from on: whether they are dense, and have their events. '
'Returns how many it checked (none at the end), up to which, how many faults it found, and of up to twenty the kind and '
'the place. MR005 v_from is null, or v_limit is not positive; MR013 unknown log partition.';
revoke all on function event_store_platform.verify_positions(int, bigint, bigint) from public;
grant execute on function event_store_platform.verify_positions(int, bigint, bigint) to event_store_reader, event_store_owner;
