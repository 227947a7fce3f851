-- behind counts unwanted positions, too. lag_seconds is null if there is no such event. A stream has a lock while it is
-- in flight, waits for a retry, or is parked. Without a filter lag and behind differ only by the events of such
-- streams. If a view with a filter is further behind, 100,000 positions are read, and exact is false for the log
-- partitions where lag means "at least" (event_store_private.lags). view_info has the sums, for all views.
-- Races: none; it takes no lock.
-- Example: select sum(lag), max(lag_seconds), bool_and(exact), sum(behind) from view_lag('invoices')
create or replace function event_store.view_lag(
  v_view text
)
returns table (
  partition int,
  "position" bigint,
  high_water_mark bigint,
  behind bigint,
  lag bigint,
  lag_seconds double precision,
  exact boolean
)
language plpgsql
stable
security definer
set search_path = event_store, pg_temp
as $$
#variable_conflict use_column
begin
  perform event_store_private.known_view(v_view);
  return query
  select l.partition, l.position, l.high_water_mark, l.behind, l.lag, l.lag_seconds, l.exact
  from event_store_private.lags(array[v_view]) l;
end
$$;

comment on function event_store.view_lag(text) is
'Returns how far a view is behind in each log partition: behind counts positions, lag the wanted events that it has '
'not acknowledged, also in streams with a lock; lag_seconds is the age of the first that no parked stream has. Where a view is more than 100,000 '
'positions behind, lag may be a lower bound: then exact is false. MR010 unknown view.';
revoke all on function event_store.view_lag(text) from public;
grant execute on function event_store.view_lag(text) to event_store_consumer, event_store_reader, event_store_owner;
