-- A stream that waits, is in flight or is parked has a lock: then the view has the events up to last_offset, and owes
-- the later ones that it wants. Without a lock it has the events below its checkpoint; an event without a position is
-- owed.
-- It reads the stream once for all views. If a stream has more than v_most events, owed means "at least". Rows are in
-- the order of view names.
-- Races: it takes no lock; a consumer may proceed meanwhile.
-- Example: select view, owed, parked_at, last_error from stream_views('order', 'o-1')
create or replace function event_store_platform.stream_views(
  v_decider text,
  v_decider_id text,
  v_most bigint default 100000
)
returns table (
  view text,
  mode text,
  enabled boolean,
  partition int,
  "position" bigint,
  owed bigint,
  first_owed bigint,
  last_offset bigint,
  in_flight bigint,
  attempts int,
  locked_until timestamptz,
  last_error text,
  parked_at timestamptz
)
language plpgsql
stable
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered nested once
#variable_conflict use_column
declare
  _partition int;
begin
  if v_decider is null or v_decider_id is null then
    perform event_store_private.refuse_request(
      format('v_decider is %s, v_decider_id %s', coalesce(quote_literal(v_decider), 'null'), coalesce(quote_literal(v_decider_id), 'null')),
      'Both are stated: they name a stream.'
    );
  end if;
  if coalesce(v_most, 0) <= 0 then
    perform event_store_private.refuse_request(format('v_most is %s', coalesce(v_most::text, 'null')), 'v_most must be at least 1.');
  end if;
  perform event_store_private.require_known_names(v_decider, null);
  _partition := event_store.stream_partition(v_decider_id, (select count(*) from event_store.log_partitions));
  return query
  with stream as materialized (
    select e.event, e."offset", l.position
    from (
      select x.event, x."offset" from event_store.events x
      where x.decider_id = v_decider_id and x.decider = v_decider
      order by x.version desc
      limit v_most
    ) e
    left join event_store.event_log l using ("offset")
  )
  select
    v.view, v.mode, v.enabled, _partition, c.position, pending.owed, pending.first_owed, k.last_offset, k.in_flight,
    coalesce(k.attempts, 0), k.locked_until, k.last_error, k.parked_at
  from event_store.views v
  cross join lateral event_store_private.checkpoint_of(v.view, _partition) c
  left join lateral event_store_private.newest_lock(v.view, v_decider_id, v_decider) k on true
  cross join lateral (
    select count(*) as owed, min(e."offset") as first_owed
    from stream e
    where event_store_private.wants(v.deciders, v.events, v_decider, e.event)
      and case
        when k.view is not null then e."offset" > k.last_offset
        else e.position is null or e.position >= c.position
      end
  ) pending
  where v.deciders is null or v_decider = any (v.deciders)
  order by v.view;
end
$$;

comment on function event_store_platform.stream_views(text, text, bigint) is
'Returns, for each view that wants v_decider, its progress in the stream (v_decider, v_decider_id): its checkpoint, how many '
'events it owes and the first of them, and the stream''s lock with attempts, last_error and parked_at if it has one. '
'The stream''s newest v_most events are counted. MR004 v_decider is not registered; MR005 an argument is null, or v_most '
'is not positive.';
revoke all on function event_store_platform.stream_views(text, text, bigint) from public;
grant execute on function event_store_platform.stream_views(text, text, bigint) to event_store_consumer, event_store_reader, event_store_owner;
