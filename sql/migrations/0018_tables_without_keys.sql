-- A table whose rows nothing names: each row that is inserted is a stream of its own.

comment on column event_store.captured_tables.key_columns is
'The columns that name a row; empty where nothing does, and then no row is read; null while that is unknown.';
comment on column event_store.wal_events.decider_id is
'The row''s key, a JSON array; [] for a truncation, schema for a change of the columns, generation, commit and index where '
'nothing names the rows; null where it could not be read.';
