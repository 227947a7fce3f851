-- The events of each stream are tried in order.
-- Example: select retry_dead_letters('invoices', 'order', 'o-1')
create or replace function event_store_platform.retry_dead_letters(
  v_view text,
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
  _now constant timestamptz := event_store_private.clock();
  _retried bigint;
begin
  if v_decider is null and v_decider_id is not null then
    perform event_store_private.refuse_request('v_decider_id without v_decider', 'A stream is a decider and a decider_id.');
  end if;
  perform event_store_private.known_view(v_view);
  update event_store.stream_locks k
  set parked_at = null, attempts = 0, locked_until = _now, updated_at = _now, revision = k.revision + 1
  where k.view = v_view
    and k.parked_at is not null
    and (v_decider is null or k.decider = v_decider)
    and (v_decider_id is null or k.decider_id = v_decider_id);
  get diagnostics _retried = row_count;
  if _retried > 0 then
    perform event_store_private.audit(
      'retry_dead_letters', v_view, v_reason,
      jsonb_build_object('decider', v_decider, 'decider_id', v_decider_id, 'streams', _retried)
    );
  end if;
  return _retried;
end
$$;

comment on function event_store_platform.retry_dead_letters(text, text, text, text) is
'Lets parked streams be tried again, from the event that failed, with all attempts before them: all of a view, of '
'v_decider, or the stream (v_decider, v_decider_id). Returns how many; audited with v_reason. MR005 v_decider_id '
'without v_decider; MR010 unknown view.';
revoke all on function event_store_platform.retry_dead_letters(text, text, text, text) from public;
grant execute on function event_store_platform.retry_dead_letters(text, text, text, text) to event_store_owner;
