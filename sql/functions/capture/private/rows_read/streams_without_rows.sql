-- The next v_limit streams after v_after_key, in the order of keys. gone: the stream is live, but its row disappeared
-- without a change of its own. waits: the stream has changes in the quarantine. The caller holds the capture's lock.
-- v_read: the table as it was read. Then a row is gone if the reading has neither appended to its stream nor found it
-- unchanged, and no change has touched it since the table was published. If the reading could not read the key of some
-- row, any stream may be that row's, and none is gone. Null: the row of each live stream is gone.
create or replace function event_store_private.streams_without_rows(
  v_capture event_store.captures,
  v_decider text,
  v_read event_store.captured_tables,
  v_after_key text,
  v_limit bigint
)
returns table (
  decider_id text,
  gone boolean,
  waits boolean
)
language plpgsql
volatile -- sees what the caller stored
set search_path = event_store, pg_temp
as $$
-- planner: indexed nested once
#variable_conflict use_column
declare
  _some_unread constant boolean := exists (
    select from event_store.unchanged_rows u where u.backfill_offset = v_read.backfill_offset and u.decider_id = ''
  );
begin
  return query
  with recursive streams (decider_id) as (
    -- Jumps from stream to stream: 8 us of CPU each, however many events it has. An index walk takes 0.3 us an event.
    select v_after_key collate "C"
    union all
    select n.decider_id
    from streams s
    cross join lateral (
      select e.decider_id
      from event_store.events e
      -- A key is a JSON array: other streams are in other parts of the index.
      where e.decider_id > s.decider_id and e.decider_id >= '[' and e.decider_id < E'\\' and e.decider = v_decider
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
      where p.decider_id > v_after_key and p.decider_id >= '[' and p.decider_id < E'\\' and p.decider = v_decider
      order by p.decider_id
      limit v_limit
    )
    union
    (
      select distinct q.decider_id
      from event_store.quarantined_changes q
      where q.decider_id > v_after_key and q.decider_id >= '[' and q.decider_id < E'\\' and q.decider = v_decider
      order by q.decider_id
      limit v_limit
    )
    order by decider_id
    limit v_limit
  )
  select
    k.decider_id,
    k.decider_id <> '[]' -- the stream of the table itself
      and not _some_unread
      and u.decider_id is null
      and s.final is not true
      and case when waiting.action is not null then waiting.action else e.event end is distinct from 'deleted'
      and case
        when v_read.capture is null then true
        when waiting.action = 'backfilled' then waiting.after_offset < v_read.backfill_offset
        when waiting.action is not null then
          waiting.source_generation < v_capture.source_generation or waiting.xid < v_read.published_xid
        when e.event = 'backfilled' then s.last_offset < v_read.backfill_offset
        -- an event that no capture appended has an offset, but no origin
        else coalesce(
          o.generation < v_capture.source_generation or o.xid < v_read.published_xid,
          s.last_offset < v_read.backfill_offset
        )
      end,
    waiting.action is not null
  from keys k
  left join lateral event_store_private.head_of_stream(k.decider_id, v_decider) s on true
  -- "offset 0": one look-up per stream, even if the plan was made for a store without events
  left join lateral (select h.event, h.data from event_store.events h where h."offset" = s.last_offset offset 0) e on true
  left join lateral event_store_private.change_origin(e.data) o on true
  left join lateral (
    select q.action, q.source_generation, q.xid, q.after_offset
    from event_store.quarantined_changes q
    where q.decider_id = k.decider_id and q.decider = v_decider
    order by q.quarantine_id desc
    limit 1
  ) waiting on true
  left join lateral (
    select r.decider_id
    from event_store.unchanged_rows r
    where r.backfill_offset = v_read.backfill_offset and r.decider_id = k.decider_id
    offset 0
  ) u on true
  order by k.decider_id;
end
$$;

comment on function event_store_private.streams_without_rows(event_store.captures, text, event_store.captured_tables, text, bigint) is
'The next streams of a captured table, and whether their rows are gone.';
