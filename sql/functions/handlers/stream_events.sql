-- A lock lasts by the wall clock, even inside a long transaction.
-- Example: select * from stream_events('invoices', 100, 300)
create or replace function event_store.stream_events(
  v_view_name text,
  v_limit int default 1,
  v_seconds bigint default null
)
returns setof event_store.recorded_events
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
-- planned once: a plan for each array would cost as much as the rest
as $$
-- planner: once
declare
  _delivered constant bigint[] := event_store_private.lease_streams(v_view_name, v_limit, v_seconds, false);
begin
  return query
  select r.* from event_store.recorded_events r where r."offset" = any (_delivered) order by r."offset";
end
$$;

comment on function event_store.stream_events(text, int, bigint) is
'Locks up to v_limit free streams of a rows view, the longest waiting first, for v_seconds (null: the view''s '
'lock_timeout_s), and returns the next event of each. A stream is free again after ack_event, nack_event or '
'fail_event, or when its lock ends. MR005 an argument is not positive; MR010 unknown view; MR012 a bulk view.';
revoke all on function event_store.stream_events(text, int, bigint) from public;
grant execute on function event_store.stream_events(text, int, bigint) to event_store_consumer, event_store_owner;
