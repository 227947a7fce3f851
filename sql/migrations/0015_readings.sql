-- Readings: tables that are compared with their streams, beside the capture's process, to verify or to repair.

create table event_store.readings (
  backfill_offset bigint not null,
  capture text collate "C" not null,
  schema_name text collate "C" not null,
  table_name text collate "C" not null,
  source_generation int not null,
  published_xid xid8 not null,
  repairs boolean not null,
  finishing_key text collate "C",
  began_at timestamptz not null,
  constraint readings_pkey primary key (backfill_offset),
  constraint readings_table_key unique (capture, schema_name, table_name),
  constraint readings_table_fkey foreign key (capture, schema_name, table_name)
    references event_store.captured_tables (capture, schema_name, table_name) on delete cascade
);
comment on table event_store.readings is
'The captured tables that are being compared with their streams (begin_reading), one reading of a table at a time. One '
'that was killed stays until the next of its table begins.';
comment on column event_store.readings.backfill_offset is
'Its number, an offset that was drawn when it began: what it finds is in unchanged_rows under it.';
comment on column event_store.readings.capture is 'The capture.';
comment on column event_store.readings.schema_name is 'The schema in the source.';
comment on column event_store.readings.table_name is 'The table in the source.';
comment on column event_store.readings.source_generation is 'The slot that was read when it began; with another one it is over.';
comment on column event_store.readings.published_xid is
'It reads in snapshots only that see every older transaction of the source.';
comment on column event_store.readings.repairs is 'Whether what differs becomes events; otherwise it is only counted.';
comment on column event_store.readings.finishing_key is
'Up to which decider_id streams were searched for rows that are gone; null before that.';
comment on column event_store.readings.began_at is 'When it began.';

alter table event_store.audit_log drop constraint audit_log_operation_is_known;
alter table event_store.audit_log add constraint audit_log_operation_is_known check (
  operation in (
    'seek_view', 'discard_dead_letter', 'retry_dead_letters', 'enable_view', 'unregister_view', 'register_view',
    'end_locks', 'release_owner', 'raise_low_water_mark', 'restore', 'register_producer', 'register_decider_event',
    'register_capture', 'record_gap', 'mark_archived', 'list_archive_file', 'purge_events', 'migrate',
    'drop_version', 'requeue_changes', 'discard_change', 'restart_capture', 'unregister_capture', 'set_push_secret',
    'drop_push_secret', 'begin_reading', 'supersede_changes'
  )
);
