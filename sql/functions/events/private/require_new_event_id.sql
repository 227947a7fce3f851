-- Waits for other transactions that are storing the same event_id, as the insert that follows will, and refuses the event
-- if one of them did: for a bare INSERT that says `on conflict do nothing` would only skip it, after its stream's row
-- moved. The event is stored and taken back: nothing else waits for an index entry that nobody sees yet.
-- Called by guard_append, with the event as it will be stored.
create or replace function event_store_private.require_new_event_id(
  v_event event_store.events
)
returns void
language plpgsql
volatile
security definer -- for the guard, which else would be called again
set search_path = event_store, pg_temp
as $$
begin
  perform set_config('event_store.streams_advanced', 'on', true);
  insert into event_store.events select (v_event).*;
  raise exception using errcode = 'MR003'; -- takes it back, with the setting
exception
  when sqlstate 'MR003' then
    null;
  when unique_violation then
    perform event_store_private.is_stored(
      v_event.event, v_event.event_id, v_event.event_version, v_event.decider, v_event.decider_id, v_event.data,
      v_event.command_id, v_event.previous_id, v_event.final
    );
    raise exception 'an event_id is stored by a transaction that this one cannot see'
      using errcode = 'serialization_failure', hint = 'Repeat the transaction.';
end
$$;

comment on function event_store_private.require_new_event_id(event_store.events) is
'Waits for whoever is storing the same event_id, and refuses the event if it was stored (MR003).';
