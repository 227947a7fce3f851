-- An expired lease holds until another owner takes it: the token decides, not the clock.
create or replace function event_store_private.require_leases(
  v_view text,
  v_partition int[],
  v_lease_token bigint[]
)
returns void
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered
begin
  if v_partition is null or cardinality(v_partition) = 0 or cardinality(v_partition) <> coalesce(cardinality(v_lease_token), 0)
    -- Of two positions for one partition, either could be taken.
    or (select count(*) <> count(distinct partition) from unnest(v_partition) b(partition))
  then
    perform event_store_private.refuse_request(
      'v_partition and v_lease_token must have the same, positive length, and name each partition once',
      'Pass on what claim_batch returned.'
    );
  end if;
  perform event_store_private.own_view(v_view, 'bulk');
  -- the newest version of each row, as checkpoint_of finds it
  perform from (select partition from unnest(v_partition) b(partition) order by partition) b
  cross join lateral (
    select from event_store.checkpoints c
    where c.view = v_view and c.partition = b.partition
    order by c.revision desc
    limit 1
    for update
  ) c;
  if exists (
    select from unnest(v_partition, v_lease_token) b(partition, token)
    left join event_store_private.checkpoint_of(v_view, b.partition) c on true
    where c.lease_token is distinct from b.token or c.lease_owner is null
  ) then
    perform event_store_private.refuse_lost_lease(v_view, v_partition, v_lease_token);
  end if;
end
$$;

comment on function event_store_private.require_leases(text, int[], bigint[]) is
'Locks the checkpoints of a batch; MR011 unless every token is that of a lease in force.';
