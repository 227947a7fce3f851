-- These are the transactions that were in progress in the earlier snapshot, and those that began after it, between the
-- ones that are still open. No range includes an open transaction, so its events are not read, however many there are.
-- Ids of aborted transactions lie in ranges, too.
-- Example: select from_id, before_id from fresh_transactions('5:9:5,7', '7:12:7,10') gives 5 to 6, 9 to 10, 11 to 12
create or replace function event_store_private.fresh_transactions(
  v_earlier pg_snapshot,
  v_later pg_snapshot
)
returns table (
  from_id xid8,
  before_id xid8
)
language sql
immutable
parallel safe
as $$
  select x, (x::text::bigint + 1)::text::xid8
  from pg_snapshot_xip(v_earlier) x
  where pg_visible_in_snapshot(x, v_later)
  union all
  select between_open.from_id, between_open.before_id
  from (
    select
      coalesce((lag(open.x) over (order by open.x)::text::bigint + 1)::text::xid8, pg_snapshot_xmax(v_earlier)),
      open.x
    from (
      select x from pg_snapshot_xip(v_later) x where x >= pg_snapshot_xmax(v_earlier)
      union all
      select pg_snapshot_xmax(v_later)
    ) open
  ) between_open(from_id, before_id)
  where between_open.from_id < between_open.before_id
$$;

comment on function event_store_private.fresh_transactions(pg_snapshot, pg_snapshot) is
'The transactions that v_later sees and v_earlier does not, as ranges of ids (from_id up to and without before_id).';
