-- A read model whose declaration changed: the new version is built beside the one that people read.

alter table read_models.declarations
  add column version int not null default 1,
  add column serves boolean not null default true,
  add column unbuilt int[] not null default '{}',
  drop constraint declarations_pkey,
  add constraint declarations_pkey primary key (model, version),
  add constraint declarations_view_key unique (view);
alter table read_models.declarations
  alter column version drop default,
  alter column serves drop default,
  alter column unbuilt drop default;
create unique index declarations_serving_key on read_models.declarations (model) where serves;

comment on table read_models.declarations is 'The declarations that each model''s tables were made from: of the version that serves, and of one that is built beside it.';
comment on column read_models.declarations.version is 'Counts the declarations of a model, from 1; the tables of later ones have it in their names.';
comment on column read_models.declarations.serves is 'Whether the model''s SQL view shows this version.';
comment on column read_models.declarations.unbuilt is 'The log partitions whose first events are only in the archive, and that no rebuild has read yet.';
comment on column read_models.declarations.view is 'The event store''s view that this version is consumed as.';
