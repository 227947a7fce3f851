-- Extends leases that are in force.
create or replace function event_store.extend_lease(
  v_view text,
  v_partition int[],
  v_lease_token bigint[],
  v_lease_s bigint default null
)
returns timestamptz
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered nested
declare
  _until timestamptz;
begin
  perform event_store_private.require_leases(v_view, v_partition, v_lease_token);
  _until := event_store_private.clock() + event_store_private.lease_duration(event_store_private.own_view(v_view, 'bulk'), v_lease_s);
  update event_store.checkpoints c
  set leased_until = _until, revision = c.revision + 1
  from unnest(v_partition) b(partition)
  cross join lateral event_store_private.checkpoint_of(v_view, b.partition) held
  where c.ctid = held.version; -- require_leases locked this version
  return _until;
end
$$;

comment on function event_store.extend_lease(text, int[], bigint[], bigint) is
'Extends the leases v_lease_token of the log partitions v_partition to v_lease_s from now (null: the view''s '
'lock_timeout_s), all of them or none, and returns until when. MR005 the arrays do not fit, or v_lease_s is out of '
'range; MR010 unknown view; MR011 a lease is lost; MR012 a rows view.';
revoke all on function event_store.extend_lease(text, int[], bigint[], bigint) from public;
grant execute on function event_store.extend_lease(text, int[], bigint[], bigint)
to event_store_consumer, event_store_owner;
