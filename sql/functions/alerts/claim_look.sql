-- Takes the turn to look for incidents, for v_every_s seconds, and says whether the caller has it. Of several alerters one
-- looks; where it dies, another one has the next turn.
-- Races: two callers at once take turns at the row; the second one does not get it.
-- Example: select claim_look(15)
create or replace function event_store.claim_look(
  v_every_s bigint
)
returns boolean
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _now timestamptz;
begin
  if (v_every_s between 0 and 86400) is not true then
    perform event_store_private.refuse_request(
      format('v_every_s is %s', coalesce(v_every_s::text, 'null')), 'v_every_s is 0 to 86400.'
    );
  end if;
  _now := event_store_private.clock();
  -- mostly it is not the caller's turn: who only reads takes no transaction id; a clock that was set back ends a turn, too
  if exists (
    select from event_store.alerting a
    where a.singleton and a.turn_until > _now and a.turn_until <= _now + make_interval(secs => v_every_s)
  ) then
    return false;
  end if;
  update event_store.alerting a
  set turn_until = _now + make_interval(secs => v_every_s)
  where a.singleton
    and (a.turn_until is null or a.turn_until <= _now or a.turn_until > _now + make_interval(secs => v_every_s));
  return found;
end
$$;

comment on function event_store.claim_look(bigint) is
'Takes the turn to look for incidents for v_every_s seconds; returns false while somebody else has it. MR005 v_every_s is '
'out of range.';
revoke all on function event_store.claim_look(bigint) from public;
grant execute on function event_store.claim_look(bigint) to event_store_owner;
