-- Alerts: what is wrong now, who was told, and up to when somebody has looked.

create table event_store.alerting (
  singleton boolean not null default true,
  turn_until timestamptz,
  observed_at timestamptz,
  constraint alerting_pkey primary key (singleton),
  constraint alerting_has_one_row check (singleton)
) with (fillfactor = 50);
comment on table event_store.alerting is
'Who looks for incidents, and when that was. The lock of its row makes those who change incidents take turns.';
comment on column event_store.alerting.singleton is 'Always true: there is one row.';
comment on column event_store.alerting.turn_until is
'Until when nobody else looks; null before the first look.';
comment on column event_store.alerting.observed_at is
'When what somebody saw was stored last; null before the first time.';
insert into event_store.alerting default values;

create table event_store.incidents (
  incident_id uuid not null default gen_random_uuid(),
  kind text collate "C" not null,
  subject text collate "C" not null,
  severity text not null,
  cause text not null,
  remedy text not null,
  page text not null,
  sources text[] not null,
  began_at timestamptz not null,
  missing_since timestamptz,
  over_at timestamptz,
  flaps int not null,
  told text not null default 'nothing',
  due_at timestamptz not null,
  message_id uuid,
  tries int not null default 0,
  first_tried_at timestamptz,
  lease_token bigint,
  leased_until timestamptz,
  last_error text,
  undelivered int not null default 0,
  constraint incidents_pkey primary key (incident_id),
  constraint incidents_kind_fits check (kind <> '' and octet_length(kind) <= 100),
  constraint incidents_subject_fits check (octet_length(subject) <= 1024),
  constraint incidents_texts_fit check (
    octet_length(cause) <= 10000 and octet_length(remedy) <= 10000 and octet_length(page) <= 2048
    and octet_length(last_error) <= 10000
  ),
  constraint incidents_severity_is_known check (severity in ('page', 'ticket')),
  constraint incidents_told_is_known check (told in ('nothing', 'began', 'over')),
  constraint incidents_told_over_when_they_are check (told <> 'over' or over_at is not null),
  constraint incidents_are_missing_where_no_source_has_them check ((sources = '{}') = (missing_since is not null)),
  constraint incidents_are_missing_before_they_are_over check (over_at is null or over_at = missing_since),
  constraint incidents_lease_is_of_a_message check (
    (leased_until is null or message_id is not null) and (message_id is null) = (first_tried_at is null)
  )
) with (fillfactor = 70);
create unique index incidents_open_key on event_store.incidents (kind, subject) where over_at is null;
create index incidents_untold_idx on event_store.incidents (due_at) where told <> 'over';
create index incidents_over_at_idx on event_store.incidents (over_at);
comment on table event_store.incidents is
'What is wrong, and what was wrong for a month: one row from its beginning to its end. Nobody is told twice.';
comment on column event_store.incidents.incident_id is 'Names the incident.';
comment on column event_store.incidents.kind is 'What is wrong, such as late or dead_letters.';
comment on column event_store.incidents.subject is 'Of what: a view, a capture, a job. Of a kind it has one open incident.';
comment on column event_store.incidents.severity is 'page: somebody should come; ticket: it can wait until the morning.';
comment on column event_store.incidents.cause is 'What was seen when it began; later causes are not told.';
comment on column event_store.incidents.remedy is 'What an operator does about it.';
comment on column event_store.incidents.page is 'Where the UI shows it, behind the UI''s address; empty for nowhere.';
comment on column event_store.incidents.sources is
'Which sources see it. One that could not be read since is still here: nobody knows that it is over.';
comment on column event_store.incidents.began_at is 'When it was seen first.';
comment on column event_store.incidents.missing_since is 'Since when no source sees it; null while one does.';
comment on column event_store.incidents.over_at is
'When it ended: set some time later, for what comes back at once is not over.';
comment on column event_store.incidents.flaps is 'How often it came back within two hours of its end; each time it is longer not over.';
comment on column event_store.incidents.told is 'What the receiver was told last: nothing, began or over.';
comment on column event_store.incidents.due_at is 'When the next message about it may be sent, or be tried again.';
comment on column event_store.incidents.message_id is
'The message that is being sent, the same for all tries; null for none. Several incidents of a kind may share one.';
comment on column event_store.incidents.tries is 'How often that message was tried.';
comment on column event_store.incidents.first_tried_at is 'When it was tried first; null for no message.';
comment on column event_store.incidents.lease_token is 'Of who tried last: a late failure of somebody else counts for nothing.';
comment on column event_store.incidents.leased_until is 'Until when nobody else sends the message; null for now.';
comment on column event_store.incidents.last_error is 'Why the last try failed; null where none did.';
comment on column event_store.incidents.undelivered is 'How many messages about it were given up.';

-- What handles commands asks for each stream whether its snapshot lacks an event: among all that operators ever did.
create index audit_log_discards_idx on event_store.audit_log ((detail ->> 'decider_id'), (detail ->> 'decider'))
where operation = 'discard_dead_letter';
comment on index event_store.audit_log_discards_idx is 'The events of a stream that were given up.';
