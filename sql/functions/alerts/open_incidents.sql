-- What is wrong now, and what is over and was not told yet; the oldest first.
-- confirmed: it was seen for long enough to be told. missing_since: nobody sees it any more, and it is over soon.
-- Example: select kind, subject, began_at, cause from open_incidents()
create or replace function event_store.open_incidents()
returns table (
  incident_id uuid,
  kind text,
  subject text,
  severity text,
  cause text,
  remedy text,
  page text,
  sources text[],
  began_at timestamptz,
  confirmed boolean,
  missing_since timestamptz,
  over_at timestamptz,
  flaps int,
  told text,
  tries int,
  next_try_at timestamptz,
  last_error text,
  undelivered int
)
language sql
volatile -- the clock is
security definer
set search_path = event_store, pg_temp
-- by index, tables with or without statistics: what is over is kept for a month
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
  select
    i.incident_id, i.kind, i.subject, i.severity, i.cause, i.remedy, i.page, i.sources, i.began_at,
    i.told <> 'nothing' or i.message_id is not null or i.due_at <= event_store_private.clock(),
    i.missing_since, i.over_at, i.flaps, i.told, i.tries, case when i.tries > 0 then i.due_at end, i.last_error, i.undelivered
  from event_store.incidents i
  where i.told <> 'over'
  order by i.began_at, i.kind, i.subject
$$;

comment on function event_store.open_incidents() is
'Returns what is wrong now, and what is over and was not told yet, the oldest first: its first cause, its remedy, who sees'
' it, what the receiver was told, and why it was not told more.';
revoke all on function event_store.open_incidents() from public;
grant execute on function event_store.open_incidents() to event_store_reader, event_store_owner;
