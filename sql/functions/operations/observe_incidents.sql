-- An incident begins when its source sees it, and is confirmed when a look sees it wait_s later; one that is gone
-- before vanishes without a trace. Its cause is that of its beginning. An incomplete look ends nothing: the parts that
-- could not be read may be unchanged. A source that was not asked for a week is no longer configured: its incidents are
-- over.
-- A clock that was set back delays nothing: a time further ahead than possible is due, and the leases and locks of all
-- views, captures and archives end as they would have.
-- v_found is an array of objects with kind, subject, since, severity, what, cause, remedy, page and wait_s (300 at
-- most).
-- Races: looks at one source take turns. A caller that looks between two calls in one transaction, the first with
-- nothing found and not complete, stores nothing older than the stored state.
-- Example: select observe_incidents('event_store', '[]')
create or replace function event_store_platform.observe_incidents(
  v_source text,
  v_found jsonb,
  v_complete boolean default true,
  v_hold_s bigint default 120
)
returns bigint
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
-- by index, with or without statistics: incidents that are over are kept for a month
as $$
-- planner: indexed ordered once
declare
  _now timestamptz;
  _asked_before timestamptz;
begin
  if (
    octet_length(v_source) between 1 and 200 and jsonb_typeof(v_found) = 'array' and v_complete is not null
    and v_hold_s between 0 and 86400
  ) is not true then
    perform event_store_private.refuse_request(
      format(
        'v_source is %s, v_found is %s, v_complete is %s, v_hold_s is %s', coalesce(v_source, 'null'),
        coalesce(jsonb_typeof(v_found), 'null'), coalesce(v_complete::text, 'null'), coalesce(v_hold_s::text, 'null')
      ),
      'v_source has 1 to 200 bytes, v_found is an array of incidents, v_complete true or false, v_hold_s 0 to 86400.'
    );
  end if;
  select s.asked_at into _asked_before from event_store.alert_sources s where s.source = v_source for update;
  insert into event_store.alert_sources as s (source, asked_at) values (v_source, event_store_private.clock())
  on conflict (source) do update set asked_at = event_store_private.clock()
  returning s.asked_at into _now;
  if _asked_before > _now then
    perform event_store_private.set_leases_back(_asked_before - _now);
  end if;

  begin
    insert into event_store.incidents as i (
      source, kind, subject, severity, what, cause, remedy, page, began_at, confirmed, due_at
    )
    select distinct on (f.kind, f.subject)
      v_source, f.kind, f.subject, f.severity, f.what, f.cause, f.remedy, f.page, coalesce(least(f.since, _now), _now), f.wait_s = 0,
      _now + make_interval(secs => f.wait_s)
    from jsonb_to_recordset(v_found) f(
      kind text, subject text, since timestamptz, severity text, what text, cause text, remedy text, page text, wait_s bigint
    )
    on conflict (source, kind, subject) where over_at is null do update
    set
      missing_since = null,
      confirmed = i.confirmed or i.due_at not between _now + interval '1 microsecond' and _now + interval '10 minutes'
    where i.missing_since is not null or not i.confirmed;
  exception when data_exception or not_null_violation or check_violation then
    perform event_store_private.refuse_request(
      'v_found: ' || sqlerrm,
      'Each has texts: kind, subject, what, cause, remedy, page, and severity, which is page or ticket; since is a time, wait_s a number.'
    );
  end;

  if v_complete then
    update event_store.incidents i set missing_since = _now
    where i.source = v_source and i.over_at is null and i.missing_since is null
      and not exists (
        select from jsonb_to_recordset(v_found) f(kind text, subject text) where f.kind = i.kind and f.subject = i.subject
      );
    delete from event_store.incidents i where i.over_at is null and i.source = v_source and i.missing_since is not null and not i.confirmed;
    update event_store.incidents i
    set over_at = i.missing_since, due_at = case when i.told = 'began' then _now else i.due_at end
    where i.over_at is null and i.source = v_source
      and (i.missing_since <= _now - make_interval(secs => v_hold_s) or i.missing_since > _now);
  end if;

  with forgotten as (
    delete from event_store.alert_sources s where s.asked_at < _now - interval '7 days' returning s.source
  )
  update event_store.incidents i set missing_since = _now, over_at = _now
  from forgotten f
  where i.source = f.source and i.over_at is null;
  delete from event_store.incidents i where i.over_at < _now - interval '30 days';
  return (select count(*) from event_store.incidents i where i.over_at is null);
end
$$;

comment on function event_store_platform.observe_incidents(text, jsonb, boolean, bigint) is
'Stores the incidents that a look at v_source found; returns how many are open. An incident that complete looks do '
'not see for v_hold_s is over. MR005 an argument is null, malformed or out of range.';
revoke all on function event_store_platform.observe_incidents(text, jsonb, boolean, bigint) from public;
grant execute on function event_store_platform.observe_incidents(text, jsonb, boolean, bigint) to event_store_owner;
