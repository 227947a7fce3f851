-- The first backfill of a table: nothing tells of its rows yet, so nothing is compared and no stream is searched.

alter table event_store.captured_tables add column is_new boolean not null default false;
comment on column event_store.captured_tables.is_new is
'Whether no event told of the table before the capture''s first slot, which was made after its publication, and its rows were not read anew since.';

create type event_store_private.read_row as (
  number bigint,
  decider_id text collate "C",
  event_id uuid,
  command_id uuid,
  data jsonb,
  fault text
);
comment on type event_store_private.read_row is
'A row of a captured table as it was read, and the event that it would be; number is its place among those of a call.';
