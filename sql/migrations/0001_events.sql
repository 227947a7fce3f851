-- Events, their streams and their order. Behaviour lives in sql/functions. From the first release on a table changes
-- only by a later migration; until then it is changed here.

-- Appending -------------------------------------------------------------------------------------------------

create table event_store.deciders (
  decider text collate "C" not null,
  event text collate "C" not null,
  event_version bigint not null default 1,
  description text not null,
  owner text,
  accepts jsonpath,
  seals boolean not null default false,
  registered_by text not null default session_user,
  constraint deciders_pkey primary key (decider, event, event_version),
  constraint deciders_names_fit check (octet_length(decider) <= 1024 and octet_length(event) <= 1024),
  constraint deciders_description_fits check (octet_length(description) <= 10000)
-- each append reads its row: while the row fits a page, accepts stays in it, neither compressed nor moved out
) with (toast_tuple_target = 8160);
comment on table event_store.deciders is
'The kinds of event that each kind of entity (decider) may append. Rows stay unless operators change or release them.';
comment on column event_store.deciders.decider is 'A kind of entity that emits events, such as order.';
comment on column event_store.deciders.event is 'The name of an event that this decider may append.';
comment on column event_store.deciders.event_version is 'The version of the event''s schema.';
comment on column event_store.deciders.description is 'What the event says, for people.';
comment on column event_store.deciders.owner is
'Members of this role or of event_store_owner may append to the decider''s streams; null: every writer may. '
'The same for all events of a decider.';
comment on column event_store.deciders.accepts is
'The predicate that data of the event must meet, compiled from its schema; null where all data pass.';
comment on column event_store.deciders.seals is
'Whether its schema has personal fields: these hold sealed values, whose keys must live.';
comment on column event_store.deciders.registered_by is
'The role that first registered the event, the same for all versions: its members, or those of an owner, set its shapes.';

create table event_store.event_schemas (
  decider text collate "C" not null,
  event text collate "C" not null,
  event_version bigint not null,
  schema jsonb not null,
  checks jsonb not null,
  digest text not null,
  constraint event_schemas_pkey primary key (decider, event, event_version)
);
comment on table event_store.event_schemas is
'The JSON Schemas of events. An append reads them only to say why it is refused. Rows stay until operators withdraw them.';
comment on column event_store.event_schemas.decider is 'The decider.';
comment on column event_store.event_schemas.event is 'The event.';
comment on column event_store.event_schemas.event_version is 'The version of the event that the schema describes.';
comment on column event_store.event_schemas.schema is 'The JSON Schema, with its annotations.';
comment on column event_store.event_schemas.checks is
'Each rule of the schema by itself: where it stands in the schema, where in the data, what it says, and its predicate.';
comment on column event_store.event_schemas.digest is 'SHA-256 of the schema as Postgres writes it, in hexadecimal.';

create table event_store.event_upcasts (
  decider text collate "C" not null,
  event text collate "C" not null,
  to_version bigint not null,
  moves jsonb not null,
  digest text not null,
  constraint event_upcasts_pkey primary key (decider, event, to_version),
  constraint event_upcasts_follow_a_version check (to_version >= 2)
);
comment on table event_store.event_upcasts is
'How data of one version of an event become data of the next. Rows stay until operators withdraw them.';
comment on column event_store.event_upcasts.decider is 'The decider.';
comment on column event_store.event_upcasts.event is 'The event.';
comment on column event_store.event_upcasts.to_version is 'The version that the moves make of data of the version before.';
comment on column event_store.event_upcasts.moves is 'A list of moves, in their order.';
comment on column event_store.event_upcasts.digest is 'SHA-256 of the moves as Postgres writes them, in hexadecimal.';

create sequence event_store.events_offset_seq;
comment on sequence event_store.events_offset_seq is
'Gives events."offset". It leaves gaps on rollback, so it never is a cursor.';

create table event_store.events (
  event text collate "C" not null,
  event_id uuid not null,
  event_version bigint not null default 1,
  decider text collate "C" not null,
  decider_id text collate "C" not null,
  data jsonb not null,
  command_id uuid not null,
  previous_id uuid,
  final boolean not null default false,
  created_at timestamptz not null,
  "offset" bigint not null,
  transaction_id xid8 not null default pg_current_xact_id(),
  version bigint not null,
  metadata jsonb,
  constraint events_pkey primary key ("offset"),
  -- the optimistic lock: of two writers that follow the same event one wins
  constraint events_stream_key unique (decider_id, decider, version),
  constraint events_event_id_key unique (event_id)
);
alter sequence event_store.events_offset_seq owned by event_store.events."offset";
create index events_transaction_id_idx on event_store.events (transaction_id);
create index events_created_at_idx on event_store.events using brin (created_at);
-- has no entry for an event without a correlation
create index events_correlation_idx on event_store.events ((metadata ->> 'correlation_id'), "offset")
where metadata ->> 'correlation_id' is not null;
comment on table event_store.events is 'Every event, once, never changed. Its first eleven columns are fstore-sql''s.';
comment on column event_store.events.event is 'The event''s name, registered in deciders.';
comment on column event_store.events.event_id is 'The event''s identity. Appending it again stores nothing.';
comment on column event_store.events.event_version is 'The version of the event''s schema.';
comment on column event_store.events.decider is 'The kind of entity that emitted the event.';
comment on column event_store.events.decider_id is 'The entity that emitted the event.';
comment on column event_store.events.data is 'What happened.';
comment on column event_store.events.command_id is 'The command that caused the event.';
comment on column event_store.events.previous_id is 'The event before this one in its stream; null for the first.';
comment on column event_store.events.final is 'Whether the event closes its stream.';
comment on column event_store.events.created_at is 'When the event was appended, by the store''s clock.';
comment on column event_store.events."offset" is
'Unique and increasing along each stream, with gaps. Drawn after its writer saw the event before it, or together with that one and above it.';
comment on column event_store.events.transaction_id is
'The appending transaction: how the sequencer knows that the event is committed.';
comment on column event_store.events.version is 'The event''s number in its stream: 1, 2, 3 …';
comment on column event_store.events.metadata is
'What led to the event, a JSON object or null: correlation_id, causation_id, traceparent and user are texts, other keys '
'are free. Not part of the event''s content: a retry may state others.';

create sequence event_store.purge_seq;
comment on sequence event_store.purge_seq is
'Counts purges, also uncommitted ones. A writer that saw a stream and stores its next event checks it for a purge in between.';

create table event_store.purged_streams (
  decider text collate "C" not null,
  decider_id text collate "C" not null,
  last_event_id uuid not null,
  last_offset bigint not null,
  version bigint not null,
  final boolean not null,
  constraint purged_streams_pkey primary key (decider_id, decider)
);
comment on table event_store.purged_streams is
'The last purged event of each stream that lost events: the next event follows it where none is kept.';
comment on column event_store.purged_streams.decider is 'The kind of entity.';
comment on column event_store.purged_streams.decider_id is 'The entity.';
comment on column event_store.purged_streams.last_event_id is 'Its event_id.';
comment on column event_store.purged_streams.last_offset is 'Its offset.';
comment on column event_store.purged_streams.version is 'Its number in the stream; all before it are purged, too.';
comment on column event_store.purged_streams.final is 'Whether it closed the stream.';

create view event_store.streams as
select e.decider, e.decider_id, e.event_id as last_event_id, e."offset" as last_offset, e.version, e.final
from event_store.events e
where not exists (
  select from event_store.events n where n.decider_id = e.decider_id and n.decider = e.decider and n.version = e.version + 1
)
union all
select p.decider, p.decider_id, p.last_event_id, p.last_offset, p.version, p.final
from event_store.purged_streams p
where not exists (select from event_store.events e where e.decider_id = p.decider_id and e.decider = p.decider);
comment on view event_store.streams is 'The head of each stream: its last event, purged or not. For people: it reads all events; stream_head finds one at once.';
comment on column event_store.streams.decider is 'The kind of entity.';
comment on column event_store.streams.decider_id is 'The entity.';
comment on column event_store.streams.last_event_id is
'The event_id of the stream''s last event, which the next append states as previous_id.';
comment on column event_store.streams.last_offset is 'The offset of the stream''s last event.';
comment on column event_store.streams.version is 'How many events the stream had.';
comment on column event_store.streams.final is 'Whether the last event closed the stream.';

create view event_store.recorded_events as
select event, event_id, event_version, decider, decider_id, data, command_id, previous_id, final, created_at, "offset"
from event_store.events;
comment on view event_store.recorded_events is
'An event in fstore-sql''s columns: what its functions return.';

create view event_store.versioned_events as
select
  event, event_id, event_version, decider, decider_id, data, command_id, previous_id, final, created_at, "offset", version, metadata
from event_store.events;
comment on view event_store.versioned_events is 'An event with its number in its stream and what led to it.';

create type event_store.log_event as (
  "position" bigint,
  event text collate "C",
  event_id uuid,
  event_version bigint,
  decider text collate "C",
  decider_id text collate "C",
  data jsonb,
  command_id uuid,
  previous_id uuid,
  final boolean,
  created_at timestamptz,
  "offset" bigint,
  version bigint,
  metadata jsonb
);
comment on type event_store.log_event is 'An event of the log with its position there.';

create type event_store_private.batch_event as (
  ordinal bigint,
  event text collate "C",
  event_id uuid,
  event_version bigint,
  decider text collate "C",
  decider_id text collate "C",
  data jsonb,
  command_id uuid,
  previous_id uuid,
  previous_stated boolean,
  final boolean,
  expected_version bigint,
  metadata jsonb
);
comment on type event_store_private.batch_event is
'One event of a batch as append_events holds it in memory; ordinal is its index in the batch, from 1.';

-- Of two concurrent batches over the same streams one loses, and a batch that keeps losing must get its turn. A row is
-- locked and never changed: only the store's functions may lock it. A row stands for a bucket of streams, so that no
-- stream needs a row of its own.
create table event_store.append_turns (
  turn int not null,
  constraint append_turns_pkey primary key (turn)
);
comment on table event_store.append_turns is
'Locks for batches that lost a race for a stream: each row is a bucket of streams (take_turns).';
comment on column event_store.append_turns.turn is 'The bucket, from 0 to 1023: by a hash of decider_id.';

insert into event_store.append_turns (turn)
select generate_series(0, 1023);

-- Sequencing ------------------------------------------------------------------------------------------------

create table event_store.log_partitions (
  partition int not null,
  earliest_position bigint not null default 0,
  archived_position bigint not null default 0,
  purged_position bigint not null default 0,
  constraint log_partitions_pkey primary key (partition),
  constraint log_partitions_marks_in_order check (
    0 <= purged_position and purged_position <= earliest_position and earliest_position <= archived_position
  )
) with (fillfactor = 50);
comment on table event_store.log_partitions is
'The log partitions: hash buckets of decider_id. Their number is fixed when the database is made.';
comment on column event_store.log_partitions.partition is 'The log partition, from 0.';
comment on column event_store.log_partitions.earliest_position is 'The first position that is still kept.';
comment on column event_store.log_partitions.archived_position is
'Every event below this position is also kept outside the database; only these may be deleted.';
comment on column event_store.log_partitions.purged_position is
'Every event below this position is deleted. A change tells a writer with an older snapshot that events are gone.';

-- the migrator or the installer states the number
insert into event_store.log_partitions (partition)
select generate_series(0, current_setting('event_store.log_partitions')::int - 1);

create table event_store.event_log (
  partition int not null,
  position bigint not null,
  "offset" bigint not null,
  constraint event_log_pkey primary key (partition, position),
  constraint event_log_offset_key unique ("offset")
);
comment on table event_store.event_log is
'The order of events within each log partition: dense, from 0, in the order of commits.';
comment on column event_store.event_log.partition is 'The log partition.';
comment on column event_store.event_log.position is 'The position within the log partition, without gaps.';
comment on column event_store.event_log."offset" is 'The event at this position.';

-- The mark is read from the right end of the log's own index, three pages. A row for it would be updated with every
-- batch, and while a session holds an old snapshot each reader would walk all dead versions of that row.
create view event_store.partitions as
select
  p.partition,
  coalesce(
    (
      select l.position + 1
      from event_store.event_log l
      where l.partition = p.partition and l.position >= p.earliest_position
      order by l.position desc
      limit 1
    ),
    p.earliest_position
  ) as high_water_mark,
  p.earliest_position,
  p.archived_position
from event_store.log_partitions p;
comment on view event_store.partitions is 'What each log partition holds: [earliest_position, high_water_mark).';
comment on column event_store.partitions.partition is 'The log partition, from 0.';
comment on column event_store.partitions.high_water_mark is 'The position that the next event will get.';
comment on column event_store.partitions.earliest_position is 'The first position that is still kept.';
comment on column event_store.partitions.archived_position is
'Every event below this position is also kept outside the database; only these may be deleted.';

create table event_store.sequencer (
  singleton boolean not null default true,
  snapshot pg_snapshot not null,
  cluster bigint not null,
  sequenced_at timestamptz not null default '-infinity',
  revision bigint not null default 0,
  marked_at timestamptz not null default '-infinity',
  is_marked boolean not null default true,
  -- One row; the revision lets an index read begin at its newest version. Without it each call would walk the dead
  -- versions, which vacuum cannot remove while a session holds an old snapshot.
  constraint sequencer_pkey primary key (singleton, revision),
  constraint sequencer_has_one_row check (singleton)
) with (fillfactor = 50);
comment on table event_store.sequencer is
'How far events are sequenced. The lock of its one row makes the sequencer the only writer of the log''s order.';
comment on column event_store.sequencer.singleton is 'Always true: there is one row.';
comment on column event_store.sequencer.snapshot is
'Every event of a transaction visible in this snapshot has its position.';
comment on column event_store.sequencer.cluster is
'The system identifier of the cluster that gave out these transaction ids: it shows a restore into another cluster.';
comment on column event_store.sequencer.sequenced_at is 'When a session last looked for new events, to half a second.';
comment on column event_store.sequencer.revision is
'Rises with every change, so that the newest version of the row is found first.';
comment on column event_store.sequencer.marked_at is 'When the sequencer last added to log_marks.';
comment on column event_store.sequencer.is_marked is 'Whether nothing was sequenced since marked_at.';
insert into event_store.sequencer (snapshot, cluster)
select pg_current_snapshot(), system_identifier from pg_control_system();

create table event_store.log_marks (
  mark_id bigint generated always as identity,
  marked_at timestamptz not null,
  marks bigint[] not null,
  reason text,
  constraint log_marks_pkey primary key (mark_id)
);
comment on sequence event_store.log_marks_mark_id_seq is 'Numbers the moments in log_marks.';
create index log_marks_marked_at_idx on event_store.log_marks (marked_at, mark_id);
comment on table event_store.log_marks is
'Moments of the log: the high-water marks of all log partitions, read in one statement. So each transaction is below them as a whole, '
'or not at all. A log that grows has one a minute, after 90 days one an hour, and those with a reason.';
comment on column event_store.log_marks.mark_id is 'The number of the moment.';
comment on column event_store.log_marks.marked_at is
'When the moment was, by the server''s clock: events below the marks were in the log by then, whatever created_at they have.';
comment on column event_store.log_marks.marks is 'The high-water mark of each log partition, that of log partition 0 first.';
comment on column event_store.log_marks.reason is 'Why it was recorded (mark_log); null for the sequencer''s own.';

-- Unlogged: setting it takes no transaction id and writes no WAL. After a crash it names no sequencer: none runs.
create unlogged sequence event_store.attended_seq minvalue 0 start 0;
comment on sequence event_store.attended_seq is
'Until when a sequencer attends the log: milliseconds since 1970, doubled, plus one while it sleeps, so that an append wakes it.';
