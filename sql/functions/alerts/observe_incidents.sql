-- Stores what was seen: v_found are the incidents, v_sources the sources that were read. Returns how many are open.
--
-- An incident begins when a source sees it, and is told of when it was seen for wait_s. Before that it may vanish without
-- a trace, also while nobody looked. It is over when each source that saw it was read again and none sees it any more, for v_hold_s; that time
-- doubles with each return within two hours of its last end, to an hour. A source that could not be read ends nothing,
-- but one that nobody has asked for a week is forgotten: it is configured no more.
-- Where the clock was set back, what waits for a time waits no longer than before: here, and at the leases and locks of all views.
-- cause, remedy, severity and page are those of the beginning: what is seen later changes none of them.
--
-- v_looked_at is when the look began (claim_look). A source of which a later look is stored already is left out of both: what
-- was repaired meanwhile would begin anew.
-- v_found is an array of objects with source, kind, subject, severity, cause, remedy, page and wait_s. Two sources may see
-- the same one.
-- Races: callers take turns.
-- Example: select observe_incidents('[]', '{store}')
create or replace function event_store.observe_incidents(
  v_found jsonb,
  v_sources text[],
  v_hold_s bigint default 120,
  v_looked_at timestamptz default null
)
returns bigint
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
-- by index, tables with or without statistics: what is over is kept for a month
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
  _now timestamptz;
  _looked_before timestamptz;
  _set_back interval;
  _open bigint;
begin
  if (jsonb_typeof(v_found) = 'array' and array_position(v_sources, null) is null and v_hold_s between 0 and 86400) is not true then
    perform event_store_private.refuse_request(
      format(
        'v_found is %s, v_sources is %s, v_hold_s is %s', coalesce(jsonb_typeof(v_found), 'null'),
        coalesce(v_sources::text, 'null'), coalesce(v_hold_s::text, 'null')
      ),
      'v_found is an array of incidents, v_sources names sources, v_hold_s is 0 to 86400.'
    );
  end if;
  if exists (
    select from jsonb_to_recordset(v_found) f(
      source text, kind text, subject text, severity text, cause text, remedy text, page text, wait_s bigint
    )
    where (
      f.source = any (v_sources) and f.kind <> '' and octet_length(f.kind) <= 100 and octet_length(f.subject) <= 1024
      and f.severity in ('page', 'ticket') and octet_length(f.cause) <= 10000 and octet_length(f.remedy) <= 10000
      and octet_length(f.page) <= 2048 and f.wait_s between 0 and 86400
    ) is not true
  ) then
    perform event_store_private.refuse_request(
      'an incident in v_found lacks a field, is too long, or is of a source that v_sources does not name',
      'Each has source, kind, subject, severity (page, ticket), cause, remedy, page and wait_s (0 to 86400).'
    );
  end if;
  select a.observed_at into _looked_before from event_store.alerting a where a.singleton for update;
  _now := event_store_private.clock();
  if _looked_before > _now then
    _set_back := _looked_before - _now;
    update event_store.incidents i
    set
      missing_since = case when i.over_at is null then i.missing_since - _set_back else i.missing_since end,
      due_at = i.due_at - _set_back, first_tried_at = i.first_tried_at - _set_back, leased_until = i.leased_until - _set_back
    where i.told <> 'over';
    perform event_store_private.set_leases_back(_set_back);
    _looked_before := _now;
  end if;

  v_sources := array(
    select s from unnest(v_sources) s
    where not exists (
      select from event_store.alert_sources a
      where a.source = s and a.read_at > v_looked_at and a.read_at <= _now
    )
  );
  v_found := (
    select coalesce(jsonb_agg(f.incident order by f.ordinality), '[]')
    from jsonb_array_elements(v_found) with ordinality f(incident, ordinality)
    where f.incident ->> 'source' = any (v_sources)
  );
  insert into event_store.alert_sources as a (source, read_at)
  select distinct s, coalesce(v_looked_at, _now) from unnest(v_sources) s
  on conflict (source) do update set read_at = excluded.read_at;

  with forgotten as (
    delete from event_store.alert_sources a
    where greatest(a.turn_until, a.read_at) < _now - interval '7 days'
    returning a.source
  )
  update event_store.incidents i
  set
    sources = array(select s from unnest(i.sources) s where s not in (select f.source from forgotten f)),
    missing_since = case when i.sources <@ array(select f.source from forgotten f) then _now end
  where i.over_at is null and i.sources && array(select f.source from forgotten f);

  with found as (
    select f.kind, f.subject, array_agg(distinct f.source) as sources
    from jsonb_to_recordset(v_found) f(source text, kind text, subject text)
    group by f.kind, f.subject
  ), seen as (
    select
      i.incident_id,
      array(
        select s from unnest(i.sources) s where s <> all (v_sources)
        union
        select s from unnest(f.sources) s
        order by 1
      ) as sources
    from event_store.incidents i
    left join found f using (kind, subject)
    where i.over_at is null
  )
  update event_store.incidents i
  set sources = s.sources, missing_since = case when s.sources = '{}' then _now end
  from seen s
  where s.incident_id = i.incident_id and s.sources <> i.sources;

  -- nobody was told, and nobody need be: it was not seen any more when it would have been due
  delete from event_store.incidents i
  where i.over_at is null and i.told = 'nothing' and i.message_id is null
    and (i.missing_since < i.due_at or (i.missing_since = _now and _looked_before < i.due_at));

  update event_store.incidents i
  set over_at = i.missing_since, due_at = case when i.told = 'began' and i.message_id is null then _now else i.due_at end
  where i.over_at is null
    and i.missing_since <= _now
      - least(make_interval(secs => v_hold_s * (1 << least(i.flaps, 12))), make_interval(secs => greatest(v_hold_s, 3600)));

  insert into event_store.incidents (kind, subject, severity, cause, remedy, page, sources, began_at, flaps, due_at)
  select
    f.kind, f.subject, f.severity, f.cause, f.remedy, f.page, f.sources, _now,
    coalesce(
      (
        select p.flaps + 1
        from event_store.incidents p
        where p.kind = f.kind and p.subject = f.subject and p.over_at > _now - interval '2 hours'
        order by p.over_at desc
        limit 1
      ),
      0
    ),
    _now + make_interval(secs => f.wait_s)
  from (
    select distinct on (n.kind, n.subject)
      n.kind, n.subject, n.severity, n.cause, n.remedy, n.page, n.wait_s,
      array_agg(n.source) over (partition by n.kind, n.subject) as sources
    from rows from (
      jsonb_to_recordset(v_found) as (
        source text, kind text, subject text, severity text, cause text, remedy text, page text, wait_s bigint
      )
    ) with ordinality n
    order by n.kind, n.subject, n.ordinality
  ) f
  on conflict (kind, subject) where over_at is null do nothing;

  delete from event_store.incidents where told = 'over' and over_at < _now - interval '30 days';
  update event_store.alerting set observed_at = _now where singleton;
  select count(*) into _open from event_store.incidents where over_at is null;
  return _open;
end
$$;

comment on function event_store.observe_incidents(jsonb, text[], bigint, timestamptz) is
'Stores which incidents were seen, v_found, and which sources were read, v_sources; returns how many are open. An incident'
' is over when no source sees it for v_hold_s; one that could not be read ends nothing. What a later look than v_looked_at has said stays. MR005 v_found or '
'v_sources is malformed, or v_hold_s is out of range.';
revoke all on function event_store.observe_incidents(jsonb, text[], bigint, timestamptz) from public;
grant execute on function event_store.observe_incidents(jsonb, text[], bigint, timestamptz) to event_store_owner;
