-- If one log partition refuses, none is changed. Call it in a short transaction: until that ends, events may get no
-- position and the view's consumers get nothing.
--
-- v_kind: RESET_TO_OFFSET  beyond the high-water mark the view waits at v_position
--         RESET_TO_EARLIEST, RESET_TO_LATEST  to the first kept event, to the high-water mark
--         RESUME_OR_EARLIEST, RESUME_OR_LATEST  stay; if the position is no longer kept, to the first kept event or the
--                          mark
--         EXACT_TIMESTAMP  to the first event that was appended at or after v_timestamp; the high-water mark if there
--                          is none
--
-- Events ahead of the new position are delivered again, those behind it are not; locks_removed and dead_letters_removed
-- count the streams concerned. That is so even if the position is the same as before: a rows view's checkpoint runs
-- ahead of what is delivered.
--
-- A consumer that let its lease end can neither commit nor acknowledge its events. When a rows view delivers the same
-- event again, only tokens tell the old delivery from the new one (lease_events); stream_events has none.
-- Example: select partition, to_position from seek_view('invoices', 'RESET_TO_EARLIEST', v_dry_run => true)
create or replace function event_store_platform.seek_view(
  v_view text,
  v_kind text,
  v_position bigint default null,
  v_timestamp timestamptz default null,
  v_partition int default null,
  v_dry_run boolean default false,
  v_reason text default null
)
returns table (
  partition int,
  from_position bigint,
  to_position bigint,
  earliest_position bigint,
  high_water_mark bigint,
  locks_removed bigint,
  dead_letters_removed bigint,
  note text
)
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
#variable_conflict use_column
declare
  _fault text := case
    when v_kind is null or v_kind not in (
      'EXACT_OFFSET', 'RESET_TO_OFFSET', 'RESET_TO_EARLIEST', 'RESET_TO_LATEST', 'RESUME_OR_EARLIEST', 'RESUME_OR_LATEST', 'EXACT_TIMESTAMP'
    ) then format('v_kind is %L', v_kind)
    when v_kind in ('EXACT_OFFSET', 'RESET_TO_OFFSET') <> (v_position is not null) then
      format('%s with v_position %s', v_kind, coalesce(v_position::text, 'null'))
    when (v_kind = 'EXACT_TIMESTAMP') <> (v_timestamp is not null) then
      format('%s with v_timestamp %s', v_kind, coalesce(v_timestamp::text, 'null'))
    when v_position is not null and v_partition is null then format('%s without v_partition', v_kind)
    when v_dry_run is null then 'v_dry_run is null'
  end;
  _row record;
  _stays boolean;
begin
  if _fault is not null then
    perform event_store_private.refuse_request(
      _fault,
      'EXACT_OFFSET and RESET_TO_OFFSET take v_position and v_partition, EXACT_TIMESTAMP takes v_timestamp; RESET_TO_EARLIEST, RESET_TO_LATEST, RESUME_OR_EARLIEST and RESUME_OR_LATEST take neither.'
    );
  end if;
  if v_partition is not null then
    perform event_store_private.require_partition(v_partition);
  end if;
  -- Lasting obstacles are raised first, and checked again once no other session can change them.
  perform event_store_private.known_view(v_view);
  perform event_store_private.refuse_if_read_model(v_view);
  perform event_store_private.lock_idle_view(v_view, v_dry_run);
  perform event_store_private.refuse_if_read_model(v_view);
  -- the log keeps the events ahead of the new position
  perform event_store_private.share_history();
  perform event_store_platform.sequence_events();

  for _row in
    select c.partition, c.position, p as marks, at_time.position as at_time
    from event_store.checkpoints c
    join event_store.partitions p using (partition)
    left join event_store.offsets_for_timestamp(
      v_timestamp, case when v_partition is not null then array[v_partition] end
    ) at_time using (partition)
    where c.view = v_view and (v_partition is null or c.partition = v_partition)
    order by c.partition
  loop
    partition := _row.partition;
    from_position := _row.position;
    earliest_position := (_row.marks).earliest_position;
    high_water_mark := (_row.marks).high_water_mark;
    to_position := case v_kind
      when 'RESET_TO_EARLIEST' then earliest_position
      when 'RESET_TO_LATEST' then high_water_mark
      when 'RESUME_OR_EARLIEST' then case when from_position < earliest_position then earliest_position else from_position end
      when 'RESUME_OR_LATEST' then case when from_position < earliest_position then high_water_mark else from_position end
      when 'EXACT_TIMESTAMP' then _row.at_time
      else v_position
    end;
    if to_position < 0 then
      perform event_store_private.refuse_position(_row.marks, format('%s is negative', to_position));
    elsif to_position < earliest_position then
      perform event_store_private.refuse_position(_row.marks, format('%s lies below the earliest position', to_position));
    elsif v_kind = 'EXACT_OFFSET' and to_position >= high_water_mark then
      perform event_store_private.refuse_position(_row.marks, format('there is no event at %s yet', to_position));
    end if;
    note := case
      when from_position < earliest_position then format('the position %s lies below the earliest position', from_position)
      when to_position > high_water_mark then 'waits beyond the high-water mark'
    end;
    _stays := v_kind in ('RESUME_OR_EARLIEST', 'RESUME_OR_LATEST') and to_position = from_position;
    select count(*), count(k.parked_at) into locks_removed, dead_letters_removed
    from event_store.stream_locks k
    where k.view = v_view and k.partition = _row.partition and not _stays;
    if not v_dry_run then
      delete from event_store.stream_locks k
      where k.view = v_view and k.partition = _row.partition and not _stays;
      -- also if it already stands there: with the locks removed, consumers with an older snapshot must fail (40001)
      update event_store.checkpoints c set position = to_position where c.view = v_view and c.partition = _row.partition;
      perform event_store_private.audit(
        'seek_view', v_view, v_reason,
        jsonb_build_object(
          'kind', v_kind, 'position', v_position, 'timestamp', v_timestamp, 'partition', _row.partition, 'from_position', from_position,
          'to_position', to_position, 'locks_removed', locks_removed, 'dead_letters_removed', dead_letters_removed
        )
      );
    end if;
    return next;
  end loop;
end
$$;

comment on function event_store_platform.seek_view(text, text, bigint, timestamptz, int, boolean, text) is
'Moves a view in log partition v_partition, or in all (null), and returns for each where it stood and where it '
'stands. v_kind is EXACT_OFFSET (v_position, which the log holds), RESET_TO_OFFSET (v_position, also beyond the '
'mark), EXACT_TIMESTAMP (v_timestamp), RESET_TO_EARLIEST, RESET_TO_LATEST, RESUME_OR_EARLIEST or RESUME_OR_LATEST. '
'Unless it stays, the locks of streams that wait or are parked are removed. v_dry_run changes nothing; any other call is '
'audited with v_reason. MR005 the arguments do not fit v_kind; MR010 unknown view; MR013 unknown log partition; MR015'
' the log does not hold the position; MR017 something is leased or in flight; MR019 it is the view of a read model.';
revoke all on function event_store_platform.seek_view(text, text, bigint, timestamptz, int, boolean, text) from public;
grant execute on function event_store_platform.seek_view(text, text, bigint, timestamptz, int, boolean, text)
to event_store_owner;
