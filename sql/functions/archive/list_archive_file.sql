-- One call lists the file and marks its events as archived (mark_archived). Positions in between that the log does not
-- have are no gap.
-- Example: select list_archive_file(3, 0, 1000, 'p0003/p0003-000000000000000-000000000001000.parquet', 34567, '9f86…')
create or replace function event_store_platform.list_archive_file(
  v_partition int,
  v_from_position bigint,
  v_to_position bigint,
  v_path text,
  v_bytes bigint,
  v_checksum text
)
returns bigint
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _partition event_store.partitions;
  _fault text;
begin
  if coalesce(v_path, '') = '' or (v_bytes > 0) is not true or (v_checksum ~ '^[0-9a-f]{64}$') is not true then
    perform event_store_private.refuse_request(
      format('path %s, %s bytes, checksum %s', v_path, v_bytes, v_checksum), 'State a path, a size, and a SHA-256 in hexadecimal digits.'
    );
  end if;
  perform event_store_private.require_partition(v_partition);
  perform from event_store.log_partitions p where p.partition = v_partition for no key update;
  select * into _partition from event_store.partitions where partition = v_partition;

  delete from event_store.archive_files
  where partition = v_partition and from_position >= v_from_position and to_position <= v_to_position;
  select case
    when (0 <= v_from_position and v_from_position < v_to_position and v_to_position <= _partition.high_water_mark) is not true
      then format('%s to %s cannot be archived', v_from_position, v_to_position)
    when exists (
      select from event_store.archive_files
      where partition = v_partition and from_position < v_to_position and to_position > v_from_position
    )
      then format('a listed file holds only a part of %s to %s', v_from_position, v_to_position)
    when v_from_position > greatest(
      _partition.earliest_position,
      (select max(to_position) from event_store.archive_files where partition = v_partition and to_position <= v_from_position)
    )
      then format('events before %s are not archived', v_from_position)
  end
  into _fault;
  if _fault is not null then
    perform event_store_private.refuse_position(_partition, _fault);
  end if;
  insert into event_store.archive_files (partition, from_position, to_position, path, events, bytes, checksum, archived_at)
  values (
    v_partition, v_from_position, v_to_position, v_path, v_to_position - v_from_position, v_bytes, v_checksum, event_store_private.clock()
  );
  perform event_store_private.audit(
    'list_archive_file', null, null,
    jsonb_build_object(
      'partition', v_partition, 'from_position', v_from_position, 'to_position', v_to_position, 'path', v_path, 'checksum', v_checksum
    )
  );
  return event_store_platform.mark_archived(v_partition, v_to_position);
end
$$;

comment on function event_store_platform.list_archive_file(int, bigint, bigint, text, bigint, text) is
'Lists a file of the archive that is written, read back and checked: v_path below the archive''s root, v_bytes long, '
'with the SHA-256 v_checksum, holding v_from_position up to before v_to_position of log partition v_partition. Files '
'within its range are no longer listed. Returns up to where the log partition is archived. MR005 path, size or '
'checksum is malformed; MR013 unknown log partition; MR015 the log does not hold the range, or a gap would be left.';
revoke all on function event_store_platform.list_archive_file(int, bigint, bigint, text, bigint, text) from public;
grant execute on function event_store_platform.list_archive_file(int, bigint, bigint, text, bigint, text) to event_store_owner;
