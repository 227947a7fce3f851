-- Some numbers were given out and are stored nowhere any more, such as tokens of ended leases. So a sequence that is
-- behind skips a million.
-- Races: one session at a time, and each checks again: a sequence is never set back.
create or replace function event_store_private.advance_sequences()
returns void
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
begin
  perform event_store_private.bound_idle_transaction();
  lock table event_store.purged_streams in share row exclusive mode;
  perform setval(s.name, s.reached + 1000000)
  from (
    values
      (
        'event_store.events_offset_seq'::regclass,
        greatest((select max("offset") from event_store.events), (select max(last_offset) from event_store.purged_streams))
      ),
      (
        'event_store.lease_token_seq',
        greatest(
          (select max(lease_token) from event_store.checkpoints), (select max(lease_token) from event_store.stream_locks),
          (select max(lease_token) from event_store.captures)
        )
      ),
      ('event_store.log_marks_mark_id_seq', (select max(mark_id) from event_store.log_marks)),
      ('event_store.audit_log_audit_id_seq', (select max(audit_id) from event_store.audit_log)),
      ('event_store.quarantined_changes_quarantine_id_seq', (select max(quarantine_id) from event_store.quarantined_changes)),
      ('event_store.capture_gaps_gap_id_seq', (select max(gap_id) from event_store.capture_gaps)),
      -- append_event looks for purged streams only if this sequence shows a purge
      ('event_store.purge_seq', (select 1 from event_store.purged_streams limit 1))
  ) s(name, reached)
  where s.reached > coalesce(pg_sequence_last_value(s.name), 0);
end
$$;

comment on function event_store_private.advance_sequences() is
'Sets the sequences beyond what their tables hold, where they are behind: the store was copied without them.';
