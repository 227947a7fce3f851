-- The event store's tables. Behaviour lives in sql/functions; a table changes only by a later migration.

-- Appending -------------------------------------------------------------------------------------------------

create table event_store.deciders (
  decider text not null,
  event text not null,
  event_version bigint not null default 1,
  description text not null,
  constraint deciders_pkey primary key (decider, event, event_version)
);
comment on table event_store.deciders is 'The kinds of event that each kind of entity (decider) may append. Rows are never changed or removed.';
comment on column event_store.deciders.decider is 'A kind of entity that emits events, such as order.';
comment on column event_store.deciders.event is 'The name of an event that this decider may append.';
comment on column event_store.deciders.event_version is 'The version of the event''s schema.';
comment on column event_store.deciders.description is 'What the event says, for people.';

create table event_store.streams (
  decider text collate "C" not null,
  decider_id text collate "C" not null,
  last_event_id uuid,
  last_offset bigint not null,
  version bigint not null,
  final boolean not null default false,
  constraint streams_pkey primary key (decider_id, decider),
  -- append_events creates the row before it fills it, in one transaction
  constraint streams_empty_until_first_event check ((version = 0) = (last_event_id is null))
) with (fillfactor = 80);
comment on table event_store.streams is 'The head of each stream. Its row is the optimistic lock of an append: the first writer moves it, the second one conflicts.';
comment on column event_store.streams.decider is 'The kind of entity.';
comment on column event_store.streams.decider_id is 'The entity.';
comment on column event_store.streams.last_event_id is 'The event_id of the stream''s last event: what the next append states as previous_id.';
comment on column event_store.streams.last_offset is 'The offset of the stream''s last event.';
comment on column event_store.streams.version is 'How many events the stream has.';
comment on column event_store.streams.final is 'Whether the last event closed the stream.';

create sequence event_store.events_offset_seq;
comment on sequence event_store.events_offset_seq is 'Gives events."offset". It leaves gaps on rollback, so it never is a cursor.';

create table event_store.events (
  event text not null,
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
  constraint events_pkey primary key ("offset"),
  constraint events_event_id_key unique (event_id)
);
alter sequence event_store.events_offset_seq owned by event_store.events."offset";
create index events_stream_idx on event_store.events (decider_id, decider, "offset");
create index events_transaction_id_idx on event_store.events (transaction_id);
create index events_created_at_idx on event_store.events using brin (created_at);
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
comment on column event_store.events."offset" is 'Unique and increasing along each stream, with gaps. Drawn after the stream''s row is locked.';
comment on column event_store.events.transaction_id is 'The appending transaction: how the sequencer knows that the event is committed.';

create view event_store.recorded_events as
select event, event_id, event_version, decider, decider_id, data, command_id, previous_id, final, created_at, "offset"
from event_store.events;
comment on view event_store.recorded_events is 'An event in the shape that every function returns it: fstore-sql''s columns.';

create type event_store_private.batch_event as (
  ordinal bigint,
  event text,
  event_id uuid,
  event_version bigint,
  decider text,
  decider_id text,
  data jsonb,
  command_id uuid,
  previous_id uuid,
  previous_stated boolean,
  final boolean
);
comment on type event_store_private.batch_event is 'One event of a batch as append_events holds it in memory; ordinal is its index in the batch, from 1.';

-- Sequencing ------------------------------------------------------------------------------------------------

create table event_store.partitions (
  partition int not null,
  high_water_mark bigint not null default 0,
  earliest_position bigint not null default 0,
  constraint partitions_pkey primary key (partition),
  constraint partitions_marks_in_order check (0 <= earliest_position and earliest_position <= high_water_mark)
) with (fillfactor = 50);
comment on table event_store.partitions is 'The log partitions: hash buckets of decider_id. Their number is fixed when the database is made.';
comment on column event_store.partitions.partition is 'The log partition, from 0.';
comment on column event_store.partitions.high_water_mark is 'The position that the next event will get.';
comment on column event_store.partitions.earliest_position is 'The first position that is still kept.';

-- the migrator states the number; see resources/migrations.py
insert into event_store.partitions (partition)
select generate_series(0, current_setting('event_store.log_partitions')::int - 1);

create table event_store.event_log (
  partition int not null,
  position bigint not null,
  "offset" bigint not null,
  constraint event_log_pkey primary key (partition, position),
  constraint event_log_offset_key unique ("offset")
);
comment on table event_store.event_log is 'The order of events within each log partition: dense, from 0, in the order of commits.';
comment on column event_store.event_log.partition is 'The log partition.';
comment on column event_store.event_log.position is 'The position within the log partition, without gaps.';
comment on column event_store.event_log."offset" is 'The event at this position.';

create table event_store.sequencer (
  singleton boolean not null default true,
  snapshot pg_snapshot not null,
  cluster bigint not null,
  sequenced_at timestamptz not null default '-infinity',
  constraint sequencer_pkey primary key (singleton),
  constraint sequencer_has_one_row check (singleton)
) with (fillfactor = 50);
comment on table event_store.sequencer is 'Up to where events are sequenced. The lock of its one row makes the sequencer the only writer of the log''s order.';
comment on column event_store.sequencer.singleton is 'Always true: there is one row.';
comment on column event_store.sequencer.snapshot is 'Every event of a transaction visible in this snapshot has its position.';
comment on column event_store.sequencer.cluster is 'The system identifier of the cluster whose transaction ids these are: a restore into another one shows by it.';
comment on column event_store.sequencer.sequenced_at is 'When somebody last looked for new events, to half a second.';
insert into event_store.sequencer (snapshot, cluster)
select pg_current_snapshot(), system_identifier from pg_control_system();

-- Consuming -------------------------------------------------------------------------------------------------

create table event_store.views (
  view text not null,
  start_at timestamptz not null,
  lock_timeout_s bigint not null default 300,
  pooling_delay_s bigint,
  edge_function_url text,
  created_at timestamptz not null,
  updated_at timestamptz not null,
  mode text not null default 'rows',
  deciders text[],
  events text[],
  enabled boolean not null default true,
  max_attempts int not null default 5,
  dispatched_at timestamptz not null default '-infinity',
  constraint views_pkey primary key (view),
  constraint views_view_is_named check (view <> ''),
  constraint views_mode_is_known check (mode in ('rows', 'bulk')),
  constraint views_lock_timeout_is_positive check (lock_timeout_s > 0),
  constraint views_pooling_delay_is_not_negative check (pooling_delay_s >= 0),
  constraint views_max_attempts_is_positive check (max_attempts > 0)
);
comment on table event_store.views is 'The named consumers of the log. Their progress is in checkpoints and stream_locks and is never touched from here.';
comment on column event_store.views.view is 'The consumer''s name.';
comment on column event_store.views.start_at is 'From when on the view wants events. It counts once, at registration.';
comment on column event_store.views.lock_timeout_s is 'How long a lock or a lease lasts where the caller does not say, in seconds.';
comment on column event_store.views.pooling_delay_s is 'How long to wait between two polls that found nothing, in seconds; null where the client polls by itself.';
comment on column event_store.views.edge_function_url is 'Where each event is sent by HTTP POST; null where the client fetches events.';
comment on column event_store.views.created_at is 'When the view was registered.';
comment on column event_store.views.updated_at is 'When the view''s settings last changed.';
comment on column event_store.views.mode is 'rows: one event per stream at a time (stream_events). bulk: ranges of log partitions (claim_batch).';
comment on column event_store.views.deciders is 'The deciders that the view wants; null for all.';
comment on column event_store.views.events is 'The events that the view wants; null for all.';
comment on column event_store.views.enabled is 'Whether the view is given events.';
comment on column event_store.views.max_attempts is 'After how many failed attempts a stream is parked.';
comment on column event_store.views.dispatched_at is 'When somebody last dispatched this view''s new events, to half a second (rows mode).';

create table event_store.checkpoints (
  view text not null,
  partition int not null,
  position bigint not null,
  lease_owner text,
  lease_token bigint not null default 0,
  leased_until timestamptz,
  constraint checkpoints_pkey primary key (view, partition),
  constraint checkpoints_view_fkey foreign key (view) references event_store.views (view) on delete cascade,
  constraint checkpoints_partition_fkey foreign key (partition) references event_store.partitions (partition),
  constraint checkpoints_position_is_not_negative check (position >= 0),
  constraint checkpoints_lease_is_whole check ((lease_owner is null) = (leased_until is null))
) with (fillfactor = 50);
comment on table event_store.checkpoints is 'A view''s progress in each log partition, and who may move it.';
comment on column event_store.checkpoints.view is 'The view.';
comment on column event_store.checkpoints.partition is 'The log partition.';
comment on column event_store.checkpoints.position is 'The view''s next position: every event below is acknowledged, or its stream has a lock.';
comment on column event_store.checkpoints.lease_owner is 'Who holds the lease; null for nobody.';
comment on column event_store.checkpoints.lease_token is 'Rises with every lease. A commit states it, which fences out former owners.';
comment on column event_store.checkpoints.leased_until is 'When the lease expires; null where there is none.';

create table event_store.stream_locks (
  view text not null,
  decider text collate "C" not null,
  decider_id text collate "C" not null,
  partition int not null,
  last_offset bigint not null,
  locked_until timestamptz not null default '-infinity',
  in_flight bigint,
  attempts int not null default 0,
  last_error text,
  parked_at timestamptz,
  created_at timestamptz not null,
  updated_at timestamptz not null,
  constraint stream_locks_pkey primary key (view, decider_id, decider),
  constraint stream_locks_view_fkey foreign key (view) references event_store.views (view) on delete cascade,
  constraint stream_locks_delivery_is_ahead check (in_flight > last_offset)
) with (fillfactor = 50);
-- the whole order of stream_events, so that a fetch reads no more locks than it takes
create index stream_locks_due_idx on event_store.stream_locks (view, locked_until, last_offset);
comment on table event_store.stream_locks is 'The streams of a view that have something to deliver, are in flight, wait for a retry or are parked. Sparse: an idle stream has no row.';
comment on column event_store.stream_locks.view is 'The view.';
comment on column event_store.stream_locks.decider is 'The kind of entity.';
comment on column event_store.stream_locks.decider_id is 'The entity.';
comment on column event_store.stream_locks.partition is 'The log partition of the stream.';
comment on column event_store.stream_locks.last_offset is 'The offset of the last acknowledged event of the stream.';
comment on column event_store.stream_locks.locked_until is 'Until when the stream is not given out.';
comment on column event_store.stream_locks.in_flight is 'The offset of the event that a consumer holds; null for none.';
comment on column event_store.stream_locks.attempts is 'How often the event after last_offset was delivered.';
comment on column event_store.stream_locks.last_error is 'Why the last attempt failed.';
comment on column event_store.stream_locks.parked_at is 'When the stream was given up and became a dead letter; null while it is not.';
comment on column event_store.stream_locks.created_at is 'When the lock was made.';
comment on column event_store.stream_locks.updated_at is 'When the lock last changed.';

create view event_store.locks as
select
  l.view,
  l.decider_id,
  s.last_offset as "offset",
  l.last_offset,
  l.locked_until,
  s.final as offset_final,
  l.created_at,
  l.updated_at
from event_store.stream_locks l
join event_store.streams s using (decider_id, decider);
comment on view event_store.locks is 'The locks in the shape of fstore-sql. "offset" is the head of the stream.';
