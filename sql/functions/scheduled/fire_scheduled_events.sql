-- For a session of its own beside the sequencer: an event may wait here for the stream's open transaction, for a tenth of
-- a second. Then it is tried again later, and holds up no other. Order by due_at holds within a stream only. Each call
-- takes the events of one role, drawn from those that have some, however many events another one has.
-- Races: any number may call it; each takes events that no other one holds.
-- Example: select * from fire_scheduled_events()
create or replace function event_store_platform.fire_scheduled_events(
  v_limit bigint default 100,
  v_expected timestamptz default null
)
returns table (
  done bigint,
  clock timestamptz
)
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
set lock_timeout = '100ms'
as $$
-- planner: indexed ordered once
#variable_conflict use_column
declare
  _now constant timestamptz := event_store_private.clock();
  _until constant timestamptz := clock_timestamp() + interval '50 milliseconds';
  _each event_store.scheduled_events;
  _outcome text;
  _error text;
  _state text;
  _next timestamptz;
  _done bigint := 0;
begin
  if _now > v_expected + interval '1 hour' then
    update event_store.schedule s
    set held_until = _now + interval '5 minutes', held_because = 'the server''s clock jumped ahead by more than an hour'
    where s.held_until < _now + interval '5 minutes';
  end if;
  if event_store_private.held_because() is not null then
    return query select 0::bigint, _now;
    return;
  end if;
  for _each in
    with role as materialized (
      -- one a slice: what is left of a slice would be those of the same role each time
      select r.role
      from event_store_private.scheduling_roles() r(role)
      where exists (
        select from event_store.scheduled_events s where s.done_at is null and s.made_by = r.role and s.next_at <= _now
      )
      order by random()
      limit 1
    ), due as materialized (
      select d.*
      from role r
      cross join lateral (
        select s.*
        from event_store.scheduled_events s
        where s.done_at is null and s.made_by = r.role and s.next_at <= _now
        order by s.next_at, s.due_at
        limit greatest(v_limit, 1)
        for update skip locked
      ) d
    )
    -- in the order of batches, so that none of the two waits for the other
    select d.* from due d order by d.decider_id, d.decider, d.due_at, d.name
  loop
    _error := null;
    begin
      _outcome := event_store_private.append_scheduled(_each);
    exception when others then
      get stacked diagnostics _state = returned_sqlstate, _error = message_text;
      -- what another transaction or the machine refuses may be taken later
      _outcome := case when _state ~ '^(MR|2[23])' then 'refused' end;
    end;
    if _outcome is null then
      -- an earlier event of the stream waits, and this one as long; or another session appends the earlier one now
      _next := case
        when _error is not null then _now + make_interval(secs => least(60, 2 ^ least(_each.tries, 6)))
        else greatest(_now + interval '100 milliseconds', (
          select e.next_at
          from event_store.scheduled_events e
          where e.decider_id = _each.decider_id and e.decider = _each.decider and e.done_at is null
          order by e.due_at, e.name
          limit 1
        ))
      end;
      -- with all that follow: they would fill the next slices, and delay other streams
      update event_store.scheduled_events s
      set next_at = _next
      from (
        select e.decider_id, e.decider, e.name
        from event_store.scheduled_events e
        where e.decider_id = _each.decider_id and e.decider = _each.decider and e.done_at is null and e.due_at < _next
          and e.next_at < _next
        order by e.due_at, e.name
        limit 10000
        for update skip locked
      ) following
      where (s.decider_id, s.decider, s.name) = (following.decider_id, following.decider, following.name);
    end if;
    update event_store.scheduled_events s
    set
      outcome = _outcome, done_at = case when _outcome is not null then event_store_private.clock() end, last_error = _error,
      tries = s.tries + (_error is not null)::int
    where s.decider_id = _each.decider_id and s.decider = _each.decider and s.name = _each.name;
    _done := _done + (_outcome is not null)::int;
    -- after the first one, however slow the server is
    exit when clock_timestamp() > _until;
  end loop;
  if _done = 0 then
    delete from event_store.scheduled_events s
    using (
      select o.decider_id, o.decider, o.name
      from event_store.scheduled_events o
      where o.outcome <> 'refused' and o.done_at < _now - interval '7 days'
      order by o.done_at
      limit 1000
      for update skip locked
    ) old
    where (s.decider_id, s.decider, s.name) = (old.decider_id, old.decider, old.name);
  end if;
  return query select _done, _now;
end
$$;

comment on function event_store_platform.fire_scheduled_events(bigint, timestamptz) is
'Appends up to v_limit scheduled events that are due, for a twentieth of a second, and returns how many are done, and the '
'server''s clock. v_expected is what this clock should be by the caller''s own; where it is an hour ahead, '
'all wait for five minutes. One that the store refuses waits for an operator; one whose stream is locked is tried again, after 1 s, doubled each time up to a minute.';
revoke all on function event_store_platform.fire_scheduled_events(bigint, timestamptz) from public;
grant execute on function event_store_platform.fire_scheduled_events(bigint, timestamptz) to event_store_consumer, event_store_owner;
