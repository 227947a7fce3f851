-- Another cluster's transaction ids may lie in this one's future, where they would hide events now and collide with new
-- transactions later. So their events get 3, the first id that a cluster gives out, unless the id lies in this
-- cluster's past anyway. Events without a position get one here, in the order of offsets: stamped as one transaction,
-- they could be ordered behind a later event of their stream. Sequences that were not copied are set beyond what their
-- tables hold. sequence_events calls it with the sequencer's row locked. It reads all events once.
create or replace function event_store_private.rebase_sequencer()
returns bigint
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
declare
  -- before the update: transactions that commit while that runs are new to the next call
  _committed constant pg_snapshot := event_store_private.committed_snapshot();
  _partitions constant bigint := (select count(*) from event_store.log_partitions);
  _sequenced bigint;
begin
  perform event_store_private.advance_sequences();
  perform set_config('event_store.rebasing', 'on', true);
  with stamped as (
    update event_store.events e
    set transaction_id = '3'
    from event_store.events x
    left join event_store.event_log l using ("offset")
    where e."offset" = x."offset"
      and case
        -- the caller's own events are not committed yet
        when l."offset" is null then e.transaction_id is distinct from pg_current_xact_id_if_assigned()
        else e.transaction_id >= pg_snapshot_xmin(_committed)
      end
    returning event_store.stream_partition(e.decider_id, _partitions) as partition, e."offset", l."offset" is null as is_new
  )
  insert into event_store.event_log (partition, position, "offset")
  select
    s.partition, p.high_water_mark + row_number() over (partition by s.partition order by s."offset") - 1, s."offset"
  from stamped s
  join event_store.partitions p using (partition)
  where s.is_new
  order by s."offset";
  get diagnostics _sequenced = row_count;
  perform set_config('event_store.rebasing', 'off', true);
  update event_store.sequencer
  set snapshot = _committed, cluster = (select system_identifier from pg_control_system()), is_marked = false;
  raise notice 'event_store was restored from another cluster; its transaction ids were re-based';
  return _sequenced;
end
$$;

comment on function event_store_private.rebase_sequencer() is
'Re-bases stored transaction ids after a restore into another cluster, and sequences events without a position; returns how many.';
