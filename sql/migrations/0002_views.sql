-- The views that consume the log, how far each is, which streams wait, and what operators did.

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
  owner text not null,
  version int not null default 0,
  push_format text collate "C" not null default 'json',
  push_upcast boolean not null default false,
  push_unseal boolean not null default false,
  max_lag_s bigint not null default 300,
  constraint views_pkey primary key (view),
  -- with a decider and a decider_id of 1024 bytes each it fits an index
  constraint views_view_is_named check (octet_length(view) between 1 and 200),
  constraint views_mode_is_known check (mode in ('rows', 'bulk')),
  constraint views_lock_timeout_is_bounded check (lock_timeout_s between 1 and 3600),
  constraint views_pooling_delay_is_not_negative check (pooling_delay_s >= 0),
  constraint views_max_attempts_is_positive check (max_attempts > 0),
  constraint views_version_is_not_negative check (version >= 0),
  constraint views_push_format_is_known check (push_format in ('json', 'cloudevents')),
  constraint views_max_lag_is_not_negative check (max_lag_s >= 0)
);
comment on table event_store.views is
'The named consumers of the log. Their progress is in checkpoints and stream_locks; a change here never touches it.';
comment on column event_store.views.view is 'The consumer''s name.';
comment on column event_store.views.start_at is 'The time from which the view wants events. It is used once, at registration.';
comment on column event_store.views.lock_timeout_s is
'How long a lock or a lease lasts unless the caller states it, in seconds.';
comment on column event_store.views.pooling_delay_s is
'How long to wait between two polls that found nothing, in seconds; null where the client polls by itself.';
comment on column event_store.views.edge_function_url is
'Where each event is sent by HTTP POST; null where the client fetches events. Readers of tables do not see it.';
comment on column event_store.views.created_at is 'When the view was registered.';
comment on column event_store.views.updated_at is 'When the view''s settings last changed.';
comment on column event_store.views.mode is
'rows: one event per stream at a time (stream_events). bulk: ranges of log partitions (claim_batch).';
comment on column event_store.views.deciders is 'The deciders that the view wants; null for all.';
comment on column event_store.views.events is 'The events that the view wants; null for all.';
comment on column event_store.views.enabled is 'Whether the view gets events.';
comment on column event_store.views.max_attempts is 'After how many failed attempts a stream is parked.';
comment on column event_store.views.owner is
'Members of this role or of event_store_owner may change and consume the view.';
comment on column event_store.views.version is
'The version of the program that gave the view its settings; a program of a lower version changes nothing.';
comment on column event_store.views.push_format is
'How events are pushed: json, or cloudevents, the structured mode of CloudEvents 1.0.';
comment on column event_store.views.push_upcast is 'Whether data are pushed in the newest shape of their event.';
comment on column event_store.views.push_unseal is 'Whether personal values are opened in what is pushed.';
comment on column event_store.views.max_lag_s is
'How long an event that the view wants may be outstanding before the view is late, in seconds.';

create table event_store.push_secrets (
  view text collate "C" not null,
  secret text collate "C" not null,
  made_at timestamptz not null,
  retires_at timestamptz,
  constraint push_secrets_pkey primary key (view, secret),
  constraint push_secrets_view_fkey foreign key (view) references event_store.views (view) on delete cascade,
  constraint push_secrets_secret_is_one_of_standard_webhooks check (secret ~ '^whsec_[A-Za-z0-9+/]{32,86}={0,2}$')
);
create unique index push_secrets_current_key on event_store.push_secrets (view) where retires_at is null;
comment on table event_store.push_secrets is
'The secrets that sign the pushes of a view: the current one, and the one before while receivers change over.';
comment on column event_store.push_secrets.view is 'The view.';
comment on column event_store.push_secrets.secret is 'The secret, as Standard Webhooks writes it: whsec_ and base64.';
comment on column event_store.push_secrets.made_at is 'When it became the current one.';
comment on column event_store.push_secrets.retires_at is 'Until when pushes are signed with it, too; null for the current one.';

create table event_store.consumers (
  view text not null,
  consumer text not null,
  pid int not null,
  session_began_at timestamptz,
  attached_until timestamptz not null,
  constraint consumers_pkey primary key (view, consumer),
  constraint consumers_view_fkey foreign key (view) references event_store.views (view) on delete cascade
) with (fillfactor = 50);
comment on table event_store.consumers is
'The consumers that attached themselves to a view (attach_consumer). They only decide whether another consumer is started.';
comment on column event_store.consumers.view is 'The view.';
comment on column event_store.consumers.consumer is 'The consumer''s name: the id of a run, say.';
comment on column event_store.consumers.pid is 'The session that attached it: when that ends, the consumer no longer counts.';
comment on column event_store.consumers.session_began_at is
'When that session began, which tells it from a later one of the same pid; null where Postgres hides it.';
comment on column event_store.consumers.attached_until is
'Until when it counts, unless it attaches again: behind a connection pool a session outlives its consumers.';

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
comment on column event_store.drains.asked_at is 'When it was requested, or began; null where none is under way.';
comment on column event_store.drains.began_at is 'When its run began; null while it is only requested.';
comment on column event_store.drains.owner is
'The run that began last; null once it has reported its end. A run that lost its connection may come back.';
comment on column event_store.drains.failures is 'How many tries failed in a row.';
comment on column event_store.drains.error is 'Why the last try failed; null where it did not.';
comment on column event_store.drains.ended_at is 'When the last try ended.';

-- Leases and locks ------------------------------------------------------------------------------------------

create sequence event_store.lease_token_seq;
comment on sequence event_store.lease_token_seq is
'Gives the tokens of leases and locks. It outlives every view, so a view that is registered again never repeats a '
'token.';

create table event_store.checkpoints (
  view text not null,
  partition int not null,
  position bigint not null,
  lease_owner text,
  lease_token bigint not null default 0,
  leased_until timestamptz,
  leased_from bigint,
  leased_to bigint,
  rebuilds boolean not null default false,
  revision bigint not null default 0,
  -- One row for each view and log partition; the revision lets an index read begin at the newest version of the row.
  -- Without it each call would walk the dead versions, which vacuum cannot remove while a session has an old snapshot;
  -- with a unique index on the pair each change would. So there is no such index: register_view, with the view's row
  -- locked, and finish_restore alone make rows, one for each pair.
  constraint checkpoints_pkey primary key (view, partition, revision),
  constraint checkpoints_view_fkey foreign key (view) references event_store.views (view) on delete cascade,
  constraint checkpoints_partition_fkey foreign key (partition) references event_store.log_partitions (partition),
  constraint checkpoints_position_is_not_negative check (position >= 0),
  constraint checkpoints_lease_is_whole check ((lease_owner is null) = (leased_until is null))
) with (fillfactor = 50);
comment on table event_store.checkpoints is 'A view''s progress in each log partition, and the lease to move it.';
comment on column event_store.checkpoints.view is 'The view.';
comment on column event_store.checkpoints.partition is 'The log partition.';
comment on column event_store.checkpoints.position is
'The view''s next position: every event below is acknowledged, or its stream has a lock.';
comment on column event_store.checkpoints.lease_owner is 'The holder of the lease; null where there is none.';
comment on column event_store.checkpoints.lease_token is
'Rises with every lease. A commit states it, which fences out former owners.';
comment on column event_store.checkpoints.leased_until is 'When the lease expires; null where there is none.';
comment on column event_store.checkpoints.leased_from is
'The first position of the leased range; null where there is no lease.';
comment on column event_store.checkpoints.leased_to is
'The position after the leased range: a commit goes no further. Null where there is no lease.';
comment on column event_store.checkpoints.rebuilds is
'Whether the lease is for a rebuild, which reads every stream, locked or not.';
comment on column event_store.checkpoints.revision is
'Rises with every change that a consumer''s call makes, so that the newest version of the row is found first.';

create table event_store.stream_locks (
  view text not null,
  decider text collate "C" not null,
  decider_id text collate "C" not null,
  partition int not null,
  last_offset bigint not null,
  last_version bigint not null default 0,
  locked_until timestamptz not null default '-infinity',
  in_flight bigint,
  lease_token bigint not null default 0,
  lease_pid int,
  nothing_after boolean not null default false,
  caught_up boolean not null default false,
  attempts int not null default 0,
  last_error text,
  parked_at timestamptz,
  created_at timestamptz not null,
  updated_at timestamptz not null,
  ahead smallint not null default 0,
  revision bigint not null default 0,
  -- One row for each view and stream, made by the session that holds the checkpoint of its log partition. The revision
  -- serves as in checkpoints.
  constraint stream_locks_pkey primary key (view, decider_id, decider, revision),
  constraint stream_locks_view_fkey foreign key (view) references event_store.views (view) on delete cascade,
  constraint stream_locks_delivery_is_ahead check (in_flight > last_offset),
  constraint stream_locks_parked_is_not_in_flight check (parked_at is null or in_flight is null)
) with (fillfactor = 50);
-- Partial, so that the planner cannot use it to probe for one stream: where statistics say that the table is empty, it
-- would rate this index like the right one.
create index stream_locks_due_idx on event_store.stream_locks (view, locked_until, last_offset) where parked_at is null;
comment on index event_store.stream_locks_due_idx is
'The whole order of stream_events, so that a fetch reads no more locks than it takes.';
-- An answer names an event, and at most few deliveries of a stream are of the same event.
create index stream_locks_delivery_idx on event_store.stream_locks (view, in_flight) where in_flight is not null;
comment on index event_store.stream_locks_delivery_idx is 'The lock of the event that an answer is for.';
-- A bulk lease finds its deliveries of streams with a lock by log partition, however many streams wait or are parked.
-- Partial, and not on lease_token: rows mode, where a session takes each delivery, makes no entry at all.
create index stream_locks_in_flight_idx on event_store.stream_locks (view, partition)
where in_flight is not null and lease_pid is null;
comment on index event_store.stream_locks_in_flight_idx is
'Deliveries without an answer: read_batch and commit_batch look here for the retries of a lease.';
-- by time, so that a search can begin behind the dead entries of locks that were removed before
create index stream_locks_caught_up_idx on event_store.stream_locks (view, locked_until) where caught_up;
comment on index event_store.stream_locks_caught_up_idx is 'The locks that a dispatcher checks for removal.';
create index stream_locks_parked_idx on event_store.stream_locks (view, parked_at) where parked_at is not null;
comment on index event_store.stream_locks_parked_idx is 'The dead letters.';
comment on table event_store.stream_locks is
'The streams of a view that have something to deliver, are in flight, wait for a retry or are parked. Sparse: an idle'
' stream has no row.';
comment on column event_store.stream_locks.view is 'The view.';
comment on column event_store.stream_locks.decider is 'The kind of entity.';
comment on column event_store.stream_locks.decider_id is 'The entity.';
comment on column event_store.stream_locks.partition is 'The log partition of the stream.';
comment on column event_store.stream_locks.last_offset is 'The offset of the last acknowledged event of the stream.';
comment on column event_store.stream_locks.last_version is
'A search for the events after last_offset begins above this version: theirs are higher.';
comment on column event_store.stream_locks.locked_until is 'Until when the stream is not delivered.';
comment on column event_store.stream_locks.in_flight is 'The offset of the event that a consumer holds; null for none.';
comment on column event_store.stream_locks.lease_token is
'The token of the last delivery (rows), or of the lease that retries the stream (bulk).';
comment on column event_store.stream_locks.lease_pid is
'The session of the last delivery (rows), for operators only. Null for a delivery in bulk mode.';
comment on column event_store.stream_locks.nothing_after is
'Whether the view wanted no event after the event in flight when that one was delivered (rows).';
comment on column event_store.stream_locks.caught_up is
'Whether the stream had nothing left when its event was acknowledged: the dispatcher checks these locks for removal.';
comment on column event_store.stream_locks.attempts is
'How often the event after last_offset was delivered and not given back (rows), or failed (bulk).';
comment on column event_store.stream_locks.last_error is
'Why the last attempt failed, or why the event was given back; null when it was acknowledged.';
comment on column event_store.stream_locks.parked_at is
'When the stream was given up and became a dead letter; null while it is not parked.';
comment on column event_store.stream_locks.created_at is 'When the lock was made.';
comment on column event_store.stream_locks.updated_at is 'When the lock last changed.';
comment on column event_store.stream_locks.ahead is
'Whether the event in flight was leased ahead and its handler is not known to have begun (rows): 0 no; 1 yes; 2 yes, and '
'an earlier lock of it ended without an answer.';
comment on column event_store.stream_locks.revision is
'Rises with every change, also from the last lock of a stream to its next one, so that the newest version of the row is '
'found first.';

create view event_store.locks as
select
  l.view,
  l.decider_id,
  coalesce(e."offset", p.last_offset) as "offset",
  l.last_offset,
  l.locked_until,
  coalesce(e.final, p.final) as offset_final,
  l.created_at,
  l.updated_at
from event_store.stream_locks l
left join lateral (
  select e."offset", e.final
  from event_store.events e
  where e.decider_id = l.decider_id and e.decider = l.decider
  order by e.version desc
  limit 1
) e on true
left join event_store.purged_streams p on e."offset" is null and p.decider_id = l.decider_id and p.decider = l.decider;
comment on view event_store.locks is 'The locks in the shape of fstore-sql. "offset" is the head of the stream.';

-- Not columns of views: each dispatch would make a new version of the view's row.
create table event_store.dispatches (
  view text not null,
  dispatched_at timestamptz not null default '-infinity',
  swept_at timestamptz not null default '-infinity',
  free_from timestamptz not null default '-infinity',
  failed_at timestamptz,
  error text,
  revision bigint not null default 0,
  -- one row for each view, its newest version found first: see checkpoints
  constraint dispatches_pkey primary key (view, revision),
  constraint dispatches_view_fkey foreign key (view) references event_store.views (view) on delete cascade
) with (fillfactor = 50);
comment on table event_store.dispatches is 'When the new events of each view were last dispatched (rows mode).';
comment on column event_store.dispatches.view is 'The view.';
comment on column event_store.dispatches.dispatched_at is
'When its new events were last dispatched, to half a second.';
comment on column event_store.dispatches.swept_at is
'When all of its locks were last checked for those with nothing left.';
comment on column event_store.dispatches.free_from is
'The search for free locks begins at this locked_until. Older locks are parked, or of transactions that end late, which '
'are found once a minute.';
comment on column event_store.dispatches.failed_at is 'Since when dispatching its new events fails; null where it does not.';
comment on column event_store.dispatches.error is 'Why it failed last.';
comment on column event_store.dispatches.revision is
'Rises with every change of a dispatch, so that the newest version of the row is found first.';

-- Auditing --------------------------------------------------------------------------------------------------

create table event_store.audit_log (
  audit_id bigint generated always as identity,
  done_at timestamptz not null,
  done_by text not null,
  operation text not null,
  view text,
  reason text,
  detail jsonb not null,
  constraint audit_log_pkey primary key (audit_id),
  constraint audit_log_reason_fits check (octet_length(reason) <= 10000),
  constraint audit_log_operation_is_known check (
    operation in (
      'seek_view', 'discard_dead_letter', 'retry_dead_letters', 'enable_view', 'unregister_view', 'register_view',
      'end_locks', 'release_owner', 'raise_low_water_mark', 'restore', 'register_producer', 'register_decider_event', 'register_event_schema',
      'register_event_upcast', 'set_decider_owner', 'withdraw_registration',
      'register_capture', 'record_gap', 'mark_archived', 'list_archive_file', 'purge_events', 'migrate',
      'drop_version', 'approve_version', 'requeue_changes', 'discard_change', 'restart_capture', 'unregister_capture', 'set_push_secret',
      'drop_push_secret', 'begin_verification', 'supersede_changes', 'end_log_holder', 'purge_results',
      'begin_key_epoch', 'forget_subject', 'readmit_subject', 'end_key_epoch', 'restore_keys', 'retire_holder',
      'hold_scheduled_events', 'retry_scheduled_events', 'add_stream_token', 'revoke_stream_token'
    )
  )
);
comment on table event_store.audit_log is 'What operators did to views and to history, with their names and reasons.';
comment on column event_store.audit_log.audit_id is 'Rises with time.';
comment on sequence event_store.audit_log_audit_id_seq is 'Numbers the entries of audit_log.';
comment on column event_store.audit_log.done_at is 'When, by the store''s clock.';
comment on column event_store.audit_log.done_by is 'The database user that called.';
comment on column event_store.audit_log.operation is 'The function that was called.';
comment on column event_store.audit_log.view is 'The view that the call was for; null for none.';
comment on column event_store.audit_log.reason is 'Why, in the operator''s words.';
comment on column event_store.audit_log.detail is 'What exactly was changed, and from what.';

-- Command handlers search all entries ever written for events of a stream that its snapshot lacks.
create index audit_log_discards_idx on event_store.audit_log ((detail ->> 'decider_id'), (detail ->> 'decider'))
where operation = 'discard_dead_letter';
comment on index event_store.audit_log_discards_idx is 'The events of a stream that were given up.';

create index audit_log_upcasts_idx on event_store.audit_log (done_at) where operation = 'register_event_upcast';
comment on index event_store.audit_log_upcasts_idx is 'The upcasts of the last day.';
