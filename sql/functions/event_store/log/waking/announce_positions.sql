-- A payload is for example 0,3,12. v_known has the marks of log partition 0, 1, …; an empty array announces each log
-- partition that holds events.
-- Only the sequencer calls this, in a transaction of its own, at most a hundred times a second: a commit with a NOTIFY
-- takes a lock of the whole cluster. Listeners also poll, only less often: behind a pooler no notification comes, and
-- none while the server's notification queue is half full (see wake_sequencer).
-- Example: select announce_positions('{}')
create or replace function event_store_platform.announce_positions(
  v_known bigint[]
)
returns bigint[]
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
-- by index: see checkpoint_of
as $$
-- planner: indexed ordered
declare
  _marks bigint[];
  _grown text;
begin
  if v_known is null then
    perform event_store_private.refuse_request('v_known is null', 'Pass what the last call returned; an empty array the first time.');
  end if;
  select
    array_agg(p.high_water_mark order by p.partition),
    string_agg(p.partition::text, ',' order by p.partition) filter (where p.high_water_mark <> coalesce(v_known[p.partition + 1], 0))
  into _marks, _grown
  from event_store.partitions p;
  if _grown is not null and pg_notification_queue_usage() < 0.5 then
    perform pg_notify('event_store_positions', _grown);
  end if;
  return _marks;
end
$$;

comment on function event_store_platform.announce_positions(bigint[]) is
'Wakes listeners on the channel event_store_positions if log partitions grew beyond v_known, the high-water marks '
'that the last call returned; the payload names them. Returns the present marks. MR005 v_known is null.';
revoke all on function event_store_platform.announce_positions(bigint[]) from public;
grant execute on function event_store_platform.announce_positions(bigint[]) to event_store_consumer, event_store_owner;
