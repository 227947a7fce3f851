-- Every row that the verification read then has the change.
-- Without settings of its own, so that Postgres inlines it into the calling statements.
create or replace function event_store_private.is_before_verification(
  v_change event_store.quarantined_changes,
  v_table event_store.captured_tables
)
returns boolean
language sql
immutable
as $$
  select v_change.source_generation < v_table.backfill_generation
    -- a change from a backfill or a verification has no transaction
    or coalesce(v_change.xid < v_table.published_xid, v_change.after_offset < v_table.backfill_offset)
$$;

comment on function event_store_private.is_before_verification(event_store.quarantined_changes, event_store.captured_tables) is
'Whether a quarantined change was there before a verification of its table began.';
