-- The archive: which Parquet files hold the log outside of this database.

create table event_store.archive (
  singleton boolean not null default true,
  archive_id uuid not null default gen_random_uuid(),
  constraint archive_pkey primary key (singleton),
  constraint archive_has_one_row check (singleton)
);
comment on table event_store.archive is
'The archive that belongs to this store: files of another store are neither read nor removed.';
comment on column event_store.archive.singleton is 'Always true: there is one row.';
comment on column event_store.archive.archive_id is
'The id that the root of the archive, and a backup, must bear to count as this store''s.';
insert into event_store.archive default values;

create table event_store.archive_locks (
  partition int not null,
  owner text not null,
  pid int not null,
  session_began_at timestamptz,
  locked_until timestamptz not null,
  constraint archive_locks_pkey primary key (partition),
  constraint archive_locks_partition_fkey foreign key (partition) references event_store.log_partitions (partition)
) with (fillfactor = 50);
comment on table event_store.archive_locks is 'The process that writes the archive of each log partition (lock_archive).';
comment on column event_store.archive_locks.partition is 'The log partition.';
comment on column event_store.archive_locks.owner is 'The writer, as it calls itself.';
comment on column event_store.archive_locks.pid is 'Its session: the lock ends with it.';
comment on column event_store.archive_locks.session_began_at is
'When that session began, which tells it from a later one of the same pid; null where Postgres hides it.';
comment on column event_store.archive_locks.locked_until is
'When the lock ends unless it is taken again: behind a connection pool a session outlives its writer.';

create table event_store.archive_fields (
  field text collate "C" not null,
  field_id int not null,
  constraint archive_fields_pkey primary key (field),
  constraint archive_fields_field_id_key unique (field_id),
  constraint archive_fields_follow_the_log_columns check (field_id >= 1000)
);
comment on table event_store.archive_fields is
'The number that each field of data has as a column of the archive''s files. Rows are never changed or removed.';
comment on column event_store.archive_fields.field is 'The field.';
comment on column event_store.archive_fields.field_id is 'Its number: Parquet''s field_id, in each file.';

create table event_store.archive_files (
  partition int not null,
  from_position bigint not null,
  to_position bigint not null,
  path text not null,
  events bigint not null,
  bytes bigint not null,
  checksum text not null,
  archived_at timestamptz not null,
  constraint archive_files_pkey primary key (partition, from_position),
  constraint archive_files_path_key unique (path),
  constraint archive_files_partition_fkey foreign key (partition) references event_store.log_partitions (partition),
  constraint archive_files_hold_something check (0 <= from_position and from_position < to_position and bytes > 0),
  constraint archive_files_hold_every_event check (events = to_position - from_position)
);
comment on table event_store.archive_files is
'The files of the archive: written, read back and checked. A file that is not listed is never read.';
comment on column event_store.archive_files.partition is 'The log partition.';
comment on column event_store.archive_files.from_position is 'The first position in the file.';
comment on column event_store.archive_files.to_position is 'The position after the last one in the file.';
comment on column event_store.archive_files.path is 'Where the file is, below the root of the archive.';
comment on column event_store.archive_files.events is 'How many events the file holds.';
comment on column event_store.archive_files.bytes is 'The size of the file.';
comment on column event_store.archive_files.checksum is 'The SHA-256 of the file, in hexadecimal digits.';
comment on column event_store.archive_files.archived_at is 'When the file was listed.';
