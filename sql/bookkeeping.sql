-- The store's schemas and the table of applied migrations. Run before the migrations of an empty database.

create schema if not exists event_store;
comment on schema event_store is
'Events, their order, and how far each view has consumed them. Services and consumers call its functions.';

create schema if not exists event_store_platform;
comment on schema event_store_platform is
'The functions that Millrace''s own processes and operators call.';

create schema if not exists event_store_private;
comment on schema event_store_private is
'Helpers of the functions in event_store and event_store_platform. No role may use it.';

create table event_store.migrations (
  version int not null,
  name text not null,
  applied_at timestamptz not null default clock_timestamp(),
  constraint migrations_pkey primary key (version)
);
comment on table event_store.migrations is
'Which migrations are applied. Version 0 stands for roles, functions and privileges; its name is their hash.';
comment on column event_store.migrations.version is 'The migration''s number.';
comment on column event_store.migrations.name is
'The migration''s file, or for version 0 the hash of roles, functions and privileges.';
comment on column event_store.migrations.applied_at is 'When it was applied.';
