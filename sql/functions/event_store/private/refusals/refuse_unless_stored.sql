-- append_event calls this when it has stored nothing.
create or replace function event_store_private.refuse_unless_stored(
  v_event text,
  v_event_id uuid,
  v_event_version bigint,
  v_decider text,
  v_decider_id text,
  v_data jsonb,
  v_command_id uuid,
  v_previous_id uuid,
  v_final boolean,
  v_expected_version bigint,
  v_metadata jsonb
)
returns boolean
language plpgsql
volatile -- sees events that were committed while the caller waited
set search_path = event_store, pg_temp
as $$
declare
  _meets constant boolean := event_store_private.require_fit_event(
    v_event, v_event_id, v_event_version, v_decider, v_decider_id, v_data, v_command_id, v_final, v_expected_version, v_metadata
  );
begin
  if not event_store_private.is_stored(
    v_event, v_event_id, v_event_version, v_decider, v_decider_id, v_data, v_command_id, v_previous_id, v_final, v_expected_version
  ) then
    if not _meets then
      perform event_store_private.refuse_data(v_decider, v_event, v_event_version, v_data);
    end if;
    if v_expected_version = -1 and v_previous_id is null
      and not coalesce((select h.final from event_store_private.head_of_stream(v_decider_id, v_decider) h), false)
    then
      return false;
    end if;
    perform event_store_private.refuse_append(v_decider, v_decider_id, v_event_id, v_previous_id, v_expected_version);
  end if;
  return true;
end
$$;

comment on function event_store_private.refuse_unless_stored(
  text, uuid, bigint, text, text, jsonb, uuid, uuid, boolean, bigint, jsonb
) is 'Raises why an event was not stored: MR001 to MR005, MR034, MR046, MR050, MR055. Returns true where it is a retry of a '
'stored event, false where another writer took the end of its stream and it may take the next one.';
