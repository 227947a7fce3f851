-- Says what became of a message: v_error is null where the receiver took it, else why not. Returns whether that counted.
-- A failed one is tried again after 10 s, and later each time, to 10 minutes. After a day it is given up.
-- Races: callers take turns. A late success counts, whoever has the lease now: the receiver was told. A late failure
-- counts for nothing.
-- Example: select settle_alert('0b5c1d9e-0000-4000-8000-000000000001', 7)
create or replace function event_store.settle_alert(
  v_message_id uuid,
  v_lease_token bigint,
  v_error text default null
)
returns boolean
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
begin
  if v_message_id is null or v_lease_token is null then
    perform event_store_private.refuse_request(
      format(
        'v_message_id is %s, v_lease_token is %s', coalesce(v_message_id::text, 'null'), coalesce(v_lease_token::text, 'null')
      ),
      'State what claim_alert returned.'
    );
  end if;
  perform from event_store.alerting where singleton for update;
  _now := event_store_private.clock();
  update event_store.incidents i
  set
    told = case i.told when 'nothing' then 'began' else 'over' end,
    undelivered = i.undelivered + (v_error is not null)::int,
    last_error = left(v_error, 2000),
    due_at = _now, message_id = null, tries = 0, first_tried_at = null, lease_token = null, leased_until = null
  where i.told <> 'over' and i.message_id = v_message_id
    and (v_error is null or (i.lease_token = v_lease_token and i.first_tried_at <= _now - interval '1 day'));
  if found then
    return true;
  end if;
  update event_store.incidents i
  set
    last_error = left(v_error, 2000),
    due_at = _now + least(make_interval(secs => 10 * (1 << least(i.tries - 1, 10))), interval '10 minutes'),
    leased_until = null
  where i.told <> 'over' and i.message_id = v_message_id and i.lease_token = v_lease_token and v_error is not null;
  return found;
end
$$;

comment on function event_store.settle_alert(uuid, bigint, text) is
'Says that the receiver took a message, or why not (v_error): then it is tried again, later each time, for a day. Returns '
'whether that counted; the failure of a lease that ended does not. MR005 an argument is null.';
revoke all on function event_store.settle_alert(uuid, bigint, text) from public;
grant execute on function event_store.settle_alert(uuid, bigint, text) to event_store_owner;
