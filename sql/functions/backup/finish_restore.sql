-- It checks that each log partition holds exactly its range, that every event is where its stream belongs and that no
-- stream lacks a version; it sets the marks and all sequences beyond the loaded numbers, and bases the sequencer on
-- this cluster. Load events with transaction_id 3, the first that a cluster gives out: it counts as committed long ago.
create or replace function event_store_platform.finish_restore(
  v_partition int[],
  v_earliest_position bigint[],
  v_high_water_mark bigint[],
  v_last_offset bigint,
  v_lease_token bigint,
  v_detail jsonb
)
returns bigint
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _partitions bigint;
  _events bigint;
  _fault text;
  _table regclass;
begin
  -- visible only to the transaction of begin_restore, which cannot commit it
  if (select sequenced_at from event_store.sequencer) <> 'infinity' then
    perform event_store_private.refuse_request('no restore has begun in this transaction', 'Call begin_restore first.');
  end if;
  -- a sequence at its end gives out no more numbers
  if greatest(
      v_last_offset, v_lease_token, (select max("offset") from event_store.events), (select max(last_offset) from event_store.purged_streams)
    ) > 4611686018427387904
    or (v_last_offset >= 0 and v_lease_token >= 0) is not true
  then
    perform event_store_private.refuse_request(
      format('v_last_offset is %s, v_lease_token %s', v_last_offset, v_lease_token), 'No store gave out more than 4611686018427387904.'
    );
  end if;
  -- Purged events may be there again, from the archive.
  update event_store.purged_streams p
  set last_event_id = e.previous_id, last_offset = e."offset" - 1, version = e.version - 1, final = false
  from (
    select distinct on (decider_id, decider) decider, decider_id, previous_id, "offset", version
    from event_store.events
    order by decider_id, decider, version
  ) e
  where p.decider_id = e.decider_id and p.decider = e.decider and e.version <= p.version and e.version > 1
    and e.previous_id is not null; -- otherwise it is refused below
  delete from event_store.purged_streams p
  using event_store.events e
  where e.decider_id = p.decider_id and e.decider = p.decider and e.version = 1;
  select count(*) into _partitions from event_store.partitions;
  select count(*) into _events from event_store.events;

  select string_agg(fault, '; ') into _fault
  from (
    -- The primary key has each position once: if the count fits first and last, none is missing.
    select format(
      'log partition %s holds %s events from %s to %s, not %s to %s',
      coalesce(w.partition, l.partition), coalesce(l.events, 0), l.first, l.last + 1, w.earliest_position, w.high_water_mark
    ) as fault
    from unnest(v_partition, v_earliest_position, v_high_water_mark) w(partition, earliest_position, high_water_mark)
    full join (
      select partition, count(*) as events, min(position) as first, max(position) as last
      from event_store.event_log
      group by partition
    ) l using (partition)
    where (w.earliest_position <= w.high_water_mark and w.partition between 0 and _partitions - 1) is not true
      or coalesce(l.events, 0) <> w.high_water_mark - w.earliest_position
      or l.first <> w.earliest_position
      or l.last <> w.high_water_mark - 1
    union all
    select format('%s log partitions are stated, of %s', cardinality(v_partition), _partitions)
    where (select count(distinct p) from unnest(v_partition) p) <> _partitions
    union all
    select format('%s events and %s positions of the log', _events, (select count(*) from event_store.event_log))
    where _events <> (select count(*) from event_store.event_log)
    union all
    (
      select format('event %s has no position in log partition %s', e."offset", event_store.stream_partition(e.decider_id, _partitions))
      from event_store.events e
      left join event_store.event_log l using ("offset")
      where l.partition is distinct from event_store.stream_partition(e.decider_id, _partitions)
      limit 3
    )
    union all
    (
      -- Each version is there once (events_stream_key): if the count fits first and last, none is missing.
      select format(
        'stream (%s, %s) has %s events of versions %s to %s, purged up to %s', decider, decider_id, e.events, e.first, e.last,
        coalesce(p.version, 0)
      )
      from (
        select decider, decider_id, count(*) as events, min(version) as first, max(version) as last
        from event_store.events
        group by decider_id, decider
      ) e
      left join event_store.purged_streams p using (decider_id, decider)
      where e.first <> coalesce(p.version, 0) + 1 or e.events <> e.last - e.first + 1
      limit 3
    )
    union all
    (
      select format(
        'event_id %s at offset %s is version %s of its stream and follows %s', event_id, "offset", version, coalesce(previous_id::text, 'none')
      )
      from (
        select e.event_id, e."offset", e.version, e.previous_id, l.position, lag(e.event_id) over stream as id_before,
          lag(e."offset") over stream as offset_before, lag(l.position) over stream as position_before
        from event_store.events e
        join event_store.event_log l using ("offset")
        window stream as (partition by e.decider_id, e.decider order by e.version)
      ) chained
      where (version = 1) <> (previous_id is null) or previous_id <> id_before or "offset" <= offset_before
        or position <= position_before
      limit 3
    )
    union all
    (
      -- no key enforces one of these either
      select format('producer %L, partition %s has %s rows of progress', p.producer_id, p.partition, count(g.producer_id))
      from event_store.producers p
      left join event_store.producer_progress g using (producer_id, partition)
      group by p.producer_id, p.partition
      having count(g.producer_id) <> 1
      limit 3
    )
    union all
    (
      select format('producer %L, partition %s has %s values of state %L', s.producer_id, s.partition, count(*), s.key)
      from event_store.producer_state s
      group by s.producer_id, s.partition, s.key
      having count(*) > 1
      limit 3
    )
    union all
    (
      -- No key enforces one: see checkpoints. In a log partition without one the view would never get an event.
      select format('view %L has %s checkpoints in log partition %s', v.view, count(c.view), p.partition)
      from event_store.views v
      cross join event_store.log_partitions p
      left join event_store.checkpoints c on c.view = v.view and c.partition = p.partition
      group by v.view, p.partition
      having count(c.view) <> 1
      limit 3
    )
    union all
    (
      select format('view %L stands at %s of log partition %s, which ends at %s', c.view, c.position, c.partition, w.high_water_mark)
      from event_store.checkpoints c
      join unnest(v_partition, v_high_water_mark) w(partition, high_water_mark) using (partition)
      where c.position > w.high_water_mark and not exists (
        -- RESET_TO_OFFSET may place a view beyond the log, where it waits.
        select from event_store.audit_log a where a.view = c.view and a.operation = 'seek_view'
      )
      limit 3
    )
  ) faults;
  if _fault is not null then
    raise exception 'what was loaded is not whole'
      using errcode = 'MR022', detail = _fault, hint = 'Nothing is stored. Restore another backup.';
  end if;

  update event_store.log_partitions p
  set archived_position = w.earliest_position, earliest_position = w.earliest_position, purged_position = w.earliest_position
  from unnest(v_partition, v_earliest_position) w(partition, earliest_position)
  where p.partition = w.partition;
  insert into event_store.dispatches (view) select view from event_store.views;
  perform setval('event_store.events_offset_seq', greatest(1, v_last_offset)), setval('event_store.lease_token_seq', greatest(1, v_lease_token));
  perform event_store_private.advance_sequences();
  -- the store of the backup may still append them
  update event_store.schedule
  set held_until = 'infinity', held_because = 'this store was restored from a backup'
  where exists (select from event_store.scheduled_events s where s.done_at is null);
  update event_store.sequencer
  set
    snapshot = event_store_private.committed_snapshot(),
    cluster = (select system_identifier from pg_control_system()),
    sequenced_at = '-infinity';
  perform event_store_private.audit('restore', null, null, v_detail);

  foreach _table in array event_store_private.restore_tables() loop
    -- Not from the owner: that would take the right from the store's own functions.
    if not pg_has_role(event_store_private.caller_role(), (select relowner from pg_class where oid = _table), 'usage') then
      execute format('revoke insert on %s from %I', _table, event_store_private.caller_role());
    end if;
  end loop;
  return _events;
end
$$;

comment on function event_store_platform.finish_restore(int[], bigint[], bigint[], bigint, bigint, jsonb) is
'Checks the rows loaded since begin_restore, opens the store and returns how many events it has. v_partition, '
'v_earliest_position and v_high_water_mark are the log partitions and their marks, v_last_offset and v_lease_token '
'the results of backup_cut; v_detail goes to the audit log. MR005 no restore has begun; MR022 the loaded rows are '
'incomplete.';
revoke all on function event_store_platform.finish_restore(int[], bigint[], bigint[], bigint, bigint, jsonb) from public;
grant execute on function event_store_platform.finish_restore(int[], bigint[], bigint[], bigint, bigint, jsonb)
to event_store_owner;
