-- Failing streams, fencing of single deliveries, the range of a lease, archived history, and who moved what.

-- All at once, and in the order in which calls lock them: one by one, later, they would wait for each other.
lock table event_store.views, event_store.sequencer in access exclusive mode;

-- Appending -------------------------------------------------------------------------------------------------

-- append_events fills the head when it makes it; what an INSERT that was skipped left empty is no stream
delete from event_store.streams where last_event_id is null;
alter table event_store.streams
  drop constraint streams_empty_until_first_event,
  alter column last_event_id set not null;

-- Leasing ---------------------------------------------------------------------------------------------------

create sequence event_store.lease_token_seq;
comment on sequence event_store.lease_token_seq is 'Gives the tokens of leases and locks. It outlives every view, so a view that is registered again never repeats a token.';
-- above every token that was ever given
select setval('event_store.lease_token_seq', coalesce((select max(lease_token) from event_store.checkpoints), 0) + 1, false);

alter table event_store.checkpoints
  add column leased_from bigint,
  add column leased_to bigint,
  add column rebuilds boolean not null default false;
comment on column event_store.checkpoints.leased_from is 'The first position of the leased range; null where there is no lease.';
comment on column event_store.checkpoints.leased_to is 'The position after the leased range: a commit goes no further. Null where there is no lease.';
comment on column event_store.checkpoints.rebuilds is 'Whether the lease is for a rebuild, which reads every stream, locked or not.';

alter table event_store.stream_locks
  add column lease_token bigint not null default 0,
  add column lease_pid int,
  add column taken_over boolean not null default false,
  -- what is there already is looked at
  add column caught_up boolean not null default true,
  add constraint stream_locks_parked_is_not_in_flight check (parked_at is null or in_flight is null);
alter table event_store.stream_locks alter column caught_up set default false;
create index stream_locks_caught_up_idx on event_store.stream_locks (view, partition) where caught_up;
create index stream_locks_parked_idx on event_store.stream_locks (view, parked_at) where parked_at is not null;
comment on column event_store.stream_locks.lease_token is 'The token of the last delivery (rows), or of the lease that retries the stream (bulk).';
comment on column event_store.stream_locks.lease_pid is 'The session of the last delivery (rows): it may answer without a token after it took the stream over.';
comment on column event_store.stream_locks.taken_over is 'Whether the event in flight was delivered before to somebody who let the lock end: that one may still answer.';
comment on column event_store.stream_locks.caught_up is 'Whether the stream had nothing left when its event was acknowledged: the dispatcher looks at these and removes the lock.';
comment on column event_store.stream_locks.attempts is 'How often the event after last_offset was delivered and not given back (rows), or failed (bulk).';

-- A setting and what happens are two things: each dispatch would make a new version of the view's row.
create table event_store.dispatches (
  view text not null,
  dispatched_at timestamptz not null default '-infinity',
  swept_at timestamptz not null default '-infinity',
  constraint dispatches_pkey primary key (view),
  constraint dispatches_view_fkey foreign key (view) references event_store.views (view) on delete cascade
) with (fillfactor = 50);
comment on table event_store.dispatches is 'When the new events of each view were last dispatched (rows mode).';
comment on column event_store.dispatches.view is 'The view.';
comment on column event_store.dispatches.dispatched_at is 'When somebody last dispatched its new events, to half a second.';
comment on column event_store.dispatches.swept_at is 'When somebody last looked at all of its locks for those with nothing left.';
insert into event_store.dispatches (view, dispatched_at) select view, dispatched_at from event_store.views;
alter table event_store.views drop column dispatched_at;

-- Retention -------------------------------------------------------------------------------------------------

alter table event_store.partitions
  add column archived_position bigint not null default 0,
  add constraint partitions_keep_what_is_not_archived check (earliest_position <= archived_position and archived_position <= high_water_mark);
comment on column event_store.partitions.archived_position is 'Every event below this position is kept outside, too: only these may be deleted.';

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
  constraint audit_log_operation_is_known check (
    operation in ('seek_view', 'discard_dead_letter', 'retry_dead_letters', 'enable_view', 'unregister_view', 'raise_low_water_mark')
  )
);
comment on table event_store.audit_log is 'What operators did to views and to history, who and why.';
comment on column event_store.audit_log.audit_id is 'Rises with time.';
comment on sequence event_store.audit_log_audit_id_seq is 'Numbers the entries of audit_log.';
comment on column event_store.audit_log.done_at is 'When, by the store''s clock.';
comment on column event_store.audit_log.done_by is 'The database user who called.';
comment on column event_store.audit_log.operation is 'The function that was called.';
comment on column event_store.audit_log.view is 'The view it was done to; null where it was none.';
comment on column event_store.audit_log.reason is 'Why, in the operator''s words.';
comment on column event_store.audit_log.detail is 'What exactly was changed, and from what.';
