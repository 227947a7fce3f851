-- What each view has of one stream, and what it still owes: a row for each view that wants the stream's decider, by name.
-- A stream that waits, is in flight or is parked has a lock: then the view has the events up to last_offset, and owes the
-- later ones that it wants. Without a lock it has what lies below its checkpoint; an event without a position is owed.
-- It reads the whole stream once for each view.
-- Races: it takes no lock; a consumer may go on meanwhile.
-- Example: select view, owed, parked_at, last_error from stream_views('order', 'o-1')
create or replace function event_store.stream_views(
  v_decider text,
  v_decider_id text
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
-- by index, whatever statistics say
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
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
  perform event_store_private.require_known_names(v_decider, null);
  _partition := event_store.stream_partition(v_decider_id, (select count(*) from event_store.log_partitions));
  return query
  select
    v.view, v.mode, v.enabled, _partition, c.position, pending.owed, pending.first_owed, k.last_offset, k.in_flight,
    coalesce(k.attempts, 0), k.locked_until, k.last_error, k.parked_at
  from event_store.views v
  cross join lateral event_store_private.checkpoint_of(v.view, _partition) c
  left join event_store.stream_locks k on k.view = v.view and k.decider_id = v_decider_id and k.decider = v_decider
  cross join lateral (
    select count(*) as owed, min(e."offset") as first_owed
    from event_store.events e
    left join event_store.event_log l using ("offset")
    where e.decider_id = v_decider_id and e.decider = v_decider
      and event_store_private.wants(v.deciders, v.events, e.decider, e.event)
      and case
        when k.view is not null then e."offset" > k.last_offset
        else l.position is null or l.position >= c.position
      end
  ) pending
  where v.deciders is null or v_decider = any (v.deciders)
  order by v.view;
end
$$;

comment on function event_store.stream_views(text, text) is
'Returns, for each view that wants v_decider, what it has of the stream (v_decider, v_decider_id): its checkpoint, how many '
'events it owes and the first of them, and the stream''s lock with attempts, last_error and parked_at if it has one. '
'MR004 v_decider is not registered; MR005 an argument is null.';
revoke all on function event_store.stream_views(text, text) from public;
grant execute on function event_store.stream_views(text, text) to event_store_consumer, event_store_reader, event_store_owner;
