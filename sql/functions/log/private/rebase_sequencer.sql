-- After a restore into another cluster the stored transaction ids are not its own: they may lie in its future, where
-- they would hide events now and collide with new transactions later. Events without a position are stamped as appended
-- by this transaction, so the next call sequences them; those that have one as long done (3 is the first id that a
-- cluster gives out), where their id is not in this cluster's past anyway. Called by sequence_events with the
-- sequencer's row locked. It reads all events once.
create or replace function event_store_private.rebase_sequencer()
returns void
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
declare
  -- before the update: what commits while that runs is new to the next call
  _committed constant pg_snapshot := event_store_private.committed_snapshot();
begin
  perform set_config('event_store.rebasing', 'on', true);
  update event_store.events e
  set transaction_id = case when l."offset" is null then pg_current_xact_id() else '3'::xid8 end
  from event_store.events x
  left join event_store.event_log l using ("offset")
  where e."offset" = x."offset"
    and (l."offset" is null or e.transaction_id >= pg_snapshot_xmin(_committed));
  perform set_config('event_store.rebasing', 'off', true);
  update event_store.sequencer
  set snapshot = _committed, cluster = (select system_identifier from pg_control_system());
  raise notice 'event_store was restored from another cluster; its transaction ids were re-based';
end
$$;

comment on function event_store_private.rebase_sequencer() is
'Re-bases stored transaction ids after a restore into another cluster.';
