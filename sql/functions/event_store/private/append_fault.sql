-- The change is fit by itself. But another event may have closed its stream or have its event_id, or its decider may
-- not be registered.
create or replace function event_store_private.append_fault(
  v_action text,
  v_event_id uuid,
  v_decider text,
  v_decider_id text,
  v_data jsonb,
  v_command_id uuid
)
returns text
language sql
stable
as $$
  select case
    when (select h.final from event_store_private.head_of_stream(v_decider_id, v_decider) h) then 'its stream is closed by a final event'
    when not exists (
      select from event_store.deciders d where d.decider = v_decider and d.event = v_action and d.event_version = 1
    ) then format('decider %s has no event %s', v_decider, v_action)
    when exists (
      select from event_store.events e
      where e.event_id = v_event_id
        and (e.event, e.decider, e.decider_id, e.data, e.command_id)
          is distinct from (v_action, v_decider, v_decider_id, v_data, v_command_id)
    ) then format('event_id %s is stored with other content', v_event_id)
  end
$$;

comment on function event_store_private.append_fault(text, uuid, text, text, jsonb, uuid) is
'Why the store would not append a change, as a sentence; null if nothing.';
