-- Whether somebody looks for incidents, and whether their messages arrive: when what was seen was stored last (null:
-- never), how many confirmed incidents are open, and since when the receiver was not told what it should know (null: it
-- was): the oldest message is tried in vain, or was given up, of an incident that is open.
-- Example: select clock_timestamp() - observed_at from alert_state()
create or replace function event_store.alert_state()
returns table (
  observed_at timestamptz,
  open_incidents bigint,
  undelivered_since timestamptz
)
language sql
volatile -- the clock is
security definer
set search_path = event_store, pg_temp
-- by index, tables with or without statistics: what is over is kept for a month
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
  select a.observed_at, i.open_incidents, i.undelivered_since
  from event_store.alerting a
  cross join (
    select
      count(*) filter (
        where n.over_at is null and (n.told <> 'nothing' or n.message_id is not null or n.due_at <= event_store_private.clock())
      ) as open_incidents,
      -- of what was given up: when that was; last_error is null where the receiver took the last message
      min(coalesce(n.first_tried_at, case when n.told = 'began' and n.last_error is not null then n.due_at end)) as undelivered_since
    from event_store.incidents n
    where n.told <> 'over'
  ) i
$$;

comment on function event_store.alert_state() is
'Returns when somebody looked for incidents last, how many are open, and since when the oldest message to the receiver is '
'tried in vain, or was given up while its incident is open; nulls for never.';
revoke all on function event_store.alert_state() from public;
grant execute on function event_store.alert_state() to event_store_consumer, event_store_reader, event_store_owner;
