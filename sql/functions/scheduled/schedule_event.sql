-- What is scheduled is what would be appended now: the same rules, the same rights. The caller's transaction has both or
-- neither.
-- Races: of two that schedule one name the second waits for the first, and moves it.
-- Example: select * from schedule_event('payment_overdue', gen_random_uuid(), 'order', 'o-1', '{}', gen_random_uuid(),
--   clock_timestamp() + interval '3 days', 'pay', v_unless => '{"event": "order_paid"}')
create or replace function event_store.schedule_event(
  v_event text,
  v_event_id uuid,
  v_decider text,
  v_decider_id text,
  v_data jsonb,
  v_command_id uuid,
  v_due_at timestamptz,
  v_name text,
  v_event_version bigint default 1,
  v_final boolean default false,
  v_metadata jsonb default null,
  v_unless jsonb default null,
  v_since_version bigint default null,
  v_opens boolean default false
)
returns table (
  event_id uuid,
  due_at timestamptz,
  outcome text,
  scheduled boolean
)
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
#variable_conflict use_column
declare
  _now constant timestamptz := event_store_private.clock();
  _head bigint;
  _stored event_store.scheduled_events;
begin
  if not event_store_private.require_fit_event(
    v_event, v_event_id, v_event_version, v_decider, v_decider_id, v_data, v_command_id, v_final, null, v_metadata
  ) then
    perform event_store_private.refuse_data(v_decider, v_event, v_event_version, v_data);
  end if;
  if (octet_length(v_name) between 1 and 200) is not true then
    perform event_store_private.refuse_request(
      format('v_name has %s bytes', coalesce(octet_length(v_name)::text, 'no')), 'A name has 1 to 200 bytes.'
    );
  end if;
  -- Python reads no other years, so one such event would hide all others in lists
  if (v_due_at between '1900-01-01' and '9999-12-30') is not true or v_opens is null then
    perform event_store_private.refuse_request(
      format('v_due_at is %s, v_opens is %s', coalesce(v_due_at::text, 'null'), coalesce(v_opens::text, 'null')),
      'State a moment of the years 1900 to 9999, and true or false.'
    );
  end if;
  if v_unless is not null and (
    jsonb_typeof(v_unless) = 'object' and (select count(*) from jsonb_object_keys(v_unless)) = 1
    and (jsonb_typeof(v_unless -> 'event') = 'string' or (v_unless ->> 'version_above') ~ '^[0-9]{1,18}$')
  ) is not true then
    perform event_store_private.refuse_request(
      format('v_unless is %s', left(v_unless::text, 200)), 'It is {"event": "order_paid"}, {"version_above": 3}, or null.'
    );
  end if;
  if v_unless ? 'event' and not exists (
    select from event_store.deciders d where d.decider = v_decider and d.event = v_unless ->> 'event'
  ) then
    perform event_store_private.refuse_unregistered_event(v_decider, v_unless ->> 'event', 1);
  end if;
  select h.version into _head from event_store_private.head_of_stream(v_decider_id, v_decider) h;
  _head := coalesce(_head, 0);
  if v_since_version not between 0 and _head then
    perform event_store_private.refuse_request(
      format('v_since_version is %s; the stream has %s events', v_since_version, _head), 'State how many events were seen, or null.'
    );
  end if;

  -- pg_control_system() reads a file
  if exists (select from event_store.schedule s where s.cluster is null) then
    update event_store.schedule s
    set cluster = c.system_identifier, database = d.oid
    from pg_control_system() c
    cross join pg_database d
    where s.cluster is null and d.datname = current_database();
  end if;
  insert into event_store.scheduled_events as s (
    decider, decider_id, name, event_id, event, event_version, data, command_id, metadata, final, due_at, unless_event, unless_above,
    since_version, opens, made_by, made_at, next_at
  )
  values (
    v_decider, v_decider_id, v_name, v_event_id, v_event, v_event_version, v_data, v_command_id, v_metadata, v_final, v_due_at,
    v_unless ->> 'event', (v_unless ->> 'version_above')::bigint, coalesce(v_since_version, _head), v_opens,
    event_store_private.caller_role(), _now, v_due_at
  )
  on conflict on constraint scheduled_events_pkey do update
  set
    event_id = excluded.event_id, event = excluded.event, event_version = excluded.event_version, data = excluded.data,
    command_id = excluded.command_id, metadata = excluded.metadata, final = excluded.final, due_at = excluded.due_at,
    unless_event = excluded.unless_event, unless_above = excluded.unless_above, since_version = excluded.since_version,
    opens = excluded.opens, made_by = excluded.made_by, made_at = excluded.made_at, next_at = excluded.next_at, tries = 0,
    last_error = null, done_at = null, outcome = null
  where s.event_id <> excluded.event_id
  returning s.* into _stored;
  if found then
    return query select _stored.event_id, _stored.due_at, _stored.outcome, true;
    return;
  end if;
  select s.* into _stored
  from event_store.scheduled_events s
  where s.decider_id = v_decider_id and s.decider = v_decider and s.name = v_name;
  if (_stored.event, _stored.event_version, _stored.command_id, _stored.final) is distinct from (v_event, v_event_version, v_command_id, v_final)
    or not event_store_private.is_same_data(_stored.data, v_data)
  then
    raise exception 'event_id belongs to another event'
      using
        errcode = 'MR003',
        detail = format('event_id %s is that of event %s, scheduled as %s of stream (%s, %s)', v_event_id, _stored.event, v_name, v_decider, v_decider_id),
        hint = 'Give each event an event_id of its own.';
  end if;
  return query select _stored.event_id, _stored.due_at, _stored.outcome, false;
end
$$;

comment on function event_store.schedule_event(text, uuid, text, text, jsonb, uuid, timestamptz, text, bigint, boolean, jsonb, jsonb, bigint, boolean) is
'Lets an event be appended to the end of its stream at v_due_at, not before, usually within a second. v_name names it in its '
'stream: another v_event_id moves it, the same one changes nothing (scheduled = false; outcome is null while it waits). '
'v_unless: it is not appended if {"event": …} came after v_since_version events (null: the stream''s events by now), or if '
'the stream has more events than {"version_above": …}. v_opens: it may be the first event of its stream. MR003 the same '
'v_event_id with other content; MR004, MR005, MR034, MR046, MR050, MR055 as append_event.';
revoke all on function event_store.schedule_event(text, uuid, text, text, jsonb, uuid, timestamptz, text, bigint, boolean, jsonb, jsonb, bigint, boolean) from public;
grant execute on function event_store.schedule_event(text, uuid, text, text, jsonb, uuid, timestamptz, text, bigint, boolean, jsonb, jsonb, bigint, boolean)
to event_store_writer, event_store_owner;
