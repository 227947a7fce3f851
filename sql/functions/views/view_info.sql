-- One row per view (or one), without reading an event: how far it is behind (positions), what its streams do, and who
-- consumes it. in_flight: delivered and not answered; waiting: free, or before their next retry; dead_letters: parked.
-- Example: select view, lag, dead_letters from view_info()
create or replace function event_store.view_info(
  v_view text default null
)
returns table (
  view text,
  mode text,
  enabled boolean,
  lag bigint,
  in_flight bigint,
  waiting bigint,
  dead_letters bigint,
  leased_partitions bigint,
  consumers bigint
)
language plpgsql
volatile -- the clock is
security definer
set search_path = event_store, pg_temp
-- By index, whatever statistics say: they may be from when the tables were empty.
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  _now constant timestamptz := event_store_private.clock();
begin
  if v_view is not null then
    perform event_store_private.known_view(v_view);
  end if;
  return query
  select
    v.view, v.mode, v.enabled, coalesce(c.lag, 0)::bigint, coalesce(k.in_flight, 0), coalesce(k.waiting, 0),
    coalesce(k.dead_letters, 0), coalesce(c.leased, 0), coalesce(a.consumers, 0)
  from event_store.views v
  left join (
    select
      w.view,
      sum(greatest(p.high_water_mark - c.position, 0)) as lag,
      count(*) filter (where c.leased_until > _now) as leased
    from (select q.partition, q.high_water_mark from event_store.partitions q offset 0) p
    cross join event_store.views w
    cross join lateral event_store_private.checkpoint_of(w.view, p.partition) c
    where v_view is null or w.view = v_view
    group by w.view
  ) c using (view)
  left join (
    select
      k.view,
      count(*) filter (where k.in_flight is not null and k.locked_until > _now) as in_flight,
      count(*) filter (where k.parked_at is null and not k.caught_up and (k.in_flight is null or k.locked_until <= _now)) as waiting,
      count(k.parked_at) as dead_letters
    from event_store.stream_locks k
    where v_view is null or k.view = v_view
    group by k.view
  ) k using (view)
  left join event_store_private.attached_consumers() a using (view)
  where v_view is null or v.view = v_view
  order by v.view;
end
$$;

comment on function event_store.view_info(text) is
'Returns one row per view, or only v_view: how many positions it is behind (lag), its streams in flight, waiting and '
'parked, its leased log partitions, its live consumers. Reads no event. MR010 unknown view.';
revoke all on function event_store.view_info(text) from public;
grant execute on function event_store.view_info(text) to event_store_consumer, event_store_reader, event_store_owner;
