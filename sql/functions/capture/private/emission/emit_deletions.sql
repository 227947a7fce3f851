-- Each live stream gets deleted, in the order of keys behind v_after_key. The caller holds the capture's lock. If a
-- stream has changes in the quarantine, or the event_id is taken, the event goes into the quarantine, behind them.
-- v_read: the table as its backfill has read it. Then only streams count that the backfill neither appended to nor
-- found unchanged, and that no change has touched since the table was published. Null: all live streams.
-- v_change gives the cause for all of them: the data of the events, and with the stream the base of their ids, so that
-- the same call again appends nothing. A reading gives these itself: its number is unique, even after its table was
-- taken out of the capture and put back.
create or replace function event_store_private.emit_deletions(
  v_capture event_store.captures,
  v_decider text,
  v_read event_store.captured_tables,
  v_after_key text,
  v_limit bigint,
  v_change event_store.wal_events default null
)
returns table (
  deleted bigint,
  held bigint,
  looked_at bigint,
  to_key text
)
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
-- planner: indexed nested once
declare
  _change event_store.wal_events := v_change;
  _after bigint;
  _batch event_store_private.batch_event[];
begin
  if v_read.capture is not null then
    _change.event_id := md5(format('%s/%s/%s', v_capture.source_generation, v_read.backfill_offset, v_decider))::uuid;
    _change.command_id := _change.event_id;
    _change.data := jsonb_build_object(
      'record', null,
      'gap', true,
      'source', jsonb_build_object(
        'capture', v_capture.capture, 'generation', v_capture.source_generation, 'schema', v_read.schema_name, 'table', v_read.table_name
      )
    );
  end if;
  select last_value into _after from event_store.events_offset_seq;
  with looked as materialized (
    select l.decider_id collate "C" as decider_id, l.gone, l.waits
    from event_store_private.streams_without_rows(v_capture, v_decider, v_read, v_after_key, v_limit) l
  ), gone as materialized (
    select
      l.decider_id,
      l.waits or taken.fault is not null as waits,
      n.event_id,
      taken.fault,
      row_number() over (partition by l.waits or taken.fault is not null order by l.decider_id) as number
    from looked l
    cross join lateral (select md5(format('%s/%s/%s', _change.event_id, v_decider, l.decider_id))::uuid as event_id offset 0) n
    left join lateral (
      select format('event_id %s is stored with other content', n.event_id) as fault
      from event_store.events o
      where o.event_id = n.event_id
      offset 0
    ) taken on true
    where l.gone
  ), quarantined as (
    insert into event_store.quarantined_changes (
      capture, source_generation, commit_lsn, commit_idx, xid, decider, decider_id, action, event_id, command_id, data, fault,
      after_offset, quarantined_at
    )
    select
      v_capture.capture, v_capture.source_generation, _change.commit_lsn, _change.commit_idx, _change.xid, v_decider, g.decider_id,
      'deleted', g.event_id, _change.command_id, _change.data, g.fault, _after, event_store_private.clock()
    from gone g
    where g.waits
    order by g.decider_id
    returning 1
  )
  select
    (select count(*) from looked),
    (select max(l.decider_id) from looked l),
    (select count(*) from quarantined),
    count(*),
    array_agg(
      row(
        g.number, 'deleted', g.event_id, 1, v_decider, g.decider_id, _change.data, _change.command_id, null, false, false,
        null, event_store_private.change_metadata(_change.data)
      )::event_store_private.batch_event
      order by g.number
    )
  into looked_at, to_key, held, deleted, _batch
  from gone g
  where not g.waits;
  if _batch is not null then
    perform event_store_private.append_batch(_batch);
  end if;
  if looked_at < v_limit then
    to_key := null;
  end if;
  return next;
end
$$;

comment on function event_store_private.emit_deletions(event_store.captures, text, event_store.captured_tables, text, bigint, event_store.wal_events) is
'Appends deleted to streams of a table that have lost their rows, v_limit at a time; to_key is null once all are '
'checked.';
