-- In Millrace only a seek leads there. If there was none, tables were restored one by one or written from outside.
-- Races: none; it takes no lock, and sees one moment.
-- Example: select view, partition, position, high_water_mark from views_beyond_log()
create or replace function event_store_platform.views_beyond_log()
returns table (
  view text,
  partition int,
  "position" bigint,
  high_water_mark bigint
)
language sql
stable
security definer
set search_path = event_store, pg_temp
as $$
-- planner: uncompiled
  select v.view, p.partition, c.position, p.high_water_mark
  from event_store.views v
  cross join event_store.partitions p
  cross join lateral event_store_private.checkpoint_of(v.view, p.partition) c
  where c.position > p.high_water_mark
  order by v.view, p.partition
$$;

comment on function event_store_platform.views_beyond_log() is
'Returns the checkpoints that stand beyond the end of their log partition: such a view passes over the events that get '
'these positions, unless seek_view let it wait there.';
revoke all on function event_store_platform.views_beyond_log() from public;
grant execute on function event_store_platform.views_beyond_log() to event_store_consumer, event_store_reader, event_store_owner;
