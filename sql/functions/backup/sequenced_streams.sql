-- The heads of all streams as the log has them: without events that are committed and have no position yet. For a
-- backup, which ends at the high-water marks: call it in the snapshot that reads those.
create or replace function event_store.sequenced_streams()
returns table (
  decider text,
  decider_id text,
  last_event_id uuid,
  last_offset bigint,
  version bigint,
  final boolean
)
language sql
stable
security definer
set search_path = event_store, pg_temp
as $$
  with late as materialized (
    -- as sequence_events finds them: without a look at those that have theirs
    select distinct on (e.decider_id, e.decider)
      e.decider, e.decider_id, e."offset", e.previous_id, count(*) over (partition by e.decider_id, e.decider) as events
    from event_store.events e
    cross join event_store.sequencer q
    where (
        e.transaction_id >= pg_snapshot_xmax(q.snapshot)
        or e.transaction_id = any (array(select pg_snapshot_xip(q.snapshot)))
      )
      and not exists (select from event_store.event_log l where l."offset" = e."offset")
    order by e.decider_id, e.decider, e."offset"
  )
  select
    s.decider,
    s.decider_id,
    coalesce(l.previous_id, s.last_event_id),
    case
      when l."offset" is null then s.last_offset
      -- where the event before it was purged, the greatest offset that it can have had
      else coalesce(
        (
          select max(e."offset") from event_store.events e
          where e.decider_id = s.decider_id and e.decider = s.decider and e."offset" < l."offset"
        ),
        l."offset" - 1
      )
    end,
    s.version - coalesce(l.events, 0),
    s.final and l."offset" is null
  from event_store.streams s
  left join late l on l.decider_id = s.decider_id and l.decider = s.decider
  where l."offset" is null or l.previous_id is not null
$$;

comment on function event_store.sequenced_streams() is
'Returns the heads of all streams at the high-water marks of the log, without events that have no position yet. For a'
' backup: call it in the snapshot that reads the marks.';
revoke all on function event_store.sequenced_streams() from public;
grant execute on function event_store.sequenced_streams() to event_store_owner;
