-- Personal data: the keys that seal them, one for each person. A key that is gone takes what it sealed with it.

create schema event_store_keys;
comment on schema event_store_keys is
'The keys of personal data, each wrapped by a key that lies outside of the database. Only the role that migrated may read it, and event_store_owner, for backups.';

create table event_store_keys.epochs (
  epoch int not null,
  fingerprint text not null,
  began_at timestamptz not null,
  destroyed_at timestamptz,
  confirmed_at timestamptz,
  constraint epochs_pkey primary key (epoch),
  constraint epochs_epoch_is_positive check (epoch > 0)
);
comment on table event_store_keys.epochs is
'The keys outside of the database that wrap those of people; the one of the last epoch wraps new ones.';
comment on column event_store_keys.epochs.epoch is 'Its number, from 1.';
comment on column event_store_keys.epochs.fingerprint is 'The SHA-256 of its files, in hexadecimal: files of another store are refused.';
comment on column event_store_keys.epochs.began_at is 'Since when it wraps new keys.';
comment on column event_store_keys.epochs.destroyed_at is 'Since when its file is destroyed; null while it may exist.';
comment on column event_store_keys.epochs.confirmed_at is
'Since when its file is destroyed, and no holder has one; null while one has.';

create table event_store_keys.subject_keys (
  key_id text collate "C" not null,
  subject_mac bytea,
  epoch int not null,
  wrapped bytea,
  created_at timestamptz not null,
  transaction_id xid8 not null default pg_current_xact_id(),
  forgotten_at timestamptz,
  constraint subject_keys_pkey primary key (key_id),
  constraint subject_keys_subject_key unique (subject_mac),
  constraint subject_keys_epoch_fkey foreign key (epoch) references event_store_keys.epochs,
  constraint subject_keys_key_id_fits check (key_id ~ '^[A-Za-z0-9_-]{22}$'),
  constraint subject_keys_lives_or_is_forgotten check ((wrapped is null) = (forgotten_at is not null))
);
comment on table event_store_keys.subject_keys is
'A key for each person whose data are sealed. The row of a forgotten one stays, without the key.';
comment on column event_store_keys.subject_keys.key_id is 'Its name in what it seals: 16 random bytes as base64url.';
comment on column event_store_keys.subject_keys.subject_mac is
'HMAC-SHA-256 of the subject, by a key outside of the database; null once a forgotten subject was admitted again.';
comment on column event_store_keys.subject_keys.epoch is 'The epoch whose key wraps it.';
comment on column event_store_keys.subject_keys.wrapped is 'The key, sealed by its epoch''s key; null once it is forgotten.';
comment on column event_store_keys.subject_keys.created_at is 'When it was made.';
comment on column event_store_keys.subject_keys.transaction_id is
'The transaction that made it: until it has ended, a client keeps the key for no other one.';
comment on column event_store_keys.subject_keys.forgotten_at is 'Since when no program can open what it sealed; null while it lives.';

-- a rotation needs to know which folders have the next file, and which still have the last
create table event_store_keys.holders (
  host text not null,
  folder text not null,
  epochs int[] not null,
  seen_at timestamptz not null,
  constraint holders_pkey primary key (host, folder)
);
comment on table event_store_keys.holders is 'The folders of keys, as the programs that use them note them.';
comment on column event_store_keys.holders.host is 'The name of the machine.';
comment on column event_store_keys.holders.folder is 'The folder on it.';
comment on column event_store_keys.holders.epochs is 'The epochs whose files it has.';
comment on column event_store_keys.holders.seen_at is 'When a program noted it last, to a minute.';
