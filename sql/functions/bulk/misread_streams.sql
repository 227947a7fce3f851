-- The streams of events that a build of leased ranges misread: each with the first of these events, how many there are,
-- whether it has a lock, and whether an event that the view wants follows the first one up to the end of its range (v_until)
-- and was not misread. What only the archive has is not found.
-- Example: select * from misread_streams('spend', '{3}', '{4711}', '{3}', '{9000}')
create or replace function event_store_platform.misread_streams(
  v_view text,
  v_partitions int[],
  v_offsets bigint[],
  v_leased int[],
  v_until bigint[]
)
returns table (
  partition int,
  decider text,
  decider_id text,
  "offset" bigint,
  events bigint,
  is_locked boolean,
  is_followed boolean
)
language plpgsql
stable
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered nested each
#variable_conflict use_column
declare
  _view constant event_store.views := event_store_private.own_view(v_view, 'bulk');
begin
  return query
  select
    s.partition, s.decider, s.decider_id, s.first, s.events,
    exists (select from event_store_private.newest_lock(v_view, s.decider_id, s.decider)),
    s.events < (
      select count(*)
      from event_store.events e
      join event_store.event_log l using ("offset")
      where e.decider_id = s.decider_id and e.decider = s.decider and e.version >= s.version
        and event_store_private.wants(_view.deciders, _view.events, e.decider, e.event)
        and l.position < s.until
    )
  from (
    select m.partition, r.until, e.decider, e.decider_id, min(e."offset") as first, min(e.version) as version, count(*) as events
    from unnest(v_partitions, v_offsets) m(partition, "offset")
    join unnest(v_leased, v_until) r(partition, until) using (partition)
    join event_store.events e using ("offset")
    group by m.partition, r.until, e.decider, e.decider_id
  ) s;
end
$$;

comment on function event_store_platform.misread_streams(text, int[], bigint[], int[], bigint[]) is
'Returns the streams of the events at v_offsets of log partitions v_partitions, which a build misread under leases of '
'v_leased up to v_until: each with its first misread event, how many it has, whether it has a lock, and whether others '
'follow the first in the lease. MR010 unknown view; MR012 a rows view; MR041 another role''s view.';
revoke all on function event_store_platform.misread_streams(text, int[], bigint[], int[], bigint[]) from public;
grant execute on function event_store_platform.misread_streams(text, int[], bigint[], int[], bigint[])
to event_store_consumer, event_store_owner;
