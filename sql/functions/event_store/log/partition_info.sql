-- bytes is a log partition's share of the tables. Two of its events are read.
create or replace function event_store.partition_info()
returns table (
  partition int,
  earliest_position bigint,
  archived_position bigint,
  high_water_mark bigint,
  events bigint,
  bytes bigint,
  last_activity timestamptz,
  unarchived_since timestamptz,
  active_views bigint
)
language sql
volatile -- as the clock is
security definer
set search_path = event_store, pg_temp
-- without statistics the plan looks costly, and compiling it took a hundred times as long as running it
as $$
-- planner: uncompiled
  with store as (
    select
      pg_total_relation_size('event_store.events') + pg_total_relation_size('event_store.event_log') as bytes,
      nullif(sum(high_water_mark - earliest_position), 0) as events
    from event_store.partitions
  )
  select
    p.partition,
    p.earliest_position,
    p.archived_position,
    p.high_water_mark,
    p.high_water_mark - p.earliest_position,
    coalesce(s.bytes * (p.high_water_mark - p.earliest_position) / s.events, 0)::bigint,
    e.created_at,
    u.created_at,
    (
      select count(*)
      from event_store.views v
      where exists (
          select from event_store_private.checkpoint_of(v.view, p.partition) c
          where c.leased_until > (select event_store_private.clock())
        )
        or exists (
          select from event_store.stream_locks k
          where k.view = v.view and k.partition = p.partition and k.in_flight is not null and k.locked_until > (select event_store_private.clock())
        )
    )
  from event_store.partitions p
  cross join store s
  left join event_store.event_log l on l.partition = p.partition and l.position = p.high_water_mark - 1
  left join event_store.events e using ("offset")
  left join lateral (
    select f.created_at
    from event_store.event_log g
    join event_store.events f using ("offset")
    where g.partition = p.partition and g.position = p.archived_position
  ) u on true
  order by p.partition
$$;

comment on function event_store.partition_info() is
'Returns one row per log partition: its marks, how many events it holds and about how many bytes, when the last one '
'was appended, when the first one that is not archived was (unarchived_since, null if all are), and how many views have something of it leased or in flight.';
revoke all on function event_store.partition_info() from public;
grant execute on function event_store.partition_info() to event_store_consumer, event_store_reader, event_store_owner;
