-- A table that cannot be captured stops itself and no other one.

alter table event_store.captured_tables add column stopped_reason text;
alter table event_store.captured_tables add column stopped_at timestamptz;
alter table event_store.captured_tables add constraint captured_tables_stop_for_a_reason check (
  (stopped_reason is null) = (stopped_at is null)
);
alter table event_store.captured_tables add constraint captured_tables_stopped_are_not_published check (
  stopped_reason is null or published_xid is null
);
comment on column event_store.captured_tables.stopped_reason is
'Why the table is not captured, and the remedy; null while it is. It is read anew once it is captured again.';
comment on column event_store.captured_tables.stopped_at is 'Since when it is not captured; null while it is.';
