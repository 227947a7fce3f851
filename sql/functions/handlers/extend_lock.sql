-- For an event that was leased ahead, the delivery counts as an attempt from now on.
-- Example: select locked_until from extend_lock('invoices', 'o-1', 1, 600)
create or replace function event_store.extend_lock(
  v_view text,
  v_decider_id text,
  v_offset bigint,
  v_seconds bigint default null,
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
  if v_seconds not between 1 and 3600 then
    perform event_store_private.refuse_request(
      format('v_seconds is %s', v_seconds),
      'v_seconds must be from 1 to 3600; null means the view''s lock_timeout_s.'
    );
  end if;
  update event_store.stream_locks k
  set ahead = 0, locked_until = _now + make_interval(secs => coalesce(v_seconds, _view.lock_timeout_s)), updated_at = _now,
    revision = k.revision + 1
  where k.view = v_view and k.in_flight = v_offset and (k.decider_id = v_decider_id) is true and event_store_private.holds_lock(k, v_lease_token, _now)
  returning k.decider into _decider;
  if not found then
    perform event_store_private.refuse_not_in_flight(v_view, v_decider_id, v_offset, v_lease_token);
  end if;
  return query select * from event_store_private.lock_of_stream(v_view, v_decider_id, _decider);
end
$$;

comment on function event_store.extend_lock(text, text, bigint, bigint, bigint) is
'Extends the lock of the event at v_offset, in flight for stream v_decider_id of a rows view, to v_seconds from now '
'(null: the view''s lock_timeout_s), and returns it. Also marks the event as being handled, see lease_events. '
'v_lease_token as for ack_event. MR005 v_seconds is out of range; MR010 unknown view; MR012 a bulk view; MR016 the '
'event is not in flight for the caller.';
revoke all on function event_store.extend_lock(text, text, bigint, bigint, bigint) from public;
grant execute on function event_store.extend_lock(text, text, bigint, bigint, bigint)
to event_store_consumer, event_store_owner;
