-- The row of sequencer is the single writer's lock.
--
-- New events are those that became visible since the stored snapshot: of transactions that began after it (at or above
-- its xmax), and of those that were in progress in it (fresh_transactions). So the events of an open transaction, here
-- or in another database, are not read before it ends, and no event is read twice.
--
-- All events of a transaction become visible at once, so one call takes them all. It orders them by the greatest offset
-- of their transaction, then by their own. This inverts no stream. Let e1 come before e2 in a stream. In one
-- transaction their own offsets decide. In two, e2's offset was drawn after e2's writer saw e1, so after e1's
-- transaction had drawn its last offset and committed. The greatest offset of e2's transaction is at least e2's, which
-- is above all of e1's transaction. Savepoints that are rolled back take their offsets along, and a prepared
-- transaction is seen once it is committed: neither changes this.
--
-- Once a minute, if the log grew, a call records the high-water marks (log_marks). It takes whole transactions, so the
-- marks divide none.
--
-- A call with nothing new takes no lock and writes nothing: it has no transaction id, and no commit that waits for the
-- disk. At most twice a second, though, a call notes when it looked and up to where.
create or replace function event_store_platform.sequence_events()
returns bigint
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
-- a few marks are joined to many events, also where a caller plans by index only
set enable_hashjoin = on
as $$
-- planner: indexed ordered once
declare
  _now constant timestamptz := event_store_private.clock();
  _last event_store.sequencer;
  _looked_at bigint;
  _foreign boolean;
  _committed pg_snapshot;
  _partitions bigint;
  _sequenced bigint;
  _is_marked boolean;
begin
  -- Look first: a lock takes a transaction id. Events that another session is about to sequence count as new here.
  select * into _last from event_store.sequencer where singleton order by revision desc limit 1;
  _looked_at := _last.revision;
  _foreign := event_store_private.has_foreign_ids(_last);
  if _last.sequenced_at between _now - interval '500 milliseconds' and _now + interval '500 milliseconds'
    and not _foreign
    and not event_store_private.has_fresh_events(_last.snapshot, event_store_private.committed_snapshot())
  then
    return 0;
  end if;

  -- the newest version of the row; a session that has changed it since is sequencing
  select * into _last from event_store.sequencer
  where singleton and revision = (select q.revision from event_store.sequencer q where q.singleton order by q.revision desc limit 1)
  for update skip locked;
  -- a restore has begun: finish_restore says what is sequenced
  if not found or _last.sequenced_at = 'infinity' then
    return 0;
  end if;
  -- no other session sequences until this transaction ends
  perform event_store_private.bound_idle_transaction();

  -- not checked again if the row has not changed since the look
  if (_foreign or _last.revision <> _looked_at) and event_store_private.has_foreign_ids(_last) then
    return event_store_private.rebase_sequencer();
  end if;

  -- taken after the lock, so that it is not older than the stored one
  _committed := event_store_private.committed_snapshot();
  _partitions := (select count(*) from event_store.log_partitions);

  with fresh as (
    select e.partition, e."offset", e.last_offset
    from event_store_private.fresh_transactions(_last.snapshot, _committed) f
    cross join lateral (
      -- the index gives the events of a transaction together: nothing is sorted for this
      select x.partition, x."offset", max(x."offset") over (partition by x.transaction_id) as last_offset
      from (
        select event_store.stream_partition(n.decider_id, _partitions) as partition, n."offset", n.transaction_id
        from event_store.events n
        where n.transaction_id >= f.from_id and n.transaction_id < f.before_id
        offset 0 -- narrow rows, without data
      ) x
      offset 0 -- a look-up for each range, never all events once
    ) e
  ), marks as materialized (
    select p.partition, p.high_water_mark as first_position from event_store.partitions p
  )
  insert into event_store.event_log (partition, position, "offset")
  select
    f.partition,
    m.first_position + row_number() over (partition by f.partition order by f.last_offset, f."offset") - 1,
    f."offset"
  from fresh f
  join marks m using (partition)
  order by f.last_offset, f."offset"; -- both indexes then grow at their right ends
  get diagnostics _sequenced = row_count;

  -- also where the clock was set back: then the last look counts as not noted
  if _sequenced > 0 or _last.sequenced_at not between _now - interval '500 milliseconds' and _now + interval '500 milliseconds' then
    _is_marked := _last.is_marked and _sequenced = 0;
    -- also for events that came within a minute of the last mark and were followed by none
    if not _is_marked and _now not between _last.marked_at and _last.marked_at + interval '1 minute' then
      perform event_store_private.add_mark(null);
      _last.marked_at := _now;
      _is_marked := true;
    end if;
    -- Stores the snapshot, too: each call would look at what was in progress in an old one, until an event is new.
    update event_store.sequencer
    set
      snapshot = _committed, sequenced_at = _now, revision = revision + 1, marked_at = _last.marked_at, is_marked = _is_marked
    where singleton and revision = _last.revision;
  end if;
  return _sequenced;
end
$$;

comment on function event_store_platform.sequence_events() is
'Gives every committed event its position, dense in its log partition and rising along each stream, and returns how '
'many got one. The events of a transaction lie together in each log partition. One session at a time sequences: while '
'another one does, it returns 0 at once. An open transaction delays only its own events.';
revoke all on function event_store_platform.sequence_events() from public;
grant execute on function event_store_platform.sequence_events() to event_store_consumer, event_store_owner;
