-- A reader of many events of few kinds reads event_upcasts once and calls moved.
-- Races: an upcast that is registered meanwhile counts from the next statement on.
-- Example: select event, upcast(decider, event, event_version, data) as data from read_stream('order', 'o-1')
create or replace function event_store.upcast(
  v_decider text,
  v_event text,
  v_event_version bigint,
  v_data jsonb
)
returns jsonb
language plpgsql
stable
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed once
declare
  _upcasts jsonb;
begin
  select jsonb_agg(jsonb_build_object('to_version', u.to_version, 'moves', u.moves) order by u.to_version) into _upcasts
  from event_store.event_upcasts u
  where u.decider = v_decider and u.event = v_event and u.to_version > v_event_version;
  return case when _upcasts is null then v_data else event_store_platform.moved(v_data, v_event_version, _upcasts) end;
end
$$;

comment on function event_store.upcast(text, text, bigint, jsonb) is
'Returns data of version v_event_version of an event in the newest shape: by the registered upcasts to versions above. Data '
'stay as they are where there is none.';
revoke all on function event_store.upcast(text, text, bigint, jsonb) from public;
grant execute on function event_store.upcast(text, text, bigint, jsonb)
to event_store_writer, event_store_consumer, event_store_reader, event_store_owner;
