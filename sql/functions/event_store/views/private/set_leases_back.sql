-- Leases from before the clock was set back end as if it had not been. A lock counts as such if it last changed in the
-- future. Leases have no such time, so all that last longer than v_by count. A newer lease is at most shortened, and
-- its working owner extends it. Rows that another session is changing are left out.
create or replace function event_store_private.set_leases_back(
  v_by interval
)
returns void
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
declare
  _now constant timestamptz := event_store_private.clock();
  _captures text[];
begin
  update event_store.stream_locks k
  set locked_until = greatest(k.locked_until - v_by, _now), updated_at = _now, revision = k.revision + 1
  where k.ctid = any (array(
    select h.ctid from event_store.stream_locks h
    where h.parked_at is null and h.locked_until > _now and h.updated_at > _now
    for update skip locked
  ));
  update event_store.checkpoints c
  set leased_until = c.leased_until - v_by, revision = c.revision + 1
  where c.ctid = any (array(select h.ctid from event_store.checkpoints h where h.leased_until > _now + v_by for update skip locked));
  -- a session that changes a capture holds the lock of its name
  _captures := array(select n.capture from event_store.capture_names n for no key update skip locked);
  update event_store.captures c set leased_until = c.leased_until - v_by
  where c.capture = any (_captures) and c.leased_until > _now + v_by;
  update event_store.consumers c
  set attached_until = c.attached_until - v_by
  where c.ctid = any (array(select h.ctid from event_store.consumers h where h.attached_until > _now + v_by for update skip locked));
  update event_store.archive_locks l
  set locked_until = l.locked_until - v_by
  where l.ctid = any (array(select h.ctid from event_store.archive_locks h where h.locked_until > _now + v_by for update skip locked));
end
$$;

comment on function event_store_private.set_leases_back(interval) is
'Lets leases, locks and waits from before the clock was set back by v_by end as they would have.';
