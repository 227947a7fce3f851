-- A table that is read anew is compared with its events: rows that are as their streams say make none.

create table event_store.unchanged_rows (
  backfill_offset bigint not null,
  decider_id text collate "C" not null,
  constraint unchanged_rows_pkey primary key (backfill_offset, decider_id)
);
comment on table event_store.unchanged_rows is
'The rows that a backfill which is under way found as their streams say: they made no event, and are not gone. Empty '
'when no table is read anew.';
comment on column event_store.unchanged_rows.backfill_offset is 'The backfill.';
comment on column event_store.unchanged_rows.decider_id is 'The row''s key, a JSON array.';

alter table event_store.captured_tables add column unchanged_rows bigint not null default 0;
alter table event_store.captured_tables add column gone_rows bigint not null default 0;
comment on column event_store.captured_tables.unchanged_rows is
'How many of the rows that the backfill has read were as their streams say.';
comment on column event_store.captured_tables.gone_rows is
'How many streams the end of the backfill found whose rows are gone.';
