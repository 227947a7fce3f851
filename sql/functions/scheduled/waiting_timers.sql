-- Reads 10,000 rows at most, the next ones to come.
-- Example: select * from waiting_timers('process:checkout')
create or replace function event_store_platform.waiting_timers(
  v_decider text
)
returns table (
  name text,
  waiting bigint,
  next_at timestamptz
)
language sql
stable
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered
  select w.name, count(*), min(w.next_at)
  from (
    select s.name, s.next_at from event_store.scheduled_events s
    where s.decider = v_decider and s.done_at is null
    order by s.next_at
    limit 10000
  ) w
  group by w.name
  order by count(*) desc, w.name
  limit 20
$$;

comment on function event_store_platform.waiting_timers(text) is
'Returns the names under which most scheduled events of a decider wait, at most 20, with their number and when the next is '
'tried: of the next 10,000 to come.';
revoke all on function event_store_platform.waiting_timers(text) from public;
grant execute on function event_store_platform.waiting_timers(text) to event_store_consumer, event_store_reader, event_store_owner;
