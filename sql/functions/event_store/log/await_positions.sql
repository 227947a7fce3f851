-- Where it sequences itself, it holds the log until the caller's transaction ends. The caller can lift the bound on how
-- long that may idle. So such a transaction cannot be prepared, and a sequencer ends the session where it idles
-- (end_log_holder).
-- Example: select * from await_positions('{6f1d2f0a-64a5-4b5e-9f0e-1c1e7b0a0001}')
create or replace function event_store.await_positions(
  v_event_ids uuid[],
  v_seconds bigint default 5
)
returns table (
  event_id uuid,
  partition int,
  "position" bigint
)
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered nested once
#variable_conflict use_column
declare
  _until timestamptz;
begin
  if v_event_ids is null or v_seconds between 0 and 60 is not true then
    perform event_store_private.refuse_request(
      format('v_event_ids %s, v_seconds %s', coalesce(cardinality(v_event_ids)::text || ' ids', 'null'), coalesce(v_seconds::text, 'null')),
      'v_event_ids must be an array of event_ids; v_seconds from 0 to 60.'
    );
  end if;
  if pg_current_xact_id_if_assigned() is not null or current_setting('transaction_isolation') <> 'read committed' then
    perform event_store_private.refuse_request(
      'the transaction has written, or is above READ COMMITTED',
      'Commit first, and call it at READ COMMITTED: an event gets its position after its commit.'
    );
  end if;
  _until := clock_timestamp() + make_interval(secs => v_seconds);
  while exists (
    select from unnest(v_event_ids) i(event_id)
    join event_store.events e using (event_id)
    left join event_store.event_log l using ("offset")
    where l."offset" is null
  ) and (
    case when event_store_platform.is_attended() then 0 else event_store_platform.sequence_events() end > 0
    or clock_timestamp() < _until
  ) loop
    perform pg_sleep(0.001) where pg_current_xact_id_if_assigned() is null; -- not where this session sequenced
  end loop;
  return query
  select i.event_id, p.partition, p.position
  from unnest(v_event_ids) with ordinality i(event_id, n)
  cross join lateral event_store.log_position(i.event_id) p
  order by i.n;
end
$$;

comment on function event_store.await_positions(uuid[], bigint) is
'Waits until committed events have their positions in the log, for v_seconds at most, and returns the positions; '
'position is null where that was too short. Events that are not stored are left out. Where no sequencer is at work it sequences new events itself. MR005 an '
'argument is null or out of range, or the transaction has written or is above READ COMMITTED.';
revoke all on function event_store.await_positions(uuid[], bigint) from public;
grant execute on function event_store.await_positions(uuid[], bigint)
to event_store_writer, event_store_consumer, event_store_owner;
