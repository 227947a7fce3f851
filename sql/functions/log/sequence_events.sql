-- Gives every committed event a dense position in its log partition, and returns how many got one.
-- The row of sequencer is the single writer's lock: where somebody else holds it, this returns 0 at once.
--
-- What is new since the stored snapshot is what became visible since: transactions that began after it (at or above its
-- xmax), and those that were in progress in it. So an open transaction, here or in another database, delays only its
-- own events, and nothing is read twice. Within one call events are ordered by "offset", which follows each stream.
-- A call with nothing new changes no row, except, twice a second at most, when it looked.
create or replace function event_store.sequence_events()
returns bigint
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
-- A sequencer's session may be as old as the store: a plan that it made for empty tables would scan events ever after.
set enable_seqscan = off
set jit = off
-- nor is it planned for each snapshot anew: a call with nothing new would spend most of its time with that
set plan_cache_mode = force_generic_plan
-- the few marks are joined to many events, also where a caller plans by index only
set enable_hashjoin = on
as $$
declare
  _now constant timestamptz := event_store_private.clock();
  _last event_store.sequencer;
  _committed pg_snapshot;
  _partitions bigint;
  _sequenced bigint;
begin
  -- the newest version of the row; who changed it since is at it
  select * into _last from event_store.sequencer
  where singleton and revision = (select q.revision from event_store.sequencer q where q.singleton order by q.revision desc limit 1)
  for update skip locked;
  -- a restore has begun: finish_restore says what is sequenced
  if not found or _last.sequenced_at = 'infinity' then
    return 0;
  end if;

  -- Transaction ids alone do not tell: the new cluster may have overtaken the old one's before the first call.
  if _last.cluster <> (select system_identifier from pg_control_system())
    or pg_snapshot_xmax(_last.snapshot) > pg_snapshot_xmax(pg_current_snapshot())
    or exists (
      select from (select transaction_id from event_store.events order by transaction_id desc limit 1) newest
      where newest.transaction_id >= pg_snapshot_xmax(pg_current_snapshot())
        and newest.transaction_id is distinct from pg_current_xact_id_if_assigned()
    )
  then
    perform event_store_private.rebase_sequencer();
    return 0;
  end if;

  -- after the lock, so that it is not older than the one our predecessor stored
  _committed := event_store_private.committed_snapshot();
  _partitions := (select count(*) from event_store.log_partitions);

  with fresh as materialized (
    select event_store.stream_partition(e.decider_id, _partitions) as partition, e."offset"
    from event_store.events e
    where e.transaction_id >= pg_snapshot_xmax(_last.snapshot)
      and e.transaction_id < pg_snapshot_xmax(_committed)
      and pg_visible_in_snapshot(e.transaction_id, _committed)
    union all
    select event_store.stream_partition(e.decider_id, _partitions), e."offset"
    from event_store.events e
    where e.transaction_id = any (array(select pg_snapshot_xip(_last.snapshot)))
      and pg_visible_in_snapshot(e.transaction_id, _committed)
  ), marks as materialized (
    select p.partition, p.high_water_mark as first_position from event_store.partitions p
  )
  insert into event_store.event_log (partition, position, "offset")
  select
    f.partition,
    m.first_position + row_number() over (partition by f.partition order by f."offset") - 1,
    f."offset"
  from fresh f
  join marks m using (partition);
  get diagnostics _sequenced = row_count;

  if _sequenced > 0 then
    update event_store.sequencer set snapshot = _committed, sequenced_at = _now, revision = revision + 1
    where singleton and revision = _last.revision;
  elsif _last.sequenced_at < _now - interval '500 milliseconds' then
    update event_store.sequencer set sequenced_at = _now, revision = revision + 1
    where singleton and revision = _last.revision;
  end if;
  return _sequenced;
end
$$;

comment on function event_store.sequence_events() is
'Gives every committed event its position, dense in its log partition and rising along each stream, and returns how '
'many got one. One session at a time does it: where another one is at it, 0 at once. An open transaction delays its '
'own events only.';
revoke all on function event_store.sequence_events() from public;
grant execute on function event_store.sequence_events() to event_store_consumer, event_store_owner;
