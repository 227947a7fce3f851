-- For fire_scheduled_events, with the event's row locked. What it waits for is looked up in the versions up to the head,
-- and the event follows that head: another writer first, and it is looked up again.
create or replace function event_store_private.append_scheduled(
  v_scheduled event_store.scheduled_events
)
returns text
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered once
declare
  _role constant oid := to_regrole(quote_ident(v_scheduled.made_by));
  _head record;
  _version bigint;
begin
  if (
    select (s.due_at, s.name) < (v_scheduled.due_at, v_scheduled.name)
    from event_store.scheduled_events s
    where s.decider_id = v_scheduled.decider_id and s.decider = v_scheduled.decider and s.done_at is null
    order by s.due_at, s.name
    limit 1
  ) then
    return null;
  end if;
  -- as for an append by that role now; a dropped role may nothing
  if has_function_privilege(_role, 'event_store.append_events(jsonb)', 'execute') is not true
    or exists (
      select from event_store.deciders d
      where d.decider = v_scheduled.decider and d.owner <> v_scheduled.made_by
        and (
          pg_has_role(_role, to_regrole(quote_ident(d.owner)), 'member') or pg_has_role(_role, 'event_store_owner', 'member')
          or has_schema_privilege(_role, 'event_store_private', 'usage')
        ) is not true
    )
    or exists (select from event_store.captured_tables c where c.decider = v_scheduled.decider)
  then
    raise exception 'role % may not append to decider %', v_scheduled.made_by, v_scheduled.decider using errcode = 'MR046';
  end if;
  select max(d.event_version) into _version
  from event_store.deciders d
  where d.decider = v_scheduled.decider and d.event = v_scheduled.event;
  loop
    select h.* into _head from event_store_private.head_of_stream(v_scheduled.decider_id, v_scheduled.decider) h;
    if _head.final then
      return 'closed';
    elsif _head.version is null and not v_scheduled.opens then
      return 'no_stream';
    elsif _head.version > v_scheduled.unless_above then
      return 'unless';
    elsif v_scheduled.unless_event is not null then
      if exists (
        select from event_store.events e
        where e.decider_id = v_scheduled.decider_id and e.decider = v_scheduled.decider
          and e.version > v_scheduled.since_version and e.version <= _head.version and e.event = v_scheduled.unless_event
      ) then
        return 'unless';
      elsif exists (
        select from event_store.purged_streams p
        where p.decider_id = v_scheduled.decider_id and p.decider = v_scheduled.decider and p.version > v_scheduled.since_version
      ) then
        perform event_store_private.refuse_request(
          format('events after version %s were purged, so none can tell whether %s came', v_scheduled.since_version, v_scheduled.unless_event),
          'Append the event, or cancel it.'
        );
      end if;
    end if;
    begin
      perform from event_store_private.append_batch(array[row(
        1, v_scheduled.event, v_scheduled.event_id, _version, v_scheduled.decider, v_scheduled.decider_id,
        event_store.upcast(v_scheduled.decider, v_scheduled.event, v_scheduled.event_version, v_scheduled.data),
        v_scheduled.command_id, null, false, v_scheduled.final, coalesce(_head.version, 0),
        coalesce(v_scheduled.metadata, '{}') || jsonb_build_object('due_at', v_scheduled.due_at)
      )::event_store_private.batch_event], v_scheduled => true);
      return 'fired';
    exception when sqlstate 'MR001' then null;
    end;
  end loop;
end
$$;

comment on function event_store_private.append_scheduled(event_store.scheduled_events) is
'Appends a scheduled event, unless what it waits for came first; returns its outcome, or raises why the store does not take it.';
