-- What read models share. Each model's own tables are made from its declaration, see resources/read_model_tables.py.

create schema read_models;
comment on schema read_models is 'The read models: one SQL view per model over its partitioned state.';

create table read_models.declarations (
  model text not null,
  view text not null,
  fingerprint text not null,
  declared_at timestamptz not null default clock_timestamp(),
  constraint declarations_pkey primary key (model)
);
comment on table read_models.declarations is 'The declaration that each model''s tables were made from.';
comment on column read_models.declarations.model is 'The read model.';
comment on column read_models.declarations.view is 'The event store''s view that the model is consumed as.';
comment on column read_models.declarations.fingerprint is 'The hash of the declaration; another declaration must not write these tables.';
comment on column read_models.declarations.declared_at is 'When the tables were made.';

create sequence read_models.batch_seq;
comment on sequence read_models.batch_seq is 'Numbers the batches whose rows are staged.';
