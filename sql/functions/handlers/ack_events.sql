-- Example: select * from ack_events('invoices', '{1,2,3}')
create or replace function event_store.ack_events(
  v_view text,
  v_offsets bigint[],
  v_lease_tokens bigint[] default null
)
returns setof bigint
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed nested once
declare
  _now constant timestamptz := event_store_private.clock();
  _held tid[];
begin
  perform event_store_private.own_view(v_view, 'rows');
  if v_offsets is null or cardinality(v_offsets) <> coalesce(cardinality(v_lease_tokens), cardinality(v_offsets)) then
    perform event_store_private.refuse_request(
      format('%s offsets, %s lease tokens', coalesce(cardinality(v_offsets)::text, 'no'), coalesce(cardinality(v_lease_tokens)::text, 'no')),
      'Pass an array of offsets and, where you have them, as many lease tokens.'
    );
  end if;
  -- One probe for each stream, whatever the statistics say. Locks are taken in one order, so that two callers do not
  -- deadlock. The update is a later statement: during the wait, extend_lock may make a new version of a row.
  _held := array(
    select k.version
    from (
      select a."offset", a.lease_token
      from unnest(v_offsets, v_lease_tokens) a("offset", lease_token)
      order by a."offset"
      offset 0
    ) a
    cross join lateral (
      select k.ctid as version
      from event_store.stream_locks k
      where k.view = v_view and k.in_flight = a."offset"
        and event_store_private.holds_lock(k, a.lease_token, _now)
      limit 1
      for update
    ) k
  );
  return query
  update event_store.stream_locks k
  set
    last_offset = k.in_flight,
    last_version = (select e.version from event_store.events e where e."offset" = k.in_flight), in_flight = null, attempts = 0, last_error = null, locked_until = _now,
    updated_at = _now, revision = k.revision + 1,
    caught_up = k.nothing_after
  where k.ctid = any (_held)
  returning k.last_offset;
end
$$;

comment on function event_store.ack_events(text, bigint[], bigint[]) is
'Acknowledges the events at v_offsets of a rows view and returns the offsets that it acknowledged: the others were no '
'longer in flight for the caller and are delivered again. v_lease_tokens is null or has one token for each. MR005 the '
'arrays do not fit; MR010 unknown view; MR012 a bulk view.';
revoke all on function event_store.ack_events(text, bigint[], bigint[]) from public;
grant execute on function event_store.ack_events(text, bigint[], bigint[]) to event_store_consumer, event_store_owner;
