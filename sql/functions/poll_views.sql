-- One row per view with what a poller needs to decide whether to start a consumer, in one cheap call: `lag` is a
-- subtraction per log partition, no event is read. In rows mode a stream that holds a lock counts as one. `consumers` are
-- the sessions that attached themselves (attach_consumer) and live.
create or replace function event_store.poll_views()
returns table (
  view text,
  mode text,
  enabled boolean,
  pooling_delay_s bigint,
  edge_function_url text,
  lag bigint,
  consumers bigint
)
language sql
volatile
as $$
  select
    v.view,
    v.mode,
    v.enabled,
    v.pooling_delay_s,
    v.edge_function_url,
    coalesce(c.lag, 0)::bigint + (
      select count(*) from event_store.stream_locks k
      where k.view = v.view and k.parked_at is null and k.locked_until <= event_store.clock()
    ),
    coalesce(a.consumers, 0)
  from event_store.views v
  left join (
    select c.view, sum(greatest(p.high_water_mark - c.position, 0)) as lag
    from event_store.checkpoints c
    join event_store.partitions p using (partition)
    group by c.view
  ) c using (view)
  left join (
    -- pg_locks shows keys as oids, which have no sign
    select l.objid, count(*) as consumers
    from pg_locks l
    where l.locktype = 'advisory'
      and l.database = (select d.oid from pg_database d where d.datname = current_database())
      and l.classid = event_store.consumer_class()::bit(32)::bigint::oid
      and l.objsubid = 2
      and l.granted
    group by l.objid
  ) a on a.objid = hashtext(v.view)::bit(32)::bigint::oid
  order by v.view
$$;

comment on function event_store.poll_views() is 'For every view: is it enabled, how far is it behind, how many live consumers it has.';
