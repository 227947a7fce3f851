-- Example: select retry_scheduled_events('order', 'o-1', 'the role may append again')
create or replace function event_store_platform.retry_scheduled_events(
  v_decider text default null,
  v_decider_id text default null,
  v_reason text default null
)
returns bigint
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _retried bigint;
begin
  update event_store.scheduled_events s
  set done_at = null, outcome = null, tries = 0, next_at = event_store_private.clock()
  where s.outcome = 'refused' and (v_decider is null or s.decider = v_decider) and (v_decider_id is null or s.decider_id = v_decider_id);
  get diagnostics _retried = row_count;
  if _retried > 0 then
    perform event_store_private.audit(
      'retry_scheduled_events', null, v_reason, jsonb_build_object('decider', v_decider, 'decider_id', v_decider_id, 'events', _retried)
    );
  end if;
  return _retried;
end
$$;

comment on function event_store_platform.retry_scheduled_events(text, text, text) is
'Lets scheduled events that were refused be tried again: all, those of a decider, or of a stream. Returns how many; audited '
'with v_reason.';
revoke all on function event_store_platform.retry_scheduled_events(text, text, text) from public;
grant execute on function event_store_platform.retry_scheduled_events(text, text, text) to event_store_owner;
