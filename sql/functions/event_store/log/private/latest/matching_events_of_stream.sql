-- By its index, from the newest back. Without a decider it searches for each registered one.
create or replace function event_store_private.matching_events_of_stream(
  v_limit bigint,
  v_decider text,
  v_decider_id text,
  v_event text,
  v_since timestamptz,
  v_before_offset bigint
)
returns setof event_store.versioned_events
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered unsorted once
declare
  _decider text;
  _before bigint := 9223372036854775807;
begin
  for _decider in
    select distinct d.decider from event_store.deciders d where v_decider is null or d.decider = v_decider
  loop
    if v_before_offset is not null then
      _before := event_store_private.version_from(_decider, v_decider_id, v_before_offset);
    end if;
    return query
    select e.*
    from event_store.versioned_events e
    where e.decider_id = v_decider_id and e.decider = _decider and e.version < _before
      and (v_event is null or e.event = v_event)
      and (v_since is null or e.created_at >= v_since)
    order by e.version desc
    limit v_limit;
  end loop;
end
$$;

comment on function event_store_private.matching_events_of_stream(bigint, text, text, text, timestamptz, bigint) is
'The newest events of a stream that fit the other filters: up to v_limit of each decider that has the id.';
