-- v_offset is the event as dead_letters showed it.
-- Example: select event, "offset" from discard_dead_letter('invoices', 'order', 'o-1', 'a test order')
create or replace function event_store_platform.discard_dead_letter(
  v_view text,
  v_decider text,
  v_decider_id text,
  v_reason text,
  v_offset bigint default null
)
returns setof event_store.recorded_events
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _now constant timestamptz := event_store_private.clock();
  _view constant event_store.views := event_store_private.known_view(v_view);
  _lock event_store.stream_locks;
  _event event_store.versioned_events;
begin
  if coalesce(v_reason, '') = '' then
    perform event_store_private.refuse_request('v_reason is empty', 'Say in v_reason why the event is given up.');
  end if;
  select * into _lock from event_store.stream_locks
  where view = v_view and decider_id = v_decider_id and decider = v_decider and parked_at is not null
  for update;
  if not found then
    raise exception 'stream is not parked'
      using
        errcode = 'MR018',
        detail = format('view %L, stream (%s, %s)', v_view, v_decider, v_decider_id),
        hint = 'dead_letters(view) lists what is.';
  end if;
  select * into _event from event_store.versioned_events e
  where e.decider_id = v_decider_id and e.decider = v_decider
    and e.version > _lock.last_version and e."offset" > _lock.last_offset
    and event_store_private.wants(_view.deciders, _view.events, e.decider, e.event)
    -- an event that is not in the log yet cannot have failed
    and exists (select from event_store.event_log l where l."offset" = e."offset")
  order by e.version
  limit 1;
  if v_offset <> coalesce(_event."offset", -1) then
    raise exception 'stream is not parked'
      using
        errcode = 'MR018',
        detail = format(
          'view %L, stream (%s, %s): it is parked at offset %s, not at %s', v_view, v_decider, v_decider_id,
          coalesce(_event."offset"::text, 'none'), v_offset
        ),
        hint = 'dead_letters(view) lists what is.';
  end if;
  update event_store.stream_locks
  set
    last_offset = coalesce(_event."offset", last_offset), last_version = coalesce(_event.version, last_version), parked_at = null, caught_up = true, attempts = 0, last_error = null,
    locked_until = _now, updated_at = _now, revision = revision + 1
  where view = v_view and decider_id = v_decider_id and decider = v_decider;
  perform event_store_private.audit(
    'discard_dead_letter', v_view, v_reason,
    jsonb_build_object(
      'decider', v_decider, 'decider_id', v_decider_id, 'event', _event.event, 'event_id', _event.event_id,
      'offset', _event."offset", 'attempts', _lock.attempts, 'last_error', _lock.last_error, 'parked_at', _lock.parked_at
    )
  );
  return query select r.* from event_store.recorded_events r where r."offset" = _event."offset";
end
$$;

comment on function event_store_platform.discard_dead_letter(text, text, text, text, bigint) is
'Gives up the event that the parked stream (v_decider, v_decider_id) failed at and returns it: the view counts it as '
'acknowledged, the stream continues, the event stays in the log. With v_offset only if that is the event. Audited with '
'v_reason. MR005 v_reason is empty; MR010 unknown view; MR018 the stream is not parked, or at another event.';
revoke all on function event_store_platform.discard_dead_letter(text, text, text, text, bigint) from public;
grant execute on function event_store_platform.discard_dead_letter(text, text, text, text, bigint) to event_store_owner;
