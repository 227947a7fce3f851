-- Such ids are another cluster's, or of a future that this one has not reached, or the store was copied without its
-- sequences: rebase_sequencer must run. Ids alone do not tell: the new cluster may have overtaken the old one's before
-- the first call. Only sequence_events calls this, and sets how it is planned.
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
    -- As a range: a search for the newest id would read the events of an open transaction, which are invisible here.
    or exists (
      select from event_store.events e
      where e.transaction_id >= pg_snapshot_xmax(pg_current_snapshot())
        and e.transaction_id is distinct from pg_current_xact_id_if_assigned()
    );
end
$$;

comment on function event_store_private.has_foreign_ids(event_store.sequencer) is
'Whether stored transaction ids are not this cluster''s, because the store was restored.';
