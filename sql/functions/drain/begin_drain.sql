-- Without v_owner, a poller asks for a drain and starts a run on true. The next run may start once that drain has ended
-- or is dead. With v_owner, a run begins its drain. A drain that died is counted as a failure here.
-- Races: concurrent calls for one drain take turns at its row.
-- Example: select begin_drain('invoices')
create or replace function event_store_platform.begin_drain(
  v_drain text,
  v_owner text default null
)
returns boolean
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _now constant timestamptz := event_store_private.clock();
  _state record;
  _began event_store.drains;
begin
  if v_drain is null or octet_length(v_drain) > 1024 or v_owner = '' or octet_length(v_owner) > 200 then
    perform event_store_private.refuse_request(
      format('v_drain %L, v_owner %L', left(v_drain, 200), left(v_owner, 200)),
      'v_drain has at most 1024 bytes; v_owner has 1 to 200 bytes, or is null to ask only.'
    );
  end if;
  insert into event_store.drains (drain) values (v_drain) on conflict do nothing;
  select * into _began from event_store.drains d where d.drain = v_drain for update;
  select * into _state from event_store_platform.drain_states(array[v_drain]);
  if v_owner is null then
    if _state.since_s is not null or _state.wait_s > 0 then
      return false;
    end if;
  elsif _state.owner <> v_owner and (_state.lives or _began.began_at is not null) then
    return false;
  end if;
  update event_store.drains d
  set
    asked_at = _now, began_at = case when v_owner is not null then _now end, owner = coalesce(v_owner, d.owner),
    failures = _state.failures, error = _state.error, ended_at = _now - make_interval(secs => _state.ended_s)
  where d.drain = v_drain;
  return true;
end
$$;

comment on function event_store_platform.begin_drain(text, text) is
'Asks for a drain of v_drain (a view, a capture, or the empty name for all views together); with v_owner, begins it. '
'Returns whether the caller gets it: one of concurrent pollers, if none is under way and the wait after failures is '
'over; an owner, unless another owner is at work. MR005 an argument is out of range.';
revoke all on function event_store_platform.begin_drain(text, text) from public;
grant execute on function event_store_platform.begin_drain(text, text) to event_store_owner;
