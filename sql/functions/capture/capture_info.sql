-- Example: select capture, stored_at, unemitted, quarantined from capture_info()
create or replace function event_store_platform.capture_info(
  v_capture text default null
)
returns table (
  capture text,
  source_generation int,
  slot text,
  publication text,
  stored_lsn pg_lsn,
  stored_at timestamptz,
  emitted_lsn pg_lsn,
  unemitted bigint,
  quarantined bigint,
  held bigint,
  open_gaps bigint,
  gaps bigint,
  tables bigint,
  tables_stopped bigint,
  tables_to_backfill bigint,
  backfilled_rows bigint,
  lease_owner text,
  leased_until timestamptz,
  leased boolean,
  timelines text
)
language plpgsql
volatile -- the clock is
security definer
set search_path = event_store, pg_temp
as $$
#variable_conflict use_column
begin
  if v_capture is not null then
    perform event_store_private.known_capture(v_capture);
  end if;
  return query
  select
    c.capture, c.source_generation, c.slot, c.publication, c.stored_lsn, c.stored_at, c.emitted_lsn, w.unemitted,
    q.quarantined, q.held, g.open_gaps, g.gaps, t.tables, t.tables_stopped, t.tables_to_backfill, t.backfilled_rows, c.lease_owner, c.leased_until,
    coalesce(c.leased_until > (select event_store_private.clock()), false), c.timelines
  from event_store.captures c
  cross join lateral (
    select count(*) as unemitted
    from (
      select
      from event_store.wal_events w
      where w.source_generation = c.source_generation
        and (w.commit_lsn, w.commit_idx) > (c.emitted_lsn, c.emitted_idx)
        and w.commit_lsn < c.stored_lsn
      limit 10000
    ) counted
  ) w
  cross join lateral (
    select count(*) filter (where fault is not null) as quarantined, count(*) filter (where fault is null) as held
    from event_store.quarantined_changes q
    where q.capture = c.capture
  ) q
  cross join lateral (
    select count(*) filter (where resolved_by_generation is null) as open_gaps, count(*) as gaps
    from event_store.capture_gaps g
    where g.capture = c.capture
  ) g
  cross join lateral (
    select
      count(*) as tables,
      count(*) filter (where stopped_reason is not null) as tables_stopped,
      count(*) filter (where backfill_generation is null and stopped_reason is null) as tables_to_backfill,
      coalesce(sum(backfilled_rows), 0)::bigint as backfilled_rows
    from event_store.captured_tables t
    where t.capture = c.capture
  ) t
  where v_capture is null or c.capture = v_capture
  order by c.capture;
end
$$;

comment on function event_store_platform.capture_info(text) is
'Returns one row per capture, or only v_capture: its progress, what waits and why, its gaps, its tables that are '
'stopped or to be backfilled, the owner of its lease, whether that lease is in force (leased), and the timelines of '
'its source''s log. unemitted is counted to ten thousand. MR030 unknown capture.';
revoke all on function event_store_platform.capture_info(text) from public;
grant execute on function event_store_platform.capture_info(text) to event_store_consumer, event_store_reader, event_store_owner;
