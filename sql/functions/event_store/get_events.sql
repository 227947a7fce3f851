-- Example: select * from get_events('o-1', 'order')
create or replace function event_store.get_events(
  v_decider_id text,
  v_decider text
)
returns setof event_store.recorded_events
language plpgsql
stable
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed once
begin
  return query
  select
    e.event, e.event_id, e.event_version, e.decider, e.decider_id, e.data, e.command_id, e.previous_id, e.final, e.created_at, e."offset"
  from event_store.versioned_events e
  where e.decider_id = v_decider_id and e.decider = v_decider
  order by e.version;
end
$$;

comment on function event_store.get_events(text, text) is
'Returns the kept events of the stream (v_decider, v_decider_id) in order; none for an unknown stream.';
revoke all on function event_store.get_events(text, text) from public;
grant execute on function event_store.get_events(text, text)
to event_store_writer, event_store_consumer, event_store_reader, event_store_owner;
