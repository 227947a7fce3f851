-- Appends one event to its stream and returns it as stored.
-- previous_id is the event_id of the stream's last event, null for the first: of two writers with the same previous_id
-- exactly one succeeds, the other gets MR001. A retry with the same event_id and content returns the stored event.
-- Example: select * from append_event('order_placed', gen_random_uuid(), 'order', 'o-1', '{}', gen_random_uuid(), null)
create or replace function event_store.append_event(
  v_event text,
  v_event_id uuid,
  v_decider text,
  v_decider_id text,
  v_data jsonb,
  v_command_id uuid,
  v_previous_id uuid,
  v_event_version bigint default 1,
  v_final boolean default false
)
returns setof event_store.recorded_events
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
-- planned once a session, the guard of the insert too: to plan it for each event took half of the append's time
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
begin
  return query
  insert into event_store.events as e (
    event, event_id, event_version, decider, decider_id, data, command_id, previous_id, final, created_at
  )
  -- The guard sets the time. Told by this one that it is called from here, it waits for nobody who stores the same
  -- event_id: the insert does, and what it skips is looked at below.
  values (
    v_event, v_event_id, v_event_version, v_decider, v_decider_id, v_data, v_command_id, v_previous_id, v_final, '-infinity'
  )
  on conflict (event_id) do nothing
  returning
    e.event, e.event_id, e.event_version, e.decider, e.decider_id, e.data, e.command_id, e.previous_id, e.final,
    e.created_at, e."offset";
  if not found then
    -- the guard skipped a retry, or the event_id belongs to another stream; this tells which
    perform event_store_private.is_stored(
      v_event, v_event_id, v_event_version, v_decider, v_decider_id, v_data, v_command_id, v_previous_id, v_final
    );
    return query select * from event_store.recorded_events r where r.event_id = v_event_id;
  end if;
end
$$;

comment on function event_store.append_event(text, uuid, text, text, jsonb, uuid, uuid, bigint, boolean) is
'Appends one event to the stream (v_decider, v_decider_id) and returns it as stored. v_previous_id is the event_id of'
' the stream''s last event, null for the first: of two writers that state the same one, exactly one succeeds. A retry'
' with the same v_event_id and content returns the stored event. v_command_id is what caused it, v_final closes the '
'stream. MR001 another writer was first, or v_previous_id is not the stream''s last event; MR002 the stream is '
'closed; MR003 v_event_id is stored with other content; MR004 the event is not registered for its decider; MR005 an '
'argument is null, empty or too large; MR034 the decider belongs to a capture; MR046 it belongs to another role.';
revoke all on function event_store.append_event(text, uuid, text, text, jsonb, uuid, uuid, bigint, boolean) from public;
grant execute on function event_store.append_event(text, uuid, text, text, jsonb, uuid, uuid, bigint, boolean)
to event_store_writer, event_store_owner;

-- fstore-sql's signature for UUID identifiers
create or replace function event_store.append_event(
  v_event text,
  v_event_id uuid,
  v_decider text,
  v_decider_id uuid,
  v_data jsonb,
  v_command_id uuid,
  v_previous_id uuid,
  v_event_version bigint default 1,
  v_final boolean default false
)
returns setof event_store.recorded_events
language sql
volatile
as $$
  select * from event_store.append_event(
    v_event, v_event_id, v_decider, v_decider_id::text, v_data, v_command_id, v_previous_id, v_event_version, v_final
  )
$$;

comment on function event_store.append_event(text, uuid, text, uuid, jsonb, uuid, uuid, bigint, boolean) is
'Does the same for a UUID as v_decider_id.';
revoke all on function event_store.append_event(text, uuid, text, uuid, jsonb, uuid, uuid, bigint, boolean) from public;
grant execute on function event_store.append_event(text, uuid, text, uuid, jsonb, uuid, uuid, bigint, boolean)
to event_store_writer, event_store_owner;
