-- For a stream that the lease retries, it is the stream's next event; for a stream without a lock, and for any stream
-- in a rebuild, its first event in the range.
create or replace function event_store_private.first_delivered(
  v_view event_store.views,
  v_lease event_store.checkpoints,
  v_decider text,
  v_decider_id text
)
returns bigint
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
declare
  _lock event_store.stream_locks;
  _from bigint;
begin
  if not v_lease.rebuilds then
    select * into _lock from event_store_private.newest_lock(v_lease.view, v_decider_id, v_decider);
    if found and (_lock.lease_token <> v_lease.lease_token or _lock.in_flight is null) then
      return null;
    end if;
  end if;
  _from := coalesce(
    _lock.last_version + 1,
    event_store_private.version_from(v_decider, v_decider_id, v_position => v_lease.leased_from)
  );
  return (
    select e."offset"
    from event_store.events e
    join event_store.event_log l using ("offset")
    where e.decider_id = v_decider_id and e.decider = v_decider
      and e.version >= _from and e."offset" > coalesce(_lock.last_offset, -1)
      and l.partition = v_lease.partition
      and l.position < v_lease.leased_to
      and event_store_private.wants(v_view.deciders, v_view.events, e.decider, e.event)
    order by e.version
    limit 1
  );
end
$$;

comment on function event_store_private.first_delivered(event_store.views, event_store.checkpoints, text, text) is
'The offset of the first event that a lease delivers of a stream; null for none.';
