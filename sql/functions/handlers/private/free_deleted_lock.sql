-- For members of event_store_owner, which reset a view as users of fstore-sql do: the stream is free, parked or not,
-- and its earlier attempts are forgotten. The lock of a stream with pending events stays as a free one; a lock with
-- nothing left goes with the next dispatch. Recorded in audit_log.
create or replace function event_store_private.free_deleted_lock()
returns trigger
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _now constant timestamptz := event_store_private.clock();
  _view event_store.views;
begin
  select * into _view from event_store.views where view = old.view;
  update event_store.stream_locks k
  set
    in_flight = null, parked_at = null, attempts = 0, last_error = null, locked_until = least(k.locked_until, _now), updated_at = _now,
    revision = k.revision + 1,
    caught_up = not exists (
      select from event_store.events e
      where e.decider_id = k.decider_id and e.decider = k.decider
        and e.version > k.last_version and e."offset" > k.last_offset
        and event_store_private.wants(_view.deciders, _view.events, e.decider, e.event)
    )
  where k.view = old.view and k.decider_id = old.decider_id and k.last_offset = old.last_offset;
  if not found then
    return null;
  end if;
  perform event_store_private.audit(
    'end_locks', old.view, 'delete from event_store.locks', jsonb_build_object('decider_id', old.decider_id, 'locks', 1)
  );
  return old;
end
$$;

comment on function event_store_private.free_deleted_lock() is
'Frees a stream when its lock is deleted from the view locks; pending events stay.';

create or replace trigger free_deleted_lock
instead of delete on event_store.locks
for each row execute function event_store_private.free_deleted_lock();
comment on trigger free_deleted_lock on event_store.locks is
'Frees the stream; pending events stay.';
