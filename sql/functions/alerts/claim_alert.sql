-- Leases the next message that is due to who is about to send it, for v_lease_s, and returns its incidents; nothing if
-- none is due. Incidents of a kind whose beginning, or end, is due at once are one message, of 50 at most. A message that
-- was tried before has the same message_id and the same incidents. "over" is told after "began".
-- Races: callers take turns. A message is due again when its lease ends: who was killed meanwhile may have sent it.
-- Example: select message_id, lease_token, phase, subject from claim_alert(120)
create or replace function event_store.claim_alert(
  v_lease_s bigint
)
returns table (
  message_id uuid,
  lease_token bigint,
  phase text,
  incident_id uuid,
  kind text,
  subject text,
  severity text,
  cause text,
  remedy text,
  page text,
  began_at timestamptz,
  over_at timestamptz,
  flaps int,
  tries int
)
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
#variable_conflict use_column
declare
  _now timestamptz;
  _first event_store.incidents;
  _message uuid;
  _token bigint;
begin
  if (v_lease_s between 1 and 86400) is not true then
    perform event_store_private.refuse_request(
      format('v_lease_s is %s', coalesce(v_lease_s::text, 'null')), 'v_lease_s is 1 to 86400.'
    );
  end if;
  _now := event_store_private.clock();
  -- mostly nothing is: who only reads takes no transaction id
  if not exists (
    select from event_store.incidents i
    where i.told <> 'over' and i.due_at <= _now and (i.told = 'nothing' or i.over_at is not null)
  ) then
    return;
  end if;
  perform from event_store.alerting a where a.singleton for update;
  _now := event_store_private.clock();
  select * into _first
  from event_store.incidents i
  where i.told <> 'over' and i.due_at <= _now and (i.told = 'nothing' or i.over_at is not null)
    and (i.leased_until is null or i.leased_until <= _now)
  order by i.due_at, i.began_at, i.incident_id
  limit 1;
  if not found then
    return;
  end if;
  _message := coalesce(_first.message_id, gen_random_uuid());
  _token := nextval('event_store.lease_token_seq');
  return query
  with claimed as (
    update event_store.incidents i
    set
      message_id = _message, lease_token = _token, leased_until = _now + make_interval(secs => v_lease_s),
      tries = i.tries + 1, first_tried_at = coalesce(i.first_tried_at, _now)
    where i.incident_id in (
      select m.incident_id
      from event_store.incidents m
      where m.told <> 'over' and m.told = _first.told
        and case
          when _first.message_id is not null then m.message_id = _message
          else m.message_id is null and m.kind = _first.kind and m.due_at <= _now and (m.told = 'nothing' or m.over_at is not null)
        end
      order by m.incident_id <> _first.incident_id, m.began_at, m.incident_id
      limit 50
    )
    returning i.*
  )
  select
    c.message_id, c.lease_token, case c.told when 'nothing' then 'began' else 'over' end, c.incident_id, c.kind, c.subject,
    c.severity, c.cause, c.remedy, c.page, c.began_at, case c.told when 'began' then c.over_at end, c.flaps, c.tries
  from claimed c
  order by c.began_at, c.incident_id;
end
$$;

comment on function event_store.claim_alert(bigint) is
'Leases the next message that is due for v_lease_s and returns its incidents: of one kind, and all of them beginning or '
'all of them over (phase). A message that was tried before comes again as it was. MR005 v_lease_s is out of range.';
revoke all on function event_store.claim_alert(bigint) from public;
grant execute on function event_store.claim_alert(bigint) to event_store_owner;
