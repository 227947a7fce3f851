-- Ends the streams of a table whose rows are gone without a change of their own: appends deleted to each live one, in
-- the order of keys, looking at no more than v_limit streams after v_after_key. The caller holds the capture's lock. A stream with changes in the quarantine gets it there, behind them.
-- v_read: the table as its backfill has read it; then only streams are meant that neither the backfill has appended to or
-- found unchanged, nor, since it was published, a change has touched. Null: all of them.
-- v_change says why: the data of the events, and what they are named after beside their stream, so that the same call
-- again appends nothing.
create or replace function event_store_private.emit_deletions(
  v_capture event_store.captures,
  v_decider text,
  v_read event_store.captured_tables,
  v_after_key text,
  v_limit bigint,
  v_change event_store.wal_events
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
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
  _after bigint;
  _batch event_store_private.batch_event[];
begin
  select last_value into _after from event_store.events_offset_seq;
  with recursive streams (decider_id) as (
    -- From stream to stream, however many events each has: 8 us of CPU a stream. To walk the index takes 0.3 us an event.
    select v_after_key collate "C"
    union all
    select n.decider_id
    from streams s
    cross join lateral (
      select e.decider_id
      from event_store.events e
      -- a key is a JSON array: so much of the index is nobody else's
      where e.decider_id > s.decider_id and e.decider_id >= '[' and e.decider_id < '\' and e.decider = v_decider
      order by e.decider_id, e.decider, e.version -- as events_stream_key has them
      limit 1
    ) n
  ), keys as materialized (
    (
      select s.decider_id
      from streams s
      offset 1 -- the first is v_after_key itself
      limit v_limit
    )
    union
    (
      select p.decider_id
      from event_store.purged_streams p
      where p.decider_id > v_after_key and p.decider_id >= '[' and p.decider_id < '\' and p.decider = v_decider
      order by p.decider_id
      limit v_limit
    )
    union
    (
      select distinct q.decider_id
      from event_store.quarantined_changes q
      where q.decider_id > v_after_key and q.decider_id >= '[' and q.decider_id < '\' and q.decider = v_decider
      order by q.decider_id
      limit v_limit
    )
    order by decider_id
    limit v_limit
  ), gone as materialized (
    select
      k.decider_id,
      waiting.action is not null as waits,
      md5(format('%s/%s/%s', v_change.event_id, v_decider, k.decider_id))::uuid as event_id,
      row_number() over (partition by waiting.action is not null order by k.decider_id) as number
    from keys k
    left join lateral event_store_private.head_of_stream(k.decider_id, v_decider) s on true
    left join event_store.events e on e."offset" = s.last_offset
    left join lateral event_store_private.change_origin(e.data) o on true
    left join lateral (
      select q.action, q.source_generation, q.xid, q.after_offset
      from event_store.quarantined_changes q
      where q.decider_id = k.decider_id and q.decider = v_decider
      order by q.quarantine_id desc
      limit 1
    ) waiting on true
    left join event_store.unchanged_rows u on u.backfill_offset = v_read.backfill_offset and u.decider_id = k.decider_id
    where k.decider_id <> '[]' -- the stream of the table itself
      and u.decider_id is null
      and s.final is not true
      and case when waiting.action is not null then waiting.action else e.event end is distinct from 'deleted'
      and case
        when v_read.capture is null then true
        when waiting.action = 'backfilled' then waiting.after_offset < v_read.backfill_offset
        when waiting.action is not null then
          waiting.source_generation < v_capture.source_generation or waiting.xid < v_read.published_xid
        when e.event = 'backfilled' then s.last_offset < v_read.backfill_offset
        -- an event that no capture appended tells when it came, and not from where
        else coalesce(
          o.generation < v_capture.source_generation or o.xid < v_read.published_xid,
          s.last_offset < v_read.backfill_offset
        )
      end
  ), quarantined as (
    insert into event_store.quarantined_changes (
      capture, source_generation, commit_lsn, commit_idx, xid, decider, decider_id, action, event_id, command_id, data, after_offset,
      quarantined_at
    )
    select
      v_capture.capture, v_capture.source_generation, v_change.commit_lsn, v_change.commit_idx, v_change.xid, v_decider, g.decider_id,
      'deleted', g.event_id, v_change.command_id, v_change.data, _after, event_store_private.clock()
    from gone g
    where g.waits
    order by g.decider_id
    returning 1
  )
  select
    (select count(*) from keys),
    (select max(decider_id) from keys),
    (select count(*) from quarantined),
    count(*),
    array_agg(
      row(
        g.number, 'deleted', g.event_id, 1, v_decider, g.decider_id, v_change.data, v_change.command_id, null, false, false,
        null, event_store_private.change_metadata(v_change.data)
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
'Appends deleted to streams of a table whose rows are gone, so many at a time; to_key is null when all were looked '
'at.';
