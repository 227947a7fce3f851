-- Streams that have a lock wait, and the commit hands their events over to their locks. A rebuild reads the whole
-- range.
-- Example: select * from read_batch('invoices', 3, 17)
create or replace function event_store.read_batch(
  v_view text,
  v_partition int,
  v_lease_token bigint
)
returns setof event_store.log_event
language plpgsql
stable
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered nested
#variable_conflict use_column
declare
  _view constant event_store.views := event_store_private.own_view(v_view, 'bulk');
  _lease record;
begin
  select * into _lease from event_store_private.checkpoint_of(v_view, v_partition) c
  where c.lease_token = v_lease_token and c.lease_owner is not null;
  if not found then
    perform event_store_private.refuse_lost_lease(v_view, array[v_partition], array[v_lease_token]);
  end if;
  if not _lease.rebuilds then
    return query
    select r.*
    from event_store_platform.retried_events(v_view, v_partition, v_lease_token, _lease.leased_to) r
    where event_store_private.wants(_view.deciders, _view.events, r.decider, r.event)
    order by r."offset";
  end if;
  return query
  select l.position, r.*
  from event_store.event_log l
  join event_store.versioned_events r using ("offset")
  where l.partition = v_partition
    and l.position >= _lease.leased_from
    and l.position < _lease.leased_to
    and event_store_private.wants(_view.deciders, _view.events, r.decider, r.event)
    and (
      _lease.rebuilds
      or not exists (
        select from event_store_private.newest_lock(v_view, r.decider_id, r.decider)
      )
    )
  order by l.position;
end
$$;

comment on function event_store.read_batch(text, int, bigint) is
'Returns the events that the lease v_lease_token of log partition v_partition delivers, streams in order: first those '
'of streams that it retries, then the leased range without streams that have a lock. Only events that the view wants. '
'MR010 unknown view; MR011 the lease is lost; MR012 a rows view.';
revoke all on function event_store.read_batch(text, int, bigint) from public;
grant execute on function event_store.read_batch(text, int, bigint) to event_store_consumer, event_store_owner;
