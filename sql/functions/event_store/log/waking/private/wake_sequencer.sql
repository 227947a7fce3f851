-- A commit with a NOTIFY takes a lock of the whole cluster: so the functions that append ask first whether one sleeps,
-- by the mark alone (attend_log), and a sequencer that has work does not sleep. They ask after they stored the event,
-- thus with a transaction id: whoever had none yet when the sequencer went to sleep sees that it did.
-- Where it may not notify (notifies_appends), the sequencer polls instead; and where the server's queue of words is
-- half full, as any login can make it: a commit whose word finds no room fails.
create or replace function event_store_private.wake_sequencer()
returns void
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
begin
  -- as is_attended has it
  if pg_sequence_last_value('event_store.attended_seq') / 2 - extract(epoch from clock_timestamp()) * 1000 between 0 and 10000
    and event_store_private.notifies_appends()
    and pg_notification_queue_usage() < 0.5
  then
    perform pg_notify('event_store_appended', '');
  end if;
end
$$;

comment on function event_store_private.wake_sequencer() is
'Wakes a sequencer that sleeps when this transaction commits.';
