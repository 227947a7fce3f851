-- A sequencer has said so (attend_log), and a session has looked for new events within two seconds, as sequencers do: a
-- claim alone stops no session from sequencing. Pollers may then poll less often: announce_positions notifies them.
-- Example: select is_attended()
create or replace function event_store_platform.is_attended()
returns boolean
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered
begin
  -- at most ten seconds ahead (attend_log): a later time was set before the clock was set back
  return coalesce(pg_sequence_last_value('event_store.attended_seq') / 2 - extract(epoch from clock_timestamp()) * 1000 between 0 and 10000, false)
    and (
      select s.sequenced_at between event_store_private.clock() - interval '2 seconds' and event_store_private.clock() + interval '2 seconds'
      from event_store.sequencer s where s.singleton order by s.revision desc limit 1
    );
end
$$;

comment on function event_store_platform.is_attended() is
'Whether a sequencer is at work, so that no other session needs to give events their positions.';
revoke all on function event_store_platform.is_attended() from public;
grant execute on function event_store_platform.is_attended() to event_store_consumer, event_store_reader, event_store_owner;
