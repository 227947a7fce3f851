-- From the newest back, or those since a time by the index on created_at.
create or replace function event_store_private.matching_events_of_log(
  v_limit bigint,
  v_decider text,
  v_event text,
  v_since timestamptz,
  v_before_offset bigint
)
returns setof event_store.versioned_events
language plpgsql
stable
set search_path = event_store, pg_temp
-- how many events come after the time, and how many fit, decides which index helps
set enable_bitmapscan = on
as $$
-- planner: indexed each
begin
  return query
  select e.*
  from event_store.versioned_events e
  where e."offset" < coalesce(v_before_offset, 9223372036854775807)
    and (v_decider is null or e.decider = v_decider)
    and (v_event is null or e.event = v_event)
    and (v_since is null or e.created_at >= v_since)
  order by e."offset" desc
  limit v_limit;
end
$$;

comment on function event_store_private.matching_events_of_log(bigint, text, text, timestamptz, bigint) is
'The newest events of all streams that fit the filters.';
