-- By its index, from the newest back.
create or replace function event_store_private.matching_events_of_correlation(
  v_limit bigint,
  v_decider text,
  v_decider_id text,
  v_event text,
  v_since timestamptz,
  v_correlation_id text,
  v_before_offset bigint
)
returns setof event_store.versioned_events
language sql
stable
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered unsorted once
  select e.*
  from event_store.versioned_events e
  where e.metadata ->> 'correlation_id' = v_correlation_id and e."offset" < coalesce(v_before_offset, 9223372036854775807)
    and (v_decider is null or e.decider = v_decider)
    and (v_decider_id is null or e.decider_id = v_decider_id)
    and (v_event is null or e.event = v_event)
    and (v_since is null or e.created_at >= v_since)
  order by e."offset" desc
  limit v_limit
$$;

comment on function event_store_private.matching_events_of_correlation(bigint, text, text, text, timestamptz, text, bigint) is
'The newest events of a correlation that fit the other filters.';
