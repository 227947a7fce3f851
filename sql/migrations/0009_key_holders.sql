-- Where the files of keys are: a rotation needs to know which folders have the next one, and which still have the last.

create table event_store_keys.holders (
  host text not null,
  folder text not null,
  epochs int[] not null,
  seen_at timestamptz not null,
  constraint holders_pkey primary key (host, folder)
);
comment on table event_store_keys.holders is 'The folders of keys, as the programs that use them note them.';
comment on column event_store_keys.holders.host is 'The name of the machine.';
comment on column event_store_keys.holders.folder is 'The folder on it.';
comment on column event_store_keys.holders.epochs is 'The epochs whose files it has.';
comment on column event_store_keys.holders.seen_at is 'When a program noted it last, to a minute.';

alter table event_store_keys.epochs add column confirmed_at timestamptz;
comment on column event_store_keys.epochs.confirmed_at is
'Since when its file is destroyed, and no holder has one; null while one has.';

alter table event_store.audit_log
  drop constraint audit_log_operation_is_known,
  add constraint audit_log_operation_is_known check (
    operation in (
      'seek_view', 'discard_dead_letter', 'retry_dead_letters', 'enable_view', 'unregister_view', 'register_view',
      'end_locks', 'release_owner', 'raise_low_water_mark', 'restore', 'register_producer', 'register_decider_event', 'register_event_schema',
      'register_event_upcast', 'set_decider_owner', 'withdraw_registration',
      'register_capture', 'record_gap', 'mark_archived', 'list_archive_file', 'purge_events', 'migrate',
      'drop_version', 'approve_version', 'requeue_changes', 'discard_change', 'restart_capture', 'unregister_capture', 'set_push_secret',
      'drop_push_secret', 'begin_verification', 'supersede_changes', 'end_log_holder', 'purge_results',
      'begin_key_epoch', 'forget_subject', 'readmit_subject', 'end_key_epoch', 'restore_keys', 'retire_holder'
    )
  );
