-- Alerts: what is wrong now, what the receiver was told, and when each source was last asked.

create table event_store.alert_sources (
  source text collate "C" not null,
  asked_at timestamptz not null,
  constraint alert_sources_pkey primary key (source)
) with (fillfactor = 50);
comment on table event_store.alert_sources is
'The sources of incidents. One that was not asked for a week is forgotten, together with what it saw.';
comment on column event_store.alert_sources.source is 'Its name, such as event_store or dagster.';
comment on column event_store.alert_sources.asked_at is 'When it was last asked, readable or not.';

create table event_store.incidents (
  incident_id uuid not null default gen_random_uuid(),
  source text collate "C" not null,
  kind text collate "C" not null,
  subject text collate "C" not null,
  severity text not null,
  what text not null,
  cause text not null,
  remedy text not null,
  page text not null,
  began_at timestamptz not null,
  confirmed boolean not null,
  missing_since timestamptz,
  over_at timestamptz,
  told text not null default 'nothing',
  due_at timestamptz not null,
  tries int not null default 0,
  failing_since timestamptz,
  last_error text,
  constraint incidents_pkey primary key (incident_id),
  constraint incidents_texts_fit check (
    octet_length(kind) between 1 and 100 and octet_length(subject) <= 1024 and octet_length(what) <= 2048
    and octet_length(cause) <= 10000 and octet_length(remedy) <= 10000 and octet_length(page) <= 2048
  ),
  constraint incidents_severity_is_known check (severity in ('page', 'ticket')),
  constraint incidents_told_is_known check (told in ('nothing', 'began', 'over')),
  constraint incidents_are_over_when_they_are_missing check (over_at is null or over_at = missing_since),
  constraint incidents_told_over_when_they_are check (told <> 'over' or over_at is not null)
) with (fillfactor = 70);
create unique index incidents_open_key on event_store.incidents (source, kind, subject) where over_at is null;
create index incidents_untold_idx on event_store.incidents (due_at) where told <> 'over';
create index incidents_over_at_idx on event_store.incidents (over_at);
comment on table event_store.incidents is
'Incidents that are open, and for a month those that are over: one row for each, from its beginning to its end.';
comment on column event_store.incidents.incident_id is 'Names the incident.';
comment on column event_store.incidents.source is 'The source that sees it.';
comment on column event_store.incidents.kind is 'What is wrong, such as late or dead_letters.';
comment on column event_store.incidents.subject is 'The view, capture or job concerned. A source has one open incident per kind and subject.';
comment on column event_store.incidents.severity is 'page: an operator should come; ticket: it can wait until the morning.';
comment on column event_store.incidents.what is 'A line that says what is wrong.';
comment on column event_store.incidents.cause is 'What was seen when it began; later causes are not reported.';
comment on column event_store.incidents.remedy is 'What an operator does about it.';
comment on column event_store.incidents.page is 'The page that shows it, relative to the UI''s address; empty for none.';
comment on column event_store.incidents.began_at is 'Since when it is wrong; where that is unknown, when it was first seen.';
comment on column event_store.incidents.confirmed is 'Whether it was seen for long enough to be reported.';
comment on column event_store.incidents.missing_since is 'Since when its source no longer sees it; null while it does.';
comment on column event_store.incidents.over_at is
'When it ended: set some time later, as an incident that comes back at once is not over.';
comment on column event_store.incidents.told is 'What the receiver was told last: nothing, began or over.';
comment on column event_store.incidents.due_at is
'The time from which a look confirms it; once it is confirmed, when the next message may be sent or tried again.';
comment on column event_store.incidents.tries is 'How often that message was tried.';
comment on column event_store.incidents.failing_since is 'When it was tried first; null for no message.';
comment on column event_store.incidents.last_error is 'Why the last try failed; null where none did.';
