-- Takes the turn to look at sources of incidents, for v_every_s seconds, and returns those that the caller has it for, each
-- with the time of now: observe_incidents takes it, and drops what a look that took long saw before another one.
-- Of several alerters one looks at each source; where it dies, another one that knows the source has the next turn.
-- Races: two callers at once take turns at the row of alerting; the second one does not get what the first one has.
-- Example: select claim_look(15, '{event_store, dagster}')
create or replace function event_store.claim_look(
  v_every_s bigint,
  v_sources text[]
)
returns table (
  source text,
  looked_at timestamptz
)
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
#variable_conflict use_column
declare
  _now timestamptz;
begin
  if (
    v_every_s between 0 and 86400 and array_position(v_sources, null) is null
    and not exists (select from unnest(v_sources) s where s = '' or octet_length(s) > 200)
  ) is not true then
    perform event_store_private.refuse_request(
      format('v_every_s is %s, v_sources is %s', coalesce(v_every_s::text, 'null'), coalesce(v_sources::text, 'null')),
      'v_every_s is 0 to 86400, v_sources names sources in 1 to 200 bytes each.'
    );
  end if;
  _now := event_store_private.clock();
  -- mostly it is not the caller's turn: who only reads takes no transaction id; a clock that was set back ends a turn, too
  if not exists (
    select from unnest(v_sources) s
    where not exists (
      select from event_store.alert_sources a
      where a.source = s and a.turn_until > _now and a.turn_until <= _now + make_interval(secs => v_every_s)
    )
  ) then
    return;
  end if;
  perform from event_store.alerting a where a.singleton for update;
  _now := event_store_private.clock();
  return query
  insert into event_store.alert_sources as a (source, turn_until)
  select distinct s, _now + make_interval(secs => v_every_s) from unnest(v_sources) s
  on conflict (source) do update
  set turn_until = excluded.turn_until
  where a.turn_until is null or a.turn_until <= _now or a.turn_until > excluded.turn_until
  returning a.source, _now;
end
$$;

comment on function event_store.claim_look(bigint, text[]) is
'Takes the turn to look at the sources v_sources for v_every_s seconds; returns those that nobody else has it for, and the time. MR005 '
'v_every_s is out of range, or v_sources is malformed.';
revoke all on function event_store.claim_look(bigint, text[]) from public;
grant execute on function event_store.claim_look(bigint, text[]) to event_store_owner;
