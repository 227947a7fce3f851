-- Events are stored in the order of their streams, so that batches over the same streams wait for each other and never
-- deadlock.
-- Example: select * from append_events('[{"decider": "order", "decider_id": "o-1", "event": "placed", "event_id": "…",
--   "command_id": "…", "data": {}}]')
create or replace function event_store.append_events(
  v_events jsonb
)
returns table (
  event_id uuid,
  previous_id uuid,
  "offset" bigint,
  version bigint,
  appended boolean
)
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
#variable_conflict use_column
begin
  return query select a.* from event_store_private.append_batch(event_store_private.parse_events(v_events)) a;
end
$$;

comment on function event_store.append_events(jsonb) is
'Appends a batch over any streams, all or nothing, and returns one row per event in the order given. v_events is a '
'JSON array of {decider, decider_id, event, event_id, data, command_id, previous_id, event_version, final, '
'expected_version, metadata}. An event without previous_id and expected_version goes to the end of its stream; one that '
'states previous_id, also null, or its stream''s version before it must meet exactly that. An event '
'that was stored before has appended = false. An unknown key is refused. MR001 to MR005, MR034, MR046, MR050 and MR055 as append_event.';
revoke all on function event_store.append_events(jsonb) from public;
grant execute on function event_store.append_events(jsonb) to event_store_writer, event_store_owner;
