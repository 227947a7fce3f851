-- Reads 10,000 rows that wait at most, and 10,000 that were refused, however many there are.
-- Example: select * from scheduled_statistics()
create or replace function event_store_platform.scheduled_statistics()
returns table (
  waiting bigint,
  next_at timestamptz,
  refused bigint,
  late_s double precision
)
language sql
stable
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered
  select
    (select count(*) from (select from event_store.scheduled_events s where s.done_at is null limit 10000) w),
    (
      select min(n.next_at)
      from event_store_private.scheduling_roles() r(role)
      cross join lateral (
        select s.next_at from event_store.scheduled_events s where s.done_at is null and s.made_by = r.role order by s.next_at limit 1
      ) n
    ),
    (select count(*) from (select from event_store.scheduled_events s where s.outcome = 'refused' limit 10000) d),
    (
      select percentile_cont(0.99) within group (order by extract(epoch from f.done_at - greatest(f.due_at, f.made_at)))
      from (
        select s.done_at, s.due_at, s.made_at from event_store.scheduled_events s where s.outcome = 'fired' order by s.done_at desc limit 1000
      ) f
    )
$$;

comment on function event_store_platform.scheduled_statistics() is
'Returns how many scheduled events wait and how many were refused, each counted to 10,000; when the next is tried; and the '
'99th percentile of the seconds by which the last 1,000 came late.';
revoke all on function event_store_platform.scheduled_statistics() from public;
grant execute on function event_store_platform.scheduled_statistics() to event_store_consumer, event_store_reader, event_store_owner;
