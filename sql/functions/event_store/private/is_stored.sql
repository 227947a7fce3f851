-- If so, it is a retry, possibly of an append with a lost reply. Metadata are not content: the same command may come by
-- another way when it is sent again.
create or replace function event_store_private.is_stored(
  v_event text,
  v_event_id uuid,
  v_event_version bigint,
  v_decider text,
  v_decider_id text,
  v_data jsonb,
  v_command_id uuid,
  v_previous_id uuid,
  v_final boolean,
  v_expected_version bigint default null
)
returns boolean
language plpgsql
volatile -- sees events that were committed while the caller waited
set search_path = event_store, pg_temp
as $$
declare
  _same boolean := (
    select
      (e.event, e.event_version, e.decider, e.decider_id, e.command_id, e.final)
      is not distinct from
      (v_event, v_event_version, v_decider, v_decider_id, v_command_id, v_final)
      and event_store_private.is_same_data(e.data, v_data)
      and case
        when v_expected_version is null then e.previous_id is not distinct from v_previous_id
        else v_expected_version in (e.version - 1, -1) and (v_previous_id is null or e.previous_id = v_previous_id)
      end
    from event_store.events e
    where e.event_id = v_event_id
  );
begin
  if not _same then
    perform event_store_private.refuse_reused_event_id(v_event_id);
  end if;
  return _same is not null;
end
$$;

comment on function event_store_private.is_stored(text, uuid, bigint, text, text, jsonb, uuid, uuid, boolean, bigint) is
'Whether this very event is stored; raises MR003 if its event_id belongs to another one.';
