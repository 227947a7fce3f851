-- A lost lease is no error here.
create or replace function event_store.release_batch(
  v_view text,
  v_partition int[],
  v_lease_token bigint[]
)
returns bigint
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered nested
declare
  _released bigint;
begin
  perform event_store_private.own_view(v_view, 'bulk');
  -- A lost or released lease is now another owner's row: the caller's transaction does not lock it.
  perform from (select partition, token from unnest(v_partition, v_lease_token) b(partition, token) order by partition) b
  cross join lateral (
    select from event_store.checkpoints c
    where c.view = v_view and c.partition = b.partition and c.lease_token = b.token and c.lease_owner is not null
    order by c.revision desc
    limit 1
    for update
  ) c;
  with released as (
    update event_store.checkpoints c
    set
      lease_owner = null, leased_until = null, leased_from = null, leased_to = null, rebuilds = false, revision = c.revision + 1
    from unnest(v_partition, v_lease_token) b(partition, token)
    cross join lateral event_store_private.checkpoint_of(v_view, b.partition) held
    where c.ctid = held.version and held.lease_token = b.token and held.lease_owner is not null
    returning 1
  )
  select count(*) into _released from released;
  return _released;
end
$$;

comment on function event_store.release_batch(text, int[], bigint[]) is
'Releases the leases v_lease_token of the log partitions v_partition without moving a checkpoint and returns how many '
'were still held. MR010 unknown view; MR012 a rows view.';
revoke all on function event_store.release_batch(text, int[], bigint[]) from public;
grant execute on function event_store.release_batch(text, int[], bigint[]) to event_store_consumer, event_store_owner;
