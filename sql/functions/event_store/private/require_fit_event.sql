-- No stream could take an event that is malformed, of a captured table, or not registered for its decider. If this
-- returns false, an event that is not stored yet is refused.
create or replace function event_store_private.require_fit_event(
  v_event text,
  v_event_id uuid,
  v_event_version bigint,
  v_decider text,
  v_decider_id text,
  v_data jsonb,
  v_command_id uuid,
  v_final boolean,
  v_expected_version bigint,
  v_metadata jsonb
)
returns boolean
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
declare
  _fault text := event_store_private.event_fault(
    v_event, v_event_id, v_event_version, v_decider, v_decider_id, v_data, v_command_id, v_final, nullif(v_expected_version, -1),
    v_metadata
  );
  _meets boolean;
begin
  if _fault is null and event_store_private.is_upper_uuid(v_decider_id) then
    _fault := format('decider_id %s is a UUID in upper case; write it in lower case', v_decider_id);
  end if;
  if _fault is not null then
    raise exception 'event is malformed'
      using errcode = 'MR005', detail = _fault, hint = 'Correct the event; nothing was stored.';
  end if;
  -- as in append_event
  select event_store_private.meets(d.accepts, d.seals, v_data) into _meets
  from event_store.deciders d
  where d.decider = v_decider and d.event = v_event and d.event_version = v_event_version
    and (d.owner is null or event_store_private.may_append(d.decider, d.owner));
  if not found then
    if exists (select from event_store.captured_tables c where c.decider = v_decider) then
      perform event_store_private.refuse_captured_decider(v_decider);
    end if;
    perform event_store_private.refuse_unregistered_event(v_decider, v_event, v_event_version);
  end if;
  return _meets;
end
$$;

comment on function event_store_private.require_fit_event(text, uuid, bigint, text, text, jsonb, uuid, boolean, bigint, jsonb) is
'Refuses an event that no stream could take: MR004, MR005, MR034, MR046. Returns whether its data meet its schema.';
