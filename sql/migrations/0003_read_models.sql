-- What read models share. Each model's own tables are made from its declaration.

create schema read_models;
comment on schema read_models is 'The read models: one SQL view per model over the table of its rows.';

create table read_models.declarations (
  model text not null,
  version int not null,
  view text not null,
  fingerprint text not null,
  serves boolean not null,
  unbuilt int[] not null,
  approved boolean not null default true,
  declared_at timestamptz not null default clock_timestamp(),
  constraint declarations_pkey primary key (model, version),
  constraint declarations_view_key unique (view)
);
create unique index declarations_serving_key on read_models.declarations (model) where serves;
comment on table read_models.declarations is
'The declarations that each model''s tables were made from: of the version that serves, and of one that is built '
'beside it.';
comment on column read_models.declarations.model is 'The read model.';
comment on column read_models.declarations.version is
'Counts the declarations of a model, from 1; the tables of later ones have it in their names.';
comment on column read_models.declarations.view is 'The event store''s view that this version is consumed as.';
comment on column read_models.declarations.fingerprint is
'The hash of the declaration, a plus, and the hash of the tables'' layout and of the upcast moves that decide what it '
'reads. A declaration with another fingerprint must not write these tables.';
comment on column read_models.declarations.serves is 'Whether the model''s SQL view shows this version.';
comment on column read_models.declarations.unbuilt is
'The log partitions where the first events are only in the archive, and no rebuild has read them yet.';
comment on column read_models.declarations.approved is
'Whether this version may serve once it has caught up; false while it awaits approval (approve_version).';
comment on column read_models.declarations.declared_at is 'When the tables were made, or the version was approved.';

create table read_models.as_of (
  name text not null,
  model text not null,
  mark_id bigint not null,
  marked_at timestamptz not null,
  fingerprint text not null,
  expires_at timestamptz not null,
  built_at timestamptz,
  rows bigint,
  failed_streams bigint,
  constraint as_of_pkey primary key (name),
  constraint as_of_is_built_with_rows check (num_nulls(built_at, rows, failed_streams) in (0, 3))
);
comment on table read_models.as_of is
'Read models as they were at moments of the log. Each has tables and a SQL view of its name, which events never change.';
comment on column read_models.as_of.name is 'The name of its SQL view.';
comment on column read_models.as_of.model is 'The read model.';
comment on column read_models.as_of.mark_id is 'The moment in event_store.log_marks.';
comment on column read_models.as_of.marked_at is 'When the moment was.';
comment on column read_models.as_of.fingerprint is 'The fingerprint of the declaration that builds it: see declarations.';
comment on column read_models.as_of.expires_at is 'From when on it may be removed.';
comment on column read_models.as_of.built_at is 'When it was built; null before that, when its rows mean nothing.';
comment on column read_models.as_of.rows is 'How many rows it has.';
comment on column read_models.as_of.failed_streams is 'How many streams fail at an event: their later events are not in it.';

create table read_models.diffs (
  number bigint generated always as identity,
  name text not null generated always as (model || '_diff_' || number::text) stored,
  model text not null,
  version int not null,
  mark_id bigint,
  partition int,
  fingerprint text not null,
  marks bigint[] not null,
  taken_at timestamptz not null,
  waiting_streams bigint not null,
  expires_at timestamptz not null,
  compared_at timestamptz,
  found jsonb,
  constraint diffs_pkey primary key (number),
  constraint diffs_is_compared_with_findings check (num_nulls(compared_at, found) in (0, 2))
);
comment on table read_models.diffs is
'Comparisons of a changed declaration with the rows that serve. Each has a table of its name with the rows that differ.';
comment on column read_models.diffs.number is 'Rises with time.';
comment on column read_models.diffs.name is 'The name of its table.';
comment on column read_models.diffs.model is 'The read model.';
comment on column read_models.diffs.version is 'The version of the model that served.';
comment on column read_models.diffs.mark_id is 'The moment in event_store.log_marks; null for where the serving version stood.';
comment on column read_models.diffs.partition is 'The log partition that is the sample; null for all.';
comment on column read_models.diffs.fingerprint is 'The fingerprint of the declaration that is compared: see declarations.';
comment on column read_models.diffs.marks is 'Up to which position of each log partition both sides have the events.';
comment on column read_models.diffs.taken_at is 'When the marks were taken.';
comment on column read_models.diffs.waiting_streams is 'How many streams had failed in the serving version and kept older rows.';
comment on column read_models.diffs.expires_at is 'From when on it may be removed.';
comment on column read_models.diffs.compared_at is 'When it was compared; null before that.';
comment on column read_models.diffs.found is 'How many rows differ, and in which columns.';

-- Not in read_models, where owners may write: only lock_model uses it.
create table event_store.model_locks (
  model text not null,
  constraint model_locks_pkey primary key (model)
);
comment on table event_store.model_locks is
'Always empty: lock_model inserts a read model and deletes it again, so that other callers wait.';
comment on column event_store.model_locks.model is 'The read model.';

create table read_models.feeds (
  model text not null,
  epoch bigint not null,
  tells boolean not null,
  key text[] not null,
  columns text[] not null,
  constraint feeds_pkey primary key (model)
);
comment on table read_models.feeds is 'The read models whose changes are told as events of the decider `model:<name>`.';
comment on column read_models.feeds.model is 'The read model.';
comment on column read_models.feeds.epoch is 'Rises where many rows change at once; events of lower epochs no longer count.';
comment on column read_models.feeds.tells is 'Whether the declaration still has a feed.';
comment on column read_models.feeds.key is 'The columns by which its rows are told apart.';
comment on column read_models.feeds.columns is 'The columns that are told: all but those of other read models.';

create sequence read_models.batch_seq;
comment on sequence read_models.batch_seq is 'Numbers the batches of staged rows.';
