-- It never waits. purge_state shows that events are left. If it is killed, nothing is half done: no process reads below
-- the mark. Call it in a short transaction: until it ends, a transaction that registers a view, archives the log
-- partition, or appends to it with one snapshot or without a function waits.
-- Example: select purge_events(3)
create or replace function event_store_platform.purge_events(
  v_partition int,
  v_limit bigint default 100000
)
returns bigint
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed
declare
  _offsets bigint[];
  _to_position bigint;
  _purged bigint;
begin
  if coalesce(v_limit, 0) <= 0 then
    perform event_store_private.refuse_request(format('v_limit is %s', coalesce(v_limit::text, 'null')), 'v_limit must be at least 1.');
  end if;
  perform event_store_private.require_partition(v_partition);
  -- One purge at a time, and none alongside a writer with a possibly old snapshot (hold_off_purges). FOR UPDATE, a
  -- strength that the update below keeps: a weaker lock would not conflict with the lock of such a writer.
  perform from event_store.log_partitions p where p.partition = v_partition for update skip locked;
  if not found then
    return 0;
  end if;
  select array_agg(l."offset" order by l.position), max(l.position) + 1 into _offsets, _to_position
  from (
    select l.position, l."offset"
    from event_store.event_log l
    where l.partition = v_partition
      and l.position < (select p.earliest_position from event_store.partitions p where p.partition = v_partition)
    order by l.position
    limit v_limit
  ) l;
  if _offsets is null then
    return 0;
  end if;
  perform nextval('event_store.purge_seq'); -- informs writers with snapshots that do not see this (require_unpurged)
  -- the event that each stream's next event follows, if no other event of the stream is kept
  insert into event_store.purged_streams as p (decider, decider_id, last_event_id, last_offset, version, final)
  select distinct on (e.decider_id, e.decider) e.decider, e.decider_id, e.event_id, e."offset", e.version, e.final
  from event_store.events e
  where e."offset" = any (_offsets)
  order by e.decider_id, e.decider, e.version desc
  on conflict (decider_id, decider) do update set
    last_event_id = excluded.last_event_id,
    last_offset = excluded.last_offset,
    version = excluded.version,
    final = excluded.final;
  -- Delete the events first: the trigger forbid_change uses event_log to check that they lie below the mark.
  perform set_config('event_store.purging', 'on', true);
  delete from event_store.events where "offset" = any (_offsets);
  get diagnostics _purged = row_count;
  perform set_config('event_store.purging', 'off', true);
  delete from event_store.event_log where "offset" = any (_offsets);
  if _purged > 0 then
    update event_store.log_partitions p set purged_position = _to_position where p.partition = v_partition;
    perform event_store_private.audit(
      'purge_events', null, null, jsonb_build_object('partition', v_partition, 'events', _purged, 'last_offset', _offsets[cardinality(_offsets)])
    );
  end if;
  return _purged;
end
$$;

comment on function event_store_platform.purge_events(int, bigint) is
'Deletes events of log partition v_partition below its low-water mark, the oldest first, at most v_limit, and returns '
'how many; call it until it returns 0. 0 at once, with events left, while another purge or a change of the marks '
'runs, or after an open transaction above READ COMMITTED, a bare INSERT or a COPY appended there. MR005 v_limit is '
'not positive; MR013 unknown log partition.';
revoke all on function event_store_platform.purge_events(int, bigint) from public;
grant execute on function event_store_platform.purge_events(int, bigint) to event_store_owner;
