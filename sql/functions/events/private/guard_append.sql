-- The guard of every way into events: functions, COPY, a bare INSERT. It checks the event, moves the stream's row,
-- which is the optimistic lock, and draws the offset with that row locked, so offsets rise along each stream. An event
-- that is stored already, unchanged, is skipped. Streams of captured tables are their captures' alone, which append
-- batches.
--
-- append_batch does the same for a whole batch, sets event_store.streams_advanced for its insert, and states offsets. All
-- three are asked for: a setting alone opens nothing, for the rights of the store's owner, who alone may use the schema
-- event_store_private, are what its functions run with and no session has. Where the owner appends without a function,
-- an offset that is left out keeps the guard on.
--
-- A restore brings events with transaction_id 3, as no append does: guard_restore asks whether one is under way.
--
-- What an event must meet is written out three times: for the first event of a stream, for a later one, and to say
-- which of it was not met. One function for all three was measured: it costs each append 4 to 10 % more, for Postgres
-- cannot inline it.
create or replace function event_store_private.guard_append()
returns trigger
language plpgsql
-- No search_path of its own, which would cost every event: all names are qualified, and the functions above it pin one.
as $$
declare
  _fault text;
  _from_append_event boolean;
begin
  -- All that an event must meet in one statement; which of it was not met is asked only where it moved no stream.
  if new.previous_id is null then
    insert into event_store.streams as s (decider, decider_id, last_event_id, last_offset, version, final)
    select new.decider, new.decider_id, new.event_id, nextval('event_store.events_offset_seq'), 1, new.final
    where event_store_private.event_fault(
        new.event, new.event_id, new.event_version, new.decider, new.decider_id, new.data, new.command_id, new.final
      ) is null
      and not event_store_private.is_upper_uuid(new.decider_id)
      and exists (
        select from event_store.deciders d
        where d.decider = new.decider and d.event = new.event and d.event_version = new.event_version
          and (d.owner is null or event_store_private.may_use(d.owner))
      )
      and not exists (select from event_store.captured_tables c where c.decider = new.decider)
      -- The insert would find this too, but `on conflict do nothing` would then leave the stream's row ahead of its
      -- events.
      and not exists (select from event_store.events e where e.event_id = new.event_id)
    on conflict do nothing
    returning s.last_offset into new."offset";
  else
    update event_store.streams s
    set
      last_event_id = new.event_id,
      last_offset = nextval('event_store.events_offset_seq'),
      version = s.version + 1,
      final = new.final
    where s.decider_id = new.decider_id
      and s.decider = new.decider
      and s.last_event_id = new.previous_id
      and not s.final
      and event_store_private.event_fault(
        new.event, new.event_id, new.event_version, new.decider, new.decider_id, new.data, new.command_id, new.final
      ) is null
      and not event_store_private.is_upper_uuid(new.decider_id)
      and exists (
        select from event_store.deciders d
        where d.decider = new.decider and d.event = new.event and d.event_version = new.event_version
          and (d.owner is null or event_store_private.may_use(d.owner))
      )
      and not exists (select from event_store.captured_tables c where c.decider = new.decider)
      and not exists (select from event_store.events e where e.event_id = new.event_id)
    returning s.last_offset into new."offset";
  end if;
  if found then
    _from_append_event := coalesce(new.created_at = '-infinity', false);
    new.created_at := event_store_private.clock();
    new.transaction_id := pg_current_xact_id();
    -- A COPY fails where an event_id is stored meanwhile. An INSERT may say `on conflict do nothing`, and leave the
    -- stream's row ahead of its events; the statement is asked as a whole, for it may be several.
    if not _from_append_event and current_query() !~* '^\s*copy\s[^;]*;?\s*$' then
      perform event_store_private.require_new_event_id(new);
    end if;
    return new;
  end if;

  _fault := event_store_private.event_fault(
    new.event, new.event_id, new.event_version, new.decider, new.decider_id, new.data, new.command_id, new.final
  );
  if _fault is null and event_store_private.is_upper_uuid(new.decider_id) then
    _fault := format('decider_id %s is a UUID in upper case; write it in lower case', new.decider_id);
  end if;
  if _fault is not null then
    raise exception 'event is malformed'
      using errcode = 'MR005', detail = _fault, hint = 'Correct the event; nothing was stored.';
  end if;
  if exists (select from event_store.captured_tables c where c.decider = new.decider) then
    perform event_store_private.refuse_captured_decider(new.decider);
  end if;
  if not exists (
    select from event_store.deciders d
    where d.decider = new.decider and d.event = new.event and d.event_version = new.event_version
      and (d.owner is null or event_store_private.may_use(d.owner))
  ) then
    perform event_store_private.refuse_unregistered_event(new.decider, new.event, new.event_version);
  end if;
  if event_store_private.is_stored(
    new.event, new.event_id, new.event_version, new.decider, new.decider_id, new.data, new.command_id, new.previous_id, new.final
  ) then
    return null;
  end if;
  perform event_store_private.refuse_append(new.decider, new.decider_id, new.event_id, new.previous_id);
end
$$;

comment on function event_store_private.guard_append() is
'Trigger: checks an event, advances its stream and draws its offset, or raises MR001 to MR005, MR034, MR046.';

create or replace trigger guard_append
before insert on event_store.events
for each row
when (
  (
    current_setting('event_store.streams_advanced', true) is distinct from 'on'
    or new."offset" is null
    or not has_schema_privilege('event_store_private'::regnamespace::oid, 'usage')
  )
  and new.transaction_id is distinct from '3'::xid8
)
execute function event_store_private.guard_append();

comment on trigger guard_append on event_store.events is 'Protects every path into events.';
