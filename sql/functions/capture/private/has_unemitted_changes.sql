-- Whether a capture has stored changes that are neither events nor in the quarantine.
create or replace function event_store_private.has_unemitted_changes(
  v_capture event_store.captures
)
returns boolean
language plpgsql
volatile -- sees what the caller stored
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered once
begin
  return exists (
    select from event_store.wal_events w
    where w.source_generation = v_capture.source_generation
      and (w.commit_lsn, w.commit_idx) > (v_capture.emitted_lsn, v_capture.emitted_idx)
      and w.commit_lsn < v_capture.stored_lsn
  );
end
$$;

comment on function event_store_private.has_unemitted_changes(event_store.captures) is
'Whether a capture has stored changes that are not emitted.';
