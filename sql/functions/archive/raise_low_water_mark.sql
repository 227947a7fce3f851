-- Positions, the high-water mark and the heads of streams stay, so everything continues as before, with three
-- exceptions: get_events returns only the kept events; get_last_event returns nothing if the last event of a stream is
-- gone (stream_head has its head); and a retry of a deleted event_id is no longer recognized.
-- Example: select raise_low_water_mark(3, 100000)
create or replace function event_store_platform.raise_low_water_mark(
  v_partition int,
  v_position bigint,
  v_reason text default null
)
returns bigint
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _partition event_store.partitions;
  _needed text;
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    perform event_store_private.refuse_request(
      format('transaction_isolation is %s', current_setting('transaction_isolation')),
      'Call it at READ COMMITTED: it must see which events were placed in the log meanwhile.'
    );
  end if;
  if v_position is null then
    perform event_store_private.refuse_request('v_position is null', 'State a position.');
  end if;
  perform event_store_private.require_partition(v_partition);
  -- no view can be placed below the new mark while this reads the positions of views
  perform from event_store.archive for update skip locked;
  if not found then
    _needed := 'an open transaction places a view in the log, rebuilds from it or shortens it';
  end if;
  _partition := event_store_private.require_partition(v_partition);
  if v_position < 0 or v_position > _partition.high_water_mark then
    perform event_store_private.refuse_position(_partition, format('%s cannot be the low-water mark', v_position));
  end if;

  if _needed is null then
    -- a view does not need events that it does not want
    perform event_store_platform.pass_over_unwanted(x.view)
    from (
      select distinct c.view
      from event_store.checkpoints c
      join event_store.views v using (view)
      where c.partition = v_partition and c.position < v_position and v.mode = 'bulk'
      offset 0
    ) x;
    select string_agg(needed.reason, '; ') into _needed
    from (
      select format('it is archived up to %s', _partition.archived_position) as reason
      where _partition.archived_position < v_position
      union all
      select format('view %L stands at %s', c.view, c.position)
      from event_store.checkpoints c
      where c.partition = v_partition and c.position < v_position
      union all
      select format('%s reads it from %s for view %L', c.lease_owner, c.leased_from, c.view)
      from event_store.checkpoints c
      -- also an expired lease: it can still be committed (require_leases)
      where c.partition = v_partition and c.leased_from < v_position and c.lease_owner is not null
      union all
      select format('stream (%s, %s) has a lock in view %L', k.decider, k.decider_id, k.view)
      from event_store.stream_locks k
      -- its first event is enough: a stream's later events are later in the log
      cross join lateral (
        select e."offset"
        from event_store.events e
        where e.decider_id = k.decider_id and e.decider = k.decider
          and e.version > k.last_version and e."offset" > k.last_offset
        order by e.version
        limit 1
      ) held
      join event_store.event_log l on l."offset" = held."offset" and l.position < v_position
      where k.partition = v_partition
      limit 10
    ) needed;
  end if;
  if _needed is not null then
    raise exception 'history is still needed'
      using
        errcode = 'MR020',
        detail = format('log partition %s below %s: %s', v_partition, v_position, _needed),
        hint = 'Archive it, let the views consume it, settle their dead letters, give back leases of dead owners (release_owner), or remove views that are not used (unregister_view). What an open transaction does ends with it.';
  end if;

  update event_store.log_partitions set earliest_position = v_position where partition = v_partition and earliest_position < v_position;
  if found then
    perform event_store_private.audit(
      'raise_low_water_mark', null, v_reason,
      jsonb_build_object('partition', v_partition, 'from_position', _partition.earliest_position, 'to_position', v_position)
    );
  end if;
  return greatest(_partition.earliest_position, v_position);
end
$$;

comment on function event_store_platform.raise_low_water_mark(int, bigint, text) is
'Lets the log of v_partition begin at v_position, and returns where it begins: purge_events may delete events below. '
'Only archived events that no view needs are given up; audited with v_reason. MR005 v_position is null, or the '
'transaction is not READ COMMITTED; MR013 unknown log partition; MR015 v_position lies outside of the log; MR020 it '
'is not archived, or a view needs it.';
revoke all on function event_store_platform.raise_low_water_mark(int, bigint, text) from public;
grant execute on function event_store_platform.raise_low_water_mark(int, bigint, text) to event_store_owner;
