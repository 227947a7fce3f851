-- The caller has checked the copy that is kept outside of the database.
-- Example: select mark_archived(3, 100000)
create or replace function event_store_platform.mark_archived(
  v_partition int,
  v_to_position bigint
)
returns bigint
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _partition event_store.partitions;
begin
  if v_to_position is null then
    perform event_store_private.refuse_request('v_to_position is null', 'State a position.');
  end if;
  perform event_store_private.require_partition(v_partition);
  perform from event_store.log_partitions p where p.partition = v_partition for no key update;
  select * into _partition from event_store.partitions where partition = v_partition;
  if v_to_position < 0 or v_to_position > _partition.high_water_mark then
    perform event_store_private.refuse_position(_partition, format('%s cannot be archived', v_to_position));
  end if;
  update event_store.log_partitions set archived_position = v_to_position where partition = v_partition and archived_position < v_to_position;
  if found then
    perform event_store_private.audit(
      'mark_archived', null, null,
      jsonb_build_object('partition', v_partition, 'from_position', _partition.archived_position, 'to_position', v_to_position)
    );
  end if;
  return greatest(_partition.archived_position, v_to_position);
end
$$;

comment on function event_store_platform.mark_archived(int, bigint) is
'Records that every event of log partition v_partition below v_to_position is also kept outside of the database, and '
'returns that mark, which never moves back. Only such events can be purged. MR005 v_to_position is null; MR013 '
'unknown log partition; MR015 v_to_position lies beyond the log.';
revoke all on function event_store_platform.mark_archived(int, bigint) from public;
grant execute on function event_store_platform.mark_archived(int, bigint) to event_store_owner;
