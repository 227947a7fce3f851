-- Stages events, a JSON array as append_events takes it. Whether they fit is known at the commit, where they are
-- appended.
create or replace function event_store.add_events(
  v_transaction_id uuid,
  v_events jsonb
)
returns void
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
-- by index, tables with or without statistics
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
begin
  perform event_store_private.parse_events(v_events);
  perform event_store_private.stage_change(v_transaction_id, null, null, v_events);
end
$$;

comment on function event_store.add_events(uuid, jsonb) is
'Stages events for the commit of a transaction; v_events is as for append_events, and whether they fit is known at '
'the commit. MR005 v_events is malformed, or an argument is null; MR024 another instance of the producer registered; '
'MR026 unknown transaction; MR027 the transaction has ended; MR034 a decider belongs to a capture.';
revoke all on function event_store.add_events(uuid, jsonb) from public;
grant execute on function event_store.add_events(uuid, jsonb) to event_store_writer, event_store_owner;
