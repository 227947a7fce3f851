-- Moves the checkpoints of claimed log partitions to v_to_offset and ends their leases: all of them or, if one token was
-- taken over, none (MR011). Called in the transaction that writes the effect, so effect and position commit together.
create or replace function event_store.commit_batch(
  v_view text,
  v_partition int[],
  v_to_offset bigint[],
  v_lease_token bigint[]
)
returns void
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
declare
  _bad text;
begin
  perform event_store.require_leases(v_view, v_partition, v_lease_token);
  select string_agg(
    format('partition %s: to %s, position %s, high-water mark %s', b.partition, b.to_offset, c.position, p.high_water_mark),
    '; ' order by b.partition
  )
  into _bad
  from unnest(v_partition, v_to_offset) b(partition, to_offset)
  left join event_store.checkpoints c on c.view = v_view and c.partition = b.partition
  left join event_store.partitions p on p.partition = b.partition
  where (b.to_offset between c.position and p.high_water_mark) is not true;
  if _bad is not null then
    raise exception 'checkpoint cannot move there'
      using errcode = 'MR015', detail = _bad, hint = 'Commit an offset from the position up to the high-water mark.';
  end if;
  update event_store.checkpoints c
  set position = b.to_offset, lease_owner = null, leased_until = null
  from unnest(v_partition, v_to_offset) b(partition, to_offset)
  where c.view = v_view and c.partition = b.partition;
end
$$;

comment on function event_store.commit_batch(text, int[], bigint[], bigint[]) is 'Moves the checkpoints of a claimed batch and ends its leases, fenced by token. MR005, MR010, MR011 lease lost, MR012, MR015 offset out of range.';
