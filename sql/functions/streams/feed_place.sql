-- In a transaction of one snapshot it says which changes that snapshot's rows have: those below the log's end, and the
-- unsequenced ones, whose positions will be beyond it.
-- Example: select epoch, key, columns, unsequenced from feed_place('orders')
create or replace function event_store_platform.feed_place(
  v_model text
)
returns table (
  epoch bigint,
  key text[],
  columns text[],
  unsequenced bigint[]
)
language sql
stable
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered
  select f.epoch, f.key, f.columns, array(
    select e."offset"
    from (select q.snapshot from event_store.sequencer q where q.singleton order by q.revision desc limit 1) s
    cross join lateral event_store_private.fresh_transactions(s.snapshot, pg_current_snapshot()) t
    cross join lateral (
      select n."offset", n.decider from event_store.events n
      where n.transaction_id >= t.from_id and n.transaction_id < t.before_id
      offset 0 -- a look-up for each range, never all events once
    ) e
    where e.decider = 'model:' || v_model
  )
  from read_models.feeds f
  where f.model = v_model and f.tells
$$;

comment on function event_store_platform.feed_place(text) is
'Returns where the feed of read model v_model stands: its epoch, the columns of its key, those that it tells, and the offsets of its committed events '
'without a position. No row for a model without a feed.';
revoke all on function event_store_platform.feed_place(text) from public;
grant execute on function event_store_platform.feed_place(text) to event_store_reader, event_store_owner;
