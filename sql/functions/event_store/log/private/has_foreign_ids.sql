-- They are those of another cluster, or of a future that this one has not reached: rebase_sequencer must run. Or the
-- store was copied without its sequences. Ids alone do not tell: the new cluster may have overtaken the old one's
-- before the first call. Plans are sequence_events' matter, which alone calls it.
create or replace function event_store_private.has_foreign_ids(
  v_sequencer event_store.sequencer
)
returns boolean
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
begin
  return v_sequencer.cluster <> (select system_identifier from pg_control_system())
    or event_store_private.are_sequences_behind()
    or pg_snapshot_xmax(v_sequencer.snapshot) > pg_snapshot_xmax(pg_current_snapshot())
    -- As a range: to look for the newest id would read the events of an open transaction, which nobody sees.
    or exists (
      select from event_store.events e
      where e.transaction_id >= pg_snapshot_xmax(pg_current_snapshot())
        and e.transaction_id is distinct from pg_current_xact_id_if_assigned()
    );
end
$$;

comment on function event_store_private.has_foreign_ids(event_store.sequencer) is
'Whether stored transaction ids are not this cluster''s, because the store was restored.';
