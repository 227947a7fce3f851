-- The message is due again after 30 s, and later each time, up to 10 minutes. A caller that is killed before
-- settle_alert leaves it to the next one, and the receiver may get it twice.
-- Races: two concurrent callers get different messages.
-- Example: select incident_id, told, what from claim_alert()
create or replace function event_store_platform.claim_alert()
returns setof event_store.incidents
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
-- by index, with or without statistics: incidents that are over are kept for a month
as $$
-- planner: indexed ordered once
declare
  _now constant timestamptz := event_store_private.clock();
begin
  return query
  update event_store.incidents u
  set
    due_at = _now + least(make_interval(secs => 30 * (1 << least(u.tries, 5))), interval '10 minutes'),
    tries = u.tries + 1, failing_since = coalesce(least(u.failing_since, _now), _now)
  where u.incident_id = (
    select i.incident_id
    from event_store.incidents i
    where i.told <> 'over' and i.confirmed and (i.told = 'nothing' or i.over_at is not null)
      -- a time further ahead means that a clock was set back
      and i.due_at not between _now + interval '1 microsecond' and _now + interval '10 minutes'
    order by i.due_at, i.began_at, i.incident_id
    limit 1
    for update skip locked
  )
  returning u.*;
end
$$;

comment on function event_store_platform.claim_alert() is
'Returns the incident with the next message due, if there is one: its beginning if told is nothing, else its end. '
'Unless settle_alert reports its arrival, it is due again half a minute later.';
revoke all on function event_store_platform.claim_alert() from public;
grant execute on function event_store_platform.claim_alert() to event_store_owner;
