-- Open incidents count once they are confirmed.
-- Example: select clock_timestamp() - observed_at from alert_state()
create or replace function event_store_platform.alert_state()
returns table (
  observed_at timestamptz,
  open_incidents bigint,
  undelivered_since timestamptz
)
language sql
stable
security definer
set search_path = event_store, pg_temp
-- by index, with or without statistics: incidents that are over are kept for a month
as $$
-- planner: indexed ordered once
  select
    (select max(s.asked_at) from event_store.alert_sources s), count(*) filter (where i.over_at is null and i.confirmed),
    min(i.failing_since)
  from event_store.incidents i
  where i.told <> 'over'
$$;

comment on function event_store_platform.alert_state() is
'Returns the time of the last look for incidents, how many are open, and since when delivery of the oldest message to '
'the receiver fails; nulls for never.';
revoke all on function event_store_platform.alert_state() from public;
grant execute on function event_store_platform.alert_state() to event_store_consumer, event_store_reader, event_store_owner;
