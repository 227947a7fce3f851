-- The change's own fault comes first, then the answer of event_fault.
create or replace function event_store_private.change_fault(
  v_fault text,
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
    when v_fault is not null then v_fault
    else event_store_private.event_fault(v_action, v_event_id, 1, v_decider, v_decider_id, v_data, v_command_id, false)
  end
$$;

comment on function event_store_private.change_fault(text, text, uuid, text, text, jsonb, uuid) is
'Why a change cannot become an event, as a sentence; null if it can.';
