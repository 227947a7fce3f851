-- For a change of its position or its removal: nothing of it is leased or in flight, and no session can lease anything.
-- It never waits for a session that uses the view. It locks the rows of all that could be leased, and no key that a
-- login without grants could hold. Expired leases are ended: their former owners can no longer commit or acknowledge.
-- v_dry_run leaves those as they are.
create or replace function event_store_private.lock_idle_view(
  v_view text,
  v_dry_run boolean default false
)
returns event_store.views
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
declare
  _now timestamptz;
  _view event_store.views;
  _used_by text;
begin
  begin
    select * into _view from event_store.views where view = v_view for update nowait;
    if not found then
      perform event_store_private.known_view(v_view); -- raises that it is gone
    end if;
    perform from event_store.checkpoints where view = v_view order by partition for update nowait;
    perform from event_store.stream_locks where view = v_view for update nowait;
  exception when lock_not_available then
    perform event_store_private.refuse_view_in_use(v_view, 'a transaction that leases, commits or acknowledges something of it is still open');
  end;

  _now := event_store_private.clock();
  select string_agg(distinct format('log partitions are leased by %s', lease_owner), '; ') into _used_by
  from event_store.checkpoints
  where view = v_view and leased_until > _now;
  if _used_by is null then
    select format('%s events are in flight, the last until %s', count(*), max(locked_until)) into _used_by
    from event_store.stream_locks
    where view = v_view and in_flight is not null and locked_until > _now
    having count(*) > 0;
  end if;
  if _used_by is not null then
    perform event_store_private.refuse_view_in_use(v_view, _used_by);
  end if;

  if v_dry_run then
    return _view;
  end if;
  update event_store.checkpoints
  set lease_owner = null, leased_until = null, leased_from = null, leased_to = null, rebuilds = false
  where view = v_view and lease_owner is not null;
  update event_store.stream_locks set in_flight = null, lease_pid = null, revision = revision + 1
  where view = v_view and in_flight is not null;
  return _view;
end
$$;

comment on function event_store_private.lock_idle_view(text, boolean) is
'Locks a view for the caller until the transaction ends. MR010, MR017 in use.';
