-- claim_alert returned the incident, with v_told as told. v_error is null if the receiver took the message.
-- Example: select settle_alert('0b5c1d9e-0000-4000-8000-000000000001', 'nothing')
create or replace function event_store_platform.settle_alert(
  v_incident_id uuid,
  v_told text,
  v_error text default null
)
returns boolean
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
begin
  if num_nulls(v_incident_id, v_told) > 0 then
    perform event_store_private.refuse_request('an argument is null', 'State what claim_alert returned.');
  end if;
  if v_error is null then
    update event_store.incidents i
    set
      told = case i.told when 'nothing' then 'began' else 'over' end, due_at = event_store_private.clock(), tries = 0,
      failing_since = null, last_error = null
    where i.incident_id = v_incident_id and i.told = v_told and i.tries > 0;
  else
    update event_store.incidents i set last_error = left(v_error, 2000)
    where i.incident_id = v_incident_id and i.told = v_told and i.tries > 0;
  end if;
  return found;
end
$$;

comment on function event_store_platform.settle_alert(uuid, text, text) is
'Records that the receiver took the message of an incident, or why not (v_error): then it is sent again. Returns '
'whether that was news. MR005 an argument is null.';
revoke all on function event_store_platform.settle_alert(uuid, text, text) from public;
grant execute on function event_store_platform.settle_alert(uuid, text, text) to event_store_owner;
