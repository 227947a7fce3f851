-- While its stream waits (retry_delay), no later event of the stream is delivered. A parked stream waits for an
-- operator (retry_dead_letters, discard_dead_letter).
-- Example: select * from fail_event('invoices', 'o-1', 1, 'no such customer')
create or replace function event_store.fail_event(
  v_view text,
  v_decider_id text,
  v_offset bigint,
  v_error text,
  v_lease_token bigint default null
)
returns setof event_store.locks
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _now constant timestamptz := event_store_private.clock();
  _view constant event_store.views := event_store_private.own_view(v_view, 'rows');
  _decider text;
begin
  if coalesce(v_error, '') = '' then
    perform event_store_private.refuse_request('v_error is empty', 'Say in v_error why the event failed.');
  end if;
  update event_store.stream_locks k
  set
    in_flight = null,
    last_error = v_error,
    parked_at = case when k.attempts >= _view.max_attempts then _now end,
    locked_until = case when k.attempts >= _view.max_attempts then 'infinity' else _now + event_store_private.retry_delay(k.attempts) end,
    updated_at = _now, revision = k.revision + 1
  where k.view = v_view and k.in_flight = v_offset and (k.decider_id = v_decider_id) is true and event_store_private.holds_lock(k, v_lease_token, _now)
  returning k.decider into _decider;
  if not found then
    perform event_store_private.refuse_not_in_flight(v_view, v_decider_id, v_offset, v_lease_token);
  end if;
  return query select * from event_store_private.lock_of_stream(v_view, v_decider_id, _decider);
end
$$;

comment on function event_store.fail_event(text, text, bigint, text, bigint) is
'Records that the event at v_offset, in flight for stream v_decider_id of a rows view, failed with v_error. The '
'stream is retried after 5 s, doubled each time up to an hour; after the view''s max_attempts it is parked '
'(dead_letters). All other streams continue. v_lease_token as for ack_event. MR005 v_error is empty; MR010 unknown '
'view; MR012 a bulk view; MR016 the event is not in flight for the caller.';
revoke all on function event_store.fail_event(text, text, bigint, text, bigint) from public;
grant execute on function event_store.fail_event(text, text, bigint, text, bigint)
to event_store_consumer, event_store_owner;
