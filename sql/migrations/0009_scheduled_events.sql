-- Events that are appended later, unless something came first.

create table event_store.scheduled_events (
  decider text collate "C" not null,
  decider_id text collate "C" not null,
  name text collate "C" not null,
  event_id uuid not null,
  event text collate "C" not null,
  event_version bigint not null,
  data jsonb not null,
  command_id uuid not null,
  metadata jsonb,
  final boolean not null,
  due_at timestamptz not null,
  unless_event text collate "C",
  unless_above bigint,
  since_version bigint not null,
  opens boolean not null,
  made_by name not null,
  made_at timestamptz not null,
  next_at timestamptz not null,
  tries int not null default 0,
  last_error text,
  done_at timestamptz,
  outcome text,
  constraint scheduled_events_pkey primary key (decider_id, decider, name),
  constraint scheduled_events_name_fits check (octet_length(name) between 1 and 200),
  constraint scheduled_events_outcome_is_known check (outcome in ('fired', 'cancelled', 'unless', 'closed', 'no_stream', 'refused')),
  constraint scheduled_events_have_an_outcome_when_done check ((done_at is null) = (outcome is null))
) with (fillfactor = 70);
create index scheduled_events_waiting_idx on event_store.scheduled_events (made_by, next_at, due_at) where done_at is null;
create index scheduled_events_stream_idx on event_store.scheduled_events (decider_id, decider, due_at, name) where done_at is null;
create index scheduled_events_of_decider_idx on event_store.scheduled_events (decider, next_at) where done_at is null;
create index scheduled_events_done_idx on event_store.scheduled_events (done_at) where outcome <> 'refused';
create index scheduled_events_fired_idx on event_store.scheduled_events (done_at) where outcome = 'fired';
create index scheduled_events_refused_idx on event_store.scheduled_events (done_at) where outcome = 'refused';
comment on table event_store.scheduled_events is
'Events that are appended when they are due, and for a week those that are done. Those that were refused stay.';
comment on column event_store.scheduled_events.decider is 'The decider of the stream that gets the event.';
comment on column event_store.scheduled_events.decider_id is 'The stream.';
comment on column event_store.scheduled_events.name is 'Its name in the stream: scheduling it again moves it.';
comment on column event_store.scheduled_events.event_id is 'The id that the event will have: scheduling the same again changes nothing.';
comment on column event_store.scheduled_events.event is 'The event.';
comment on column event_store.scheduled_events.event_version is 'The version of the event that data have.';
comment on column event_store.scheduled_events.data is 'Its data; they are appended in the newest shape.';
comment on column event_store.scheduled_events.command_id is 'The command that scheduled it.';
comment on column event_store.scheduled_events.metadata is 'What led to it.';
comment on column event_store.scheduled_events.final is 'Whether it closes the stream.';
comment on column event_store.scheduled_events.due_at is 'It is not appended before, by the server''s clock.';
comment on column event_store.scheduled_events.unless_event is 'It is not appended if this event came after since_version.';
comment on column event_store.scheduled_events.unless_above is 'It is not appended if the stream has more events than this.';
comment on column event_store.scheduled_events.since_version is 'How many events the stream had when it was scheduled.';
comment on column event_store.scheduled_events.opens is 'Whether it may be the first event of its stream.';
comment on column event_store.scheduled_events.made_by is 'The role that scheduled it, which must still be allowed to append it.';
comment on column event_store.scheduled_events.made_at is 'When it was scheduled.';
comment on column event_store.scheduled_events.next_at is 'When it is tried next: due_at, and later after a try that found its stream locked.';
comment on column event_store.scheduled_events.tries is 'How many tries failed.';
comment on column event_store.scheduled_events.last_error is 'Why the last try failed, or why it was refused.';
comment on column event_store.scheduled_events.done_at is 'Since when it is done; null while it waits.';
comment on column event_store.scheduled_events.outcome is
'fired: it was appended; cancelled; unless: what it waits for came first; closed: its stream was; no_stream: its stream has no '
'event; refused: the store did not take it (last_error), and it waits for an operator. Null while it waits.';

create table event_store.schedule (
  singleton boolean not null default true,
  cluster bigint,
  database oid,
  held_until timestamptz not null default '-infinity',
  held_because text,
  constraint schedule_pkey primary key (singleton),
  constraint schedule_has_one_row check (singleton)
);
comment on table event_store.schedule is 'Whether scheduled events are held back. In a copy of the database they are.';
comment on column event_store.schedule.singleton is 'Always true: there is one row.';
comment on column event_store.schedule.cluster is 'The system identifier of the cluster in which the first one was scheduled; null before.';
comment on column event_store.schedule.database is 'The oid of the database in which the first one was scheduled: no copy has both.';
comment on column event_store.schedule.held_until is 'Until when none is appended.';
comment on column event_store.schedule.held_because is 'Why.';
insert into event_store.schedule default values;
