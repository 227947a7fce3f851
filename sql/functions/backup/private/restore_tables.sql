-- In an order in which each row refers only to rows that are there.
create or replace function event_store_private.restore_tables()
returns regclass[]
language sql
stable
set search_path = event_store, pg_temp
as $$
  select array[
    'event_store.deciders', 'event_store.event_schemas', 'event_store.event_upcasts', 'event_store.purged_streams',
    'event_store.events', 'event_store.event_log', 'event_store.log_marks', 'event_store.views',
    'event_store.checkpoints', 'event_store.stream_locks', 'event_store.scheduled_events', 'event_store.audit_log', 'event_store.producers', 'event_store.producer_progress',
    'event_store.producer_results',
    'event_store.producer_state', 'event_store.source_generations',
    'event_store.quarantined_changes', 'event_store.capture_gaps', 'event_store_keys.epochs', 'event_store_keys.subject_keys',
    'event_store_keys.holders'
  ]::regclass[]
$$;

comment on function event_store_private.restore_tables() is 'The tables that a restore loads.';
