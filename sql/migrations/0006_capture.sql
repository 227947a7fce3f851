-- Change capture: what was read from the logs of source databases, on its way to becoming events.

-- Captures ---------------------------------------------------------------------------------------------------

create table event_store.source_generations (
  source_generation int not null,
  capture text collate "C" not null,
  system_identifier text not null,
  database text not null,
  slot text not null,
  start_lsn pg_lsn not null,
  began_at timestamptz not null,
  constraint source_generations_pkey primary key (source_generation)
);
create index source_generations_capture_idx on event_store.source_generations (capture, source_generation);
comment on table event_store.source_generations is
'Each replication slot that a capture ever read. Rows are never removed and numbers never given out twice, so no '
'event_id ever stands for two changes.';
comment on column event_store.source_generations.source_generation is 'Rises with every slot of any capture, from 1.';
comment on column event_store.source_generations.capture is 'The capture.';
comment on column event_store.source_generations.system_identifier is
'The cluster of the source: positions and transaction ids are valid only in it.';
comment on column event_store.source_generations.database is 'The source database.';
comment on column event_store.source_generations.slot is 'The replication slot.';
comment on column event_store.source_generations.start_lsn is 'The position from which the slot gives changes.';
comment on column event_store.source_generations.began_at is 'When the capture began to read it.';

create table event_store.capture_names (
  capture text collate "C" not null,
  constraint capture_names_pkey primary key (capture),
  constraint capture_names_are_short check (capture ~ '^[a-z][a-z0-9_]{0,30}$')
);
comment on table event_store.capture_names is
'The captures that are registered. The lock of a row makes its holder the only writer of that capture. A row is never '
'changed, so that a search for it meets no dead versions.';
comment on column event_store.capture_names.capture is 'The capture''s name.';

create table event_store.captures (
  capture text collate "C" not null,
  revision bigint not null default 0,
  source_generation int,
  slot text not null,
  publication text not null,
  stored_lsn pg_lsn,
  stored_at timestamptz,
  emitted_lsn pg_lsn,
  emitted_idx bigint,
  purged_lsn pg_lsn,
  purged_idx bigint,
  truncating_key text collate "C",
  lease_owner text,
  lease_token bigint not null default 0,
  leased_until timestamptz,
  created_at timestamptz not null,
  updated_at timestamptz not null,
  timelines text collate "C",
  -- one row for each capture, its newest version found first: see checkpoints
  constraint captures_pkey primary key (capture, revision),
  constraint captures_capture_fkey foreign key (capture) references event_store.capture_names (capture) on delete cascade,
  constraint captures_generation_fkey foreign key (source_generation) references event_store.source_generations (source_generation),
  constraint captures_are_named check (slot <> '' and publication <> ''),
  constraint captures_positions_belong_to_a_generation check (
    num_nulls(source_generation, stored_lsn, emitted_lsn, emitted_idx) in (0, 4)
  ),
  constraint captures_purge_what_is_emitted check ((purged_lsn, purged_idx) <= (emitted_lsn, emitted_idx)),
  constraint captures_lease_is_whole check ((lease_owner is null) = (leased_until is null)),
  constraint captures_timelines_are_a_history check (
    timelines ~ '^([1-9][0-9]* [0-9A-F]{1,8}/[0-9A-F]{1,8}, )*[1-9][0-9]*$'
  )
) with (fillfactor = 50);
comment on table event_store.captures is
'The captures: how far each has stored and emitted the changes of its source, and which owner may continue. A session '
'that changes a row holds the lock of its name.';
comment on column event_store.captures.capture is 'The capture.';
comment on column event_store.captures.revision is
'Rises with each call that works on the capture, so that the newest version of the row is found first.';
comment on column event_store.captures.source_generation is 'The slot that is read now; null while there is none yet.';
comment on column event_store.captures.slot is 'The name of the replication slot in the source.';
comment on column event_store.captures.publication is 'The name of the publication in the source.';
comment on column event_store.captures.stored_lsn is 'All that the source committed below this position is stored.';
comment on column event_store.captures.stored_at is 'The source''s time up to which everything is stored.';
comment on column event_store.captures.emitted_lsn is
'The commit position of the last stored change that became an event, or went to the quarantine.';
comment on column event_store.captures.emitted_idx is
'The number within its transaction of that change; -1 before the first.';
comment on column event_store.captures.purged_lsn is
'The commit position of the last change of this generation that was removed from wal_events; null for none.';
comment on column event_store.captures.purged_idx is 'The number within its transaction of that change.';
comment on column event_store.captures.truncating_key is
'Up to which decider_id the rows of a TRUNCATE are emitted as deleted; null while none is under way.';
comment on column event_store.captures.lease_owner is 'The holder of the lease; null where there is none.';
comment on column event_store.captures.lease_token is
'Rises with every lease. Each call that stores or emits states it, which fences out former owners.';
comment on column event_store.captures.leased_until is 'When the lease expires; null where there is none.';
comment on column event_store.captures.created_at is 'When the capture was registered.';
comment on column event_store.captures.updated_at is 'When anything of it last changed.';
comment on column event_store.captures.timelines is
'The timelines of the source''s log, each but the last with the position where the log left it, such as 1 0/3000000, 2;'
' null until the source was asked.';

create table event_store.captured_tables (
  capture text collate "C" not null,
  schema_name text collate "C" not null,
  table_name text collate "C" not null,
  decider text collate "C" not null,
  key_columns text[],
  fingerprint text not null,
  published_xid xid8,
  backfill_offset bigint not null,
  backfill_key text,
  backfilled_rows bigint not null default 0,
  rows_read boolean not null default false,
  finishing_key text collate "C",
  backfill_generation int,
  backfilled_at timestamptz,
  unchanged_rows bigint not null default 0,
  gone_rows bigint not null default 0,
  schemas jsonb not null default '[]',
  read_columns jsonb,
  columns_lsn pg_lsn,
  read_lsn pg_lsn,
  leaves bigint[],
  labels jsonb,
  stopped_reason text,
  stopped_at timestamptz,
  is_new boolean not null default false,
  unread_reason text,
  unread_at timestamptz,
  constraint captured_tables_pkey primary key (capture, schema_name, table_name),
  constraint captured_tables_decider_key unique (decider),
  constraint captured_tables_capture_fkey foreign key (capture) references event_store.capture_names (capture) on delete cascade,
  constraint captured_tables_finish_what_is_read check (rows_read or (finishing_key is null and backfill_generation is null)),
  constraint captured_tables_stop_for_a_reason check ((stopped_reason is null) = (stopped_at is null)),
  constraint captured_tables_are_unread_for_a_reason check ((unread_reason is null) = (unread_at is null)),
  constraint captured_tables_stopped_are_not_published check (stopped_reason is null or published_xid is null)
) with (fillfactor = 50);
comment on table event_store.captured_tables is
'The tables of each capture, and how far the backfill has read the rows from before their changes were captured.';
comment on column event_store.captured_tables.capture is 'The capture.';
comment on column event_store.captured_tables.schema_name is 'The schema in the source.';
comment on column event_store.captured_tables.table_name is 'The table in the source.';
comment on column event_store.captured_tables.decider is
'The decider of the events of the table: each row is a stream.';
comment on column event_store.captured_tables.key_columns is
'The columns that identify a row; empty where none do, and then no row is read; null while unknown.';
comment on column event_store.captured_tables.fingerprint is
'Tells two declarations of the table apart: a changed one is backfilled anew.';
comment on column event_store.captured_tables.published_xid is
'A backfill reads only in snapshots that see every older transaction of the source; null while the publication may '
'not have the table yet.';
comment on column event_store.captured_tables.backfill_offset is
'The last offset that was given out when the backfill began: no two backfills have the same, which tells their events'
' apart.';
comment on column event_store.captured_tables.backfill_key is
'The key of the last row that was read, a JSON array; null for none.';
comment on column event_store.captured_tables.backfilled_rows is 'How many rows the backfill has read.';
comment on column event_store.captured_tables.rows_read is 'Whether every row was read.';
comment on column event_store.captured_tables.finishing_key is
'Up to which decider_id streams were searched for rows that are gone; null before that.';
comment on column event_store.captured_tables.backfill_generation is
'The generation that the finished backfill belongs to; null while it is to be done.';
comment on column event_store.captured_tables.backfilled_at is 'When the last backfill ended.';
comment on column event_store.captured_tables.unchanged_rows is
'How many of the rows that the backfill has read matched their streams.';
comment on column event_store.captured_tables.gone_rows is
'How many streams without a row the end of the backfill found.';
comment on column event_store.captured_tables.schemas is
'The columns and the replica identity that the table had, each from a position of the log on: an array of {generation, '
'lsn, idx, identity, columns} in the order of positions. One that no replay reaches any more is left out.';
comment on column event_store.captured_tables.read_columns is
'The columns of the rows that the event log holds, or that the backfill reads; null while unknown.';
comment on column event_store.captured_tables.columns_lsn is 'The position of the source''s log from which read_columns hold.';
comment on column event_store.captured_tables.read_lsn is
'The backfill began to read behind this position of the source''s log: it saw every earlier change of the columns.';
comment on column event_store.captured_tables.leaves is
'The ids of its partitions that hold rows, when they were last looked up; null if never.';
comment on column event_store.captured_tables.labels is
'The labels of the enums of its columns, by the enums'' ids, when they were last looked up; null if never.';
comment on column event_store.captured_tables.stopped_reason is
'Why the table is not captured, and the remedy; null while it is. Its rows are read anew once it is captured again.';
comment on column event_store.captured_tables.stopped_at is 'Since when it is not captured; null while it is.';
comment on column event_store.captured_tables.is_new is
'Whether the table had no event before the capture''s first slot, which was made after its publication, and its rows were not read anew since.';
comment on column event_store.captured_tables.unread_reason is
'Why its backfill does not proceed, and the remedy; null if it does. Its changes are captured all the while.';
comment on column event_store.captured_tables.unread_at is 'When reading its rows last failed; null if they can be read.';

create table event_store.unchanged_rows (
  backfill_offset bigint not null,
  decider_id text collate "C" not null,
  constraint unchanged_rows_pkey primary key (backfill_offset, decider_id)
);
comment on table event_store.unchanged_rows is
'The rows that a running backfill found to match their streams: they made no event, and are not gone. Empty '
'when no table is read anew.';
comment on column event_store.unchanged_rows.backfill_offset is 'The backfill.';
comment on column event_store.unchanged_rows.decider_id is
'The row''s key, a JSON array; empty for rows with unreadable keys: then no stream counts as one without a row.';

create table event_store.verifications (
  backfill_offset bigint not null,
  capture text collate "C" not null,
  schema_name text collate "C" not null,
  table_name text collate "C" not null,
  source_generation int not null,
  published_xid xid8 not null,
  repairs boolean not null,
  finishing_key text collate "C",
  began_at timestamptz not null,
  constraint verifications_pkey primary key (backfill_offset),
  constraint verifications_table_key unique (capture, schema_name, table_name),
  constraint verifications_table_fkey foreign key (capture, schema_name, table_name)
    references event_store.captured_tables (capture, schema_name, table_name) on delete cascade
);
comment on table event_store.verifications is
'The captured tables that are being compared with their streams (begin_verification), one verification of a table at a time. A '
'killed one stays until the next of its table begins.';
comment on column event_store.verifications.backfill_offset is
'Its number, an offset that was drawn when it began: its findings are in unchanged_rows under this number.';
comment on column event_store.verifications.capture is 'The capture.';
comment on column event_store.verifications.schema_name is 'The schema in the source.';
comment on column event_store.verifications.table_name is 'The table in the source.';
comment on column event_store.verifications.source_generation is 'The slot that was read when it began; a change of the slot ends it.';
comment on column event_store.verifications.published_xid is
'It reads only in snapshots that see every older transaction of the source.';
comment on column event_store.verifications.repairs is 'Whether differences become events; if not, they are only counted.';
comment on column event_store.verifications.finishing_key is
'Up to which decider_id streams were searched for rows that are gone; null before that.';
comment on column event_store.verifications.began_at is 'When it began.';

create type event_store_private.read_row as (
  number bigint,
  decider_id text collate "C",
  event_id uuid,
  command_id uuid,
  data jsonb,
  fault text
);
comment on type event_store_private.read_row is
'A row of a captured table as it was read, and the event that it would be; number is its place among the rows of a call.';

create table event_store.capture_sessions (
  capture text collate "C" not null,
  pid int not null,
  session_began_at timestamptz,
  name text not null,
  constraint capture_sessions_pkey primary key (capture, pid),
  constraint capture_sessions_capture_fkey foreign key (capture) references event_store.capture_names (capture) on delete cascade
);
comment on table event_store.capture_sessions is
'The sessions of a capture''s owner: the next owner ends those of one that hangs (end_capture_sessions).';
comment on column event_store.capture_sessions.capture is 'The capture.';
comment on column event_store.capture_sessions.pid is 'The session.';
comment on column event_store.capture_sessions.session_began_at is
'When it began, which tells it from a later one of the same pid; null where Postgres hides it.';
comment on column event_store.capture_sessions.name is
'Its application_name, which tells it from a later one of the same pid.';

-- Changes ---------------------------------------------------------------------------------------------------

create table event_store.wal_events (
  source_generation int not null,
  commit_lsn pg_lsn not null,
  commit_idx bigint not null,
  xid xid8 not null,
  committed_at timestamptz not null,
  decider text collate "C" not null,
  decider_id text collate "C",
  action text collate "C" not null,
  event_id uuid not null,
  command_id uuid not null,
  data jsonb,
  fault text,
  raw bytea,
  relation bytea,
  stored_at timestamptz not null default now(), -- a volatile default would make COPY store row by row
  constraint wal_events_pkey primary key (source_generation, commit_lsn, commit_idx),
  constraint wal_events_are_counted check (commit_idx >= 0),
  constraint wal_events_action_is_known check (
    action in ('inserted', 'updated', 'deleted', 'truncated', 'schema_changed')
  ),
  constraint wal_events_have_data_or_a_fault check ((data is null) <> (fault is null)),
  constraint wal_events_data_is_an_object check (jsonb_typeof(data) = 'object'),
  constraint wal_events_without_a_key_are_faulty check (decider_id is not null or fault is not null)
);
comment on table event_store.wal_events is
'The changes of captured tables as the source''s log has them, in the order of its commits. They come by COPY and are'
' never changed; store_changes says up to where they are complete.';
comment on column event_store.wal_events.source_generation is 'The slot that it came from.';
comment on column event_store.wal_events.commit_lsn is 'Where the transaction''s commit is in the source''s log.';
comment on column event_store.wal_events.commit_idx is 'The number of the change within its transaction, from 0.';
comment on column event_store.wal_events.xid is 'The transaction in the source.';
comment on column event_store.wal_events.committed_at is 'When the source committed it.';
comment on column event_store.wal_events.decider is 'The decider of the table.';
comment on column event_store.wal_events.decider_id is
'The row''s key, a JSON array; [] for a truncation, schema for a change of the columns, generation, commit and index where '
'nothing names the rows; null where it could not be read.';
comment on column event_store.wal_events.action is
'inserted, updated, deleted, truncated or schema_changed: the event''s name.';
comment on column event_store.wal_events.event_id is
'The event''s identity, made of generation, commit_lsn and commit_idx.';
comment on column event_store.wal_events.command_id is 'What all changes of one source transaction share.';
comment on column event_store.wal_events.data is 'The event''s data; null where the change cannot be read.';
comment on column event_store.wal_events.fault is 'Why the change cannot be read; null where it can.';
comment on column event_store.wal_events.raw is 'The message of a change that cannot be read.';
comment on column event_store.wal_events.relation is 'The message that describes the table, for that change.';
comment on column event_store.wal_events.stored_at is 'When the transaction that stored it began.';

create table event_store.quarantined_changes (
  quarantine_id bigint generated always as identity,
  capture text collate "C" not null,
  source_generation int not null,
  commit_lsn pg_lsn,
  commit_idx bigint,
  xid xid8,
  committed_at timestamptz,
  decider text collate "C" not null,
  decider_id text collate "C",
  action text collate "C" not null,
  event_id uuid not null,
  command_id uuid not null,
  data jsonb,
  fault text,
  raw bytea,
  relation bytea,
  after_offset bigint not null,
  quarantined_at timestamptz not null,
  constraint quarantined_changes_pkey primary key (quarantine_id),
  constraint quarantined_changes_event_id_key unique (event_id),
  constraint quarantined_changes_have_data_or_a_fault check (data is not null or fault is not null),
  constraint quarantined_changes_of_no_stream_are_faulty check (decider_id is not null or fault is not null)
);
create index quarantined_changes_stream_idx on event_store.quarantined_changes (decider_id, decider);
create index quarantined_changes_capture_idx on event_store.quarantined_changes (capture, quarantine_id);
comment on table event_store.quarantined_changes is
'Changes that cannot become events, and the later ones of their streams, which wait behind them in order.';
comment on column event_store.quarantined_changes.quarantine_id is 'Rises along each stream.';
comment on sequence event_store.quarantined_changes_quarantine_id_seq is 'Numbers quarantined_changes.';
comment on column event_store.quarantined_changes.capture is 'The capture.';
comment on column event_store.quarantined_changes.source_generation is 'The slot that it came from.';
comment on column event_store.quarantined_changes.commit_lsn is
'Where the transaction''s commit is in the source''s log; null for a row that a backfill read.';
comment on column event_store.quarantined_changes.commit_idx is
'The number of the change within its transaction; null for a row that a backfill read.';
comment on column event_store.quarantined_changes.xid is
'The transaction in the source; null for a row that a backfill read.';
comment on column event_store.quarantined_changes.committed_at is
'When the source committed it; null for a change that is no message of its log.';
comment on column event_store.quarantined_changes.decider is 'The decider of the table.';
comment on column event_store.quarantined_changes.decider_id is
'The row''s key, a JSON array; null while it is unknown.';
comment on column event_store.quarantined_changes.action is 'The event''s name.';
comment on column event_store.quarantined_changes.event_id is 'The event''s identity.';
comment on column event_store.quarantined_changes.command_id is 'What all changes of one source transaction share.';
comment on column event_store.quarantined_changes.data is 'The event''s data; null where the change cannot be read.';
comment on column event_store.quarantined_changes.fault is
'Why it cannot become an event; null where it only waits behind an earlier change of its stream.';
comment on column event_store.quarantined_changes.raw is 'The message of a change that cannot be read.';
comment on column event_store.quarantined_changes.relation is 'The message that describes the table, for that change.';
comment on column event_store.quarantined_changes.after_offset is
'The last offset that was given out when it was quarantined.';
comment on column event_store.quarantined_changes.quarantined_at is 'When it was quarantined.';

create table event_store.capture_gaps (
  gap_id bigint generated always as identity,
  capture text collate "C" not null,
  source_generation int,
  from_lsn pg_lsn,
  to_lsn pg_lsn,
  reason text not null,
  detected_at timestamptz not null,
  resolved_by_generation int,
  constraint capture_gaps_pkey primary key (gap_id)
);
create unique index capture_gaps_open_key on event_store.capture_gaps (capture) where resolved_by_generation is null;
comment on table event_store.capture_gaps is
'Gaps in the changes of a source. Its tables were read anew after a gap; what happened in between is unknown.';
comment on column event_store.capture_gaps.gap_id is 'Rises with time.';
comment on sequence event_store.capture_gaps_gap_id_seq is 'Numbers capture_gaps.';
comment on column event_store.capture_gaps.capture is 'The capture.';
comment on column event_store.capture_gaps.source_generation is 'The slot that was lost; null where there was none.';
comment on column event_store.capture_gaps.from_lsn is 'Up to here all is stored; null where nothing was.';
comment on column event_store.capture_gaps.to_lsn is 'From here on the source has its log; null where that is unknown.';
comment on column event_store.capture_gaps.reason is 'Why, as a sentence.';
comment on column event_store.capture_gaps.detected_at is 'When it was found.';
comment on column event_store.capture_gaps.resolved_by_generation is
'The slot that continues after it, with a backfill of all tables; null while the gap is open.';

-- Events in the shape of a change, from events alone: they need nothing that purge_wal_events removes. One in another
-- shape, which a restore may bring, is null where it cannot be read and fails no reader of the others. The patterns say
-- [0-9]: in a database with an ICU collation \d matches the digits of every script, which a cast refuses.
create view event_store.change_events as
select
  e."offset" as seq,
  e.event_id,
  t.capture,
  case when e.data -> 'source' ->> 'generation' ~ '^[0-9]{1,9}$' then (e.data -> 'source' ->> 'generation')::int end as source_generation,
  case when e.data ->> 'commit_lsn' ~ '^[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}$' then (e.data ->> 'commit_lsn')::pg_lsn end as commit_lsn,
  case when e.data ->> 'commit_idx' ~ '^[0-9]{1,18}$' then (e.data ->> 'commit_idx')::bigint end as commit_idx,
  case when e.data -> 'source' ->> 'oid' ~ '^[0-9]{1,10}$' then (e.data -> 'source' ->> 'oid')::bigint end as source_table_oid,
  coalesce(e.data -> 'source' ->> 'schema', t.schema_name) as source_table_schema,
  coalesce(e.data -> 'source' ->> 'table', t.table_name) as source_table_name,
  e.decider_id as record_pk,
  e.data -> 'record' as record,
  e.data -> 'changes' as changes,
  e.event as action,
  -- Silently null where it is no time. pg_input_is_valid needs PostgreSQL 16, so the pattern is checked first, then
  -- whether the month has that day: 30 February would fail each reader of the view. No source commits after 9999.
  case
    when e.data ->> 'committed_at' ~ '^(?!0000)[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])[ T]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-](0[0-9]|1[0-4])(:?[0-5][0-9])?)$'
      then case
        when substr(e.data ->> 'committed_at', 9, 2)::int
          <= extract(day from (left(e.data ->> 'committed_at', 7) || '-01')::date + interval '1 month -1 day')
          then (e.data ->> 'committed_at')::timestamptz
      end
  end as committed_at,
  e.data -> 'annotations' as annotations,
  e.created_at as inserted_at
from event_store.events e
join event_store.captured_tables t using (decider);
comment on view event_store.change_events is
'The events of captured tables as changes. seq is unique and rises along each stream; a reader that must miss nothing'
' consumes a view instead.';
comment on column event_store.change_events.seq is 'The event''s offset.';
comment on column event_store.change_events.event_id is 'The event''s identity.';
comment on column event_store.change_events.capture is 'The capture.';
comment on column event_store.change_events.source_generation is 'The slot that it came from.';
comment on column event_store.change_events.commit_lsn is 'Where the transaction''s commit is in the source''s log.';
comment on column event_store.change_events.commit_idx is
'The number of the change within its transaction; null for a row that a backfill read.';
comment on column event_store.change_events.source_table_oid is 'The table''s OID in the source.';
comment on column event_store.change_events.source_table_schema is 'The table''s schema in the source.';
comment on column event_store.change_events.source_table_name is 'The table''s name in the source.';
comment on column event_store.change_events.record_pk is 'The row''s key, a JSON array.';
comment on column event_store.change_events.record is 'The row after the change; for a deleted row, before it.';
comment on column event_store.change_events.changes is 'The old values of the columns that changed.';
comment on column event_store.change_events.action is
'inserted, updated, deleted, truncated, schema_changed or backfilled.';
comment on column event_store.change_events.committed_at is 'When the source committed it.';
comment on column event_store.change_events.annotations is 'What the source''s transaction said about the change.';
comment on column event_store.change_events.inserted_at is 'When the event was appended.';
