-- The event truncated goes to the stream [] of the table, then deleted to each of its live streams, at most v_limit a
-- call. The caller holds the capture's lock, and keeps to_key as truncating_key.
create or replace function event_store_private.emit_truncate(
  v_capture event_store.captures,
  v_limit bigint
)
returns table (
  emitted bigint,
  quarantined bigint,
  held bigint,
  looked_at bigint,
  to_key text,
  to_lsn pg_lsn,
  to_idx bigint
)
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered once
declare
  _change event_store.wal_events;
  _deletions record;
begin
  select * into _change
  from event_store.wal_events w
  where w.source_generation = v_capture.source_generation
    and (w.commit_lsn, w.commit_idx) > (v_capture.emitted_lsn, v_capture.emitted_idx)
    and w.commit_lsn < v_capture.stored_lsn
  order by w.commit_lsn, w.commit_idx
  limit 1;
  emitted := 0;
  quarantined := 0;
  held := 0;
  if v_capture.truncating_key is null then
    _change.fault := coalesce(
      _change.fault,
      event_store_private.append_fault(_change.action, _change.event_id, _change.decider, '[]', _change.data, _change.command_id)
    );
    insert into event_store.quarantined_changes (
      capture, source_generation, commit_lsn, commit_idx, xid, committed_at, decider, decider_id, action, event_id, command_id,
      data, fault, raw, relation, after_offset, quarantined_at
    )
    select
      v_capture.capture, _change.source_generation, _change.commit_lsn, _change.commit_idx, _change.xid, _change.committed_at,
      _change.decider, '[]',
      _change.action, _change.event_id, _change.command_id, _change.data, _change.fault, _change.raw, _change.relation, o.last_value,
      event_store_private.clock()
    from event_store.events_offset_seq o
    where _change.fault is not null
      or exists (select from event_store.quarantined_changes q where q.decider_id = '[]' and q.decider = _change.decider);
    if found then
      quarantined := (_change.fault is not null)::int;
      held := 1 - quarantined;
    else
      perform event_store_private.append_batch(
        array[
          row(
            1, _change.action, _change.event_id, 1, _change.decider, '[]', _change.data, _change.command_id, null, false, false,
            null, event_store_private.change_metadata(_change.data)
          )::event_store_private.batch_event
        ]
      );
      emitted := 1;
    end if;
  end if;
  _change.data := coalesce(_change.data, '{}') || '{"record": null, "truncated": true}';
  select * into _deletions
  from event_store_private.emit_deletions(v_capture, _change.decider, null, coalesce(v_capture.truncating_key, ''), v_limit, _change);
  emitted := emitted + _deletions.deleted;
  held := held + _deletions.held;
  looked_at := _deletions.looked_at;
  to_key := _deletions.to_key;
  to_lsn := _change.commit_lsn;
  to_idx := _change.commit_idx;
  return next;
end
$$;

comment on function event_store_private.emit_truncate(event_store.captures, bigint) is
'Emits the TRUNCATE that is next in a locked capture, some rows at a time; to_key is null once all rows are emitted.';
