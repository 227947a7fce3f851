-- The event is stored with the version after the stream's last one, which only one event can take (events_stream_key),
-- and an offset that is drawn after the last event was seen. So offsets follow versions.
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
  v_final boolean default false,
  v_expected_version bigint default null,
  v_metadata jsonb default null
)
returns table (
  event text,
  event_id uuid,
  event_version bigint,
  decider text,
  decider_id text,
  data jsonb,
  command_id uuid,
  previous_id uuid,
  final boolean,
  created_at timestamptz,
  "offset" bigint,
  version bigint,
  appended boolean
)
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed once
#variable_conflict use_column
declare
  _purges constant bigint := pg_sequence_last_value('event_store.purge_seq');
  _head record;
  _follows boolean;
  _appended boolean := false;
begin
  -- as in head_of_stream, but cheaper
  select e.event_id as last_event_id, e."offset", e.version, e.final into _head
  from event_store.events e
  where e.decider_id = v_decider_id and e.decider = v_decider
  order by e.version desc
  limit 1;
  if not found and pg_sequence_last_value('event_store.purge_seq') > 0 then -- not _purges: the first purge may have begun since
    select p.last_event_id, p.last_offset as "offset", p.version, p.final into _head
    from event_store.purged_streams p
    where p.decider_id = v_decider_id and p.decider = v_decider;
  end if;
  _follows := case
    when v_expected_version is null then _head.last_event_id is not distinct from v_previous_id
    else v_expected_version in (coalesce(_head.version, 0), -1) and (v_previous_id is null or _head.last_event_id = v_previous_id)
  end;
  -- a conflict skips the INSERT, which would store nothing and take as long as one that stores
  if _follows then
    -- all other conditions of an event; only where nothing was stored it is asked which one was not met
    return query
    insert into event_store.events as e (
      event, event_id, event_version, decider, decider_id, data, command_id, previous_id, final, created_at, "offset", version, metadata
    )
    select
      v_event, v_event_id, v_event_version, v_decider, v_decider_id, v_data, v_command_id, _head.last_event_id, v_final,
      event_store_private.clock(), nextval('event_store.events_offset_seq'), coalesce(_head.version, 0) + 1, v_metadata
    from event_store.deciders d
    where d.decider = v_decider and d.event = v_event and d.event_version = v_event_version
      and (d.owner is null or event_store_private.may_append(d.decider, d.owner))
      and event_store_private.event_fault(
        v_event, v_event_id, v_event_version, v_decider, v_decider_id, v_data, v_command_id, v_final, nullif(v_expected_version, -1),
        v_metadata
      ) is null
      and event_store_private.meets(d.accepts, d.seals, v_data)
      and not event_store_private.is_upper_uuid(v_decider_id)
      and _head.final is not true
      -- false where the store was copied without its sequences
      and coalesce(_head."offset", 0) <= coalesce(pg_sequence_last_value('event_store.events_offset_seq'), 0)
    on conflict do nothing
    returning
      e.event, e.event_id, e.event_version, e.decider, e.decider_id, e.data, e.command_id, e.previous_id, e.final,
      e.created_at, e."offset", e.version, true;
    if found then
      if pg_sequence_last_value('event_store.purge_seq') is distinct from _purges
        or current_setting('transaction_isolation') <> 'read committed'
      then
        perform event_store_private.require_unpurged(array[v_event_id]);
      end if;
      if pg_sequence_last_value('event_store.attended_seq') % 2 = 1 then -- a sequencer sleeps
        perform event_store_private.wake_sequencer();
      end if;
      return;
    end if;
  end if;
  -- for a conflict, asked only where no head was seen: the stream may be purged, and purge_seq behind
  if (_follows or _head.version is null) and event_store_private.are_sequences_behind(_head."offset") then
    perform event_store_private.advance_sequences();
    return query
    select * from event_store.append_event(
      v_event, v_event_id, v_decider, v_decider_id, v_data, v_command_id, v_previous_id, v_event_version, v_final,
      v_expected_version, v_metadata
    );
    return;
  end if;
  if not event_store_private.refuse_unless_stored(
    v_event, v_event_id, v_event_version, v_decider, v_decider_id, v_data, v_command_id, v_previous_id, v_final,
    v_expected_version, v_metadata
  ) then
    -- another writer was first; append_batch retries with the stream's new end until it succeeds
    perform event_store_private.append_batch(array[row(
      1, v_event, v_event_id, v_event_version, v_decider, v_decider_id, v_data, v_command_id, null, false, v_final, null, v_metadata
    )::event_store_private.batch_event]);
    _appended := true;
  end if;
  return query
  select
    e.event, e.event_id, e.event_version, e.decider, e.decider_id, e.data, e.command_id, e.previous_id, e.final, e.created_at,
    e."offset", e.version, _appended
  from event_store.events e
  where e.event_id = v_event_id;
end
$$;

comment on function event_store.append_event(text, uuid, text, text, jsonb, uuid, uuid, bigint, boolean, bigint, jsonb) is
'Appends one event to the stream (v_decider, v_decider_id) and returns it as stored. v_previous_id is the event_id of'
' the stream''s last event, null for the first: of two writers that state the same one, exactly one succeeds. With '
'v_expected_version, the number of events in the stream (0: none yet; -1: any), v_previous_id may be null. A retry'
' with the same v_event_id and content returns the stored event, with appended = false. v_command_id is the command that caused it, v_final closes the '
'stream; v_metadata, a JSON object, says what led to it. MR001 another writer was first, or the stream is not where '
'v_previous_id or v_expected_version say; MR002 the stream is '
'closed; MR003 v_event_id is stored with other content; MR004 the event is not registered for its decider; MR005 an '
'argument is null, empty or too large; MR034 the decider belongs to a capture; MR046 it belongs to another role; MR050 the '
'data do not fit the event''s schema; MR055 they are sealed with a key that is gone.';
revoke all on function event_store.append_event(text, uuid, text, text, jsonb, uuid, uuid, bigint, boolean, bigint, jsonb) from public;
grant execute on function event_store.append_event(text, uuid, text, text, jsonb, uuid, uuid, bigint, boolean, bigint, jsonb)
to event_store_writer, event_store_owner;
