-- Which drains are under way, and how the last ones went: sensors start drains by it, and by nothing that Dagster knows.

create table event_store.drains (
  drain text collate "C" not null,
  asked_at timestamptz,
  began_at timestamptz,
  owner text,
  failures int not null default 0,
  error text,
  ended_at timestamptz,
  constraint drains_pkey primary key (drain)
) with (fillfactor = 50);
comment on table event_store.drains is
'Each drain of a view, of all views together, or of a capture: whether one is under way, and how the last ones ended.';
comment on column event_store.drains.drain is
'The view, as it is declared, or the capture; empty for the drain of all views.';
comment on column event_store.drains.asked_at is 'When it was asked for, or began; null where none is under way.';
comment on column event_store.drains.began_at is 'When its run began; null while it is only asked for.';
comment on column event_store.drains.owner is
'The run that began last; null where it has said that it ended. One that lost its connection may come back.';
comment on column event_store.drains.failures is 'How many tries failed in a row.';
comment on column event_store.drains.error is 'Why the last try failed; null where it did not.';
comment on column event_store.drains.ended_at is 'When the last try ended.';
