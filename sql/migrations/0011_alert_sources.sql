-- A turn for each source of incidents: who knows one of them keeps nobody from another one.

create table event_store.alert_sources (
  source text collate "C" not null,
  turn_until timestamptz,
  read_at timestamptz,
  constraint alert_sources_pkey primary key (source),
  constraint alert_sources_source_fits check (source <> '' and octet_length(source) <= 200)
) with (fillfactor = 50);
comment on table event_store.alert_sources is
'What is looked at for incidents. One that nobody has asked for a week is forgotten, and so is what it saw.';
comment on column event_store.alert_sources.source is 'Its name, such as event_store or dagster.';
comment on column event_store.alert_sources.turn_until is 'Until when nobody else asks it; null before it is asked first.';
comment on column event_store.alert_sources.read_at is 'When the newest look at it began whose findings are stored; null before the first one.';
alter table event_store.alerting drop column turn_until;

-- what is open keeps its sources: one that is asked no more is forgotten, too, and each has its own word on whether it is
-- readable
update event_store.incidents
set sources = array_replace(sources, 'alerter', 'alerter of ' || subject)
where over_at is null and kind = 'unreadable';
insert into event_store.alert_sources (source, read_at)
select distinct s, clock_timestamp() from event_store.incidents i, unnest(i.sources) s where i.over_at is null;
