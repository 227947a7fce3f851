-- For COPY and a bare INSERT, by the owner of the tables. A stored event, unchanged, is skipped. If another writer was
-- first meanwhile, the statement fails at events_stream_key. Until its transaction ends no session purges the stream,
-- so no earlier event had the version that it takes.
--
-- Functions state the version and are not checked again: they run as the store's owner, and only that role may use the
-- schema event_store_private. A login with a grant of INSERT is checked whatever its rows state. A restore brings
-- events with transaction_id 3, as no append does. Only its own transaction sees what begin_restore wrote into the
-- sequencer's row, which is never committed (require_finished_restore): nothing else can pretend to be a restore.
create or replace function event_store_private.guard_append()
returns trigger
language plpgsql
security definer
set search_path = event_store, pg_temp
as $$
declare
  _head record;
  _meets boolean;
begin
  if new.transaction_id = '3' then
    if (select sequenced_at from event_store.sequencer) <> 'infinity' then
      perform event_store_private.refuse_request(
        'transaction_id is 3, and no restore has begun in this transaction',
        'Leave transaction_id out, or call begin_restore first.'
      );
    end if;
    return new;
  end if;
  _meets := event_store_private.require_fit_event(
    new.event, new.event_id, new.event_version, new.decider, new.decider_id, new.data, new.command_id, new.final, null, new.metadata
  );
  perform event_store_private.hold_off_purges(array[new.decider_id]);
  if event_store_private.is_stored(
    new.event, new.event_id, new.event_version, new.decider, new.decider_id, new.data, new.command_id, new.previous_id, new.final
  ) then
    return null;
  end if;
  if not _meets then
    perform event_store_private.refuse_data(new.decider, new.event, new.event_version, new.data);
  end if;
  select * into _head from event_store_private.head_of_stream(new.decider_id, new.decider);
  if _head.final is true or _head.last_event_id is distinct from new.previous_id then
    perform event_store_private.refuse_append(new.decider, new.decider_id, new.event_id, new.previous_id);
  end if;
  if _head.last_offset > coalesce(pg_sequence_last_value('event_store.events_offset_seq'), 0) then
    perform event_store_private.advance_sequences();
  end if;
  new."offset" := nextval('event_store.events_offset_seq');
  new.version := coalesce(_head.version, 0) + 1;
  new.created_at := event_store_private.clock();
  new.transaction_id := pg_current_xact_id();
  if pg_sequence_last_value('event_store.attended_seq') % 2 = 1 then -- a sequencer sleeps
    perform event_store_private.wake_sequencer();
  end if;
  return new;
end
$$;

comment on function event_store_private.guard_append() is
'Trigger: checks an event that no function appends and gives it version, offset and time, or raises MR001 to MR005, '
'MR034, MR046, MR050, MR055.';

create or replace trigger guard_append
before insert on event_store.events
for each row
when (new.version is null or not has_schema_privilege('event_store_private'::regnamespace::oid, 'usage'))
execute function event_store_private.guard_append();

comment on trigger guard_append on event_store.events is 'Checks events that no function appends.';
