-- The last event of one stream, found by the stream's head however long the stream is.
-- Example: select * from get_last_event('o-1', 'order')
create or replace function event_store.get_last_event(
  v_decider_id text,
  v_decider text
)
returns setof event_store.recorded_events
language sql
stable
security definer
set search_path = event_store, pg_temp
as $$
  select r.*
  from event_store.streams s
  join event_store.recorded_events r on r."offset" = s.last_offset
  where s.decider_id = v_decider_id and s.decider = v_decider
$$;

comment on function event_store.get_last_event(text, text) is
'Returns the last event of the stream (v_decider, v_decider_id); none for an unknown stream, and where that event was'
' purged.';
revoke all on function event_store.get_last_event(text, text) from public;
grant execute on function event_store.get_last_event(text, text)
to event_store_writer, event_store_consumer, event_store_reader, event_store_owner;

create or replace function event_store.get_last_event(
  v_decider_id uuid,
  v_decider text
)
returns setof event_store.recorded_events
language sql
stable
as $$
  select * from event_store.get_last_event(v_decider_id::text, v_decider)
$$;

comment on function event_store.get_last_event(uuid, text) is 'Does the same for a UUID as v_decider_id.';
revoke all on function event_store.get_last_event(uuid, text) from public;
grant execute on function event_store.get_last_event(uuid, text)
to event_store_writer, event_store_consumer, event_store_reader, event_store_owner;
