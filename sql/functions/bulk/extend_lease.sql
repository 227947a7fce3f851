-- Lets leases in force last v_lease_s seconds from now (default: the view's lock_timeout_s). All of them, or MR011.
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
declare
  _until timestamptz;
begin
  perform event_store_private.require_leases(v_view, v_partition, v_lease_token);
  _until := event_store_private.clock() + event_store_private.lease_duration(event_store_private.known_view(v_view, 'bulk'), v_lease_s);
  update event_store.checkpoints set leased_until = _until where view = v_view and partition = any (v_partition);
  return _until;
end
$$;

comment on function event_store.extend_lease(text, int[], bigint[], bigint) is 'Extends leases in force and returns until when. MR005, MR010, MR011 lease lost, MR012.';
revoke all on function event_store.extend_lease(text, int[], bigint[], bigint) from public;
grant execute on function event_store.extend_lease(text, int[], bigint[], bigint)
to event_store_consumer, event_store_owner;
