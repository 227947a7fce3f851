-- The columns of captured tables through time: a change of them is an event, and the table is read anew.

alter table event_store.wal_events drop constraint wal_events_action_is_known;
alter table event_store.wal_events add constraint wal_events_action_is_known check (
  action in ('inserted', 'updated', 'deleted', 'truncated', 'schema_changed')
);
comment on column event_store.wal_events.decider_id is
'The row''s key, a JSON array; [] for a truncation, schema for a change of the columns; null where it could not be read.';
comment on column event_store.wal_events.action is
'inserted, updated, deleted, truncated or schema_changed: the event''s name.';
comment on column event_store.change_events.action is
'inserted, updated, deleted, truncated, schema_changed or backfilled.';

alter table event_store.captured_tables add column schemas jsonb not null default '[]';
alter table event_store.captured_tables add column read_columns jsonb;
alter table event_store.captured_tables add column columns_lsn pg_lsn;
alter table event_store.captured_tables add column read_lsn pg_lsn;
alter table event_store.captured_tables add column leaves bigint[];
comment on column event_store.captured_tables.schemas is
'The columns and the replica identity that the table had, each from a position of the log on: an array of {generation, '
'lsn, idx, identity, columns} in the order of positions. One that no replay reaches any more is left out.';
comment on column event_store.captured_tables.read_columns is
'The columns that the rows have which the log of events holds, or which the backfill reads; null while unknown.';
comment on column event_store.captured_tables.columns_lsn is 'From where in the source''s log read_columns are.';
comment on column event_store.captured_tables.read_lsn is
'The backfill began to read behind this position of the source''s log: it saw what changed the columns before.';
comment on column event_store.captured_tables.leaves is
'The ids of its partitions that hold rows, when they were last looked at; null while that was never.';
