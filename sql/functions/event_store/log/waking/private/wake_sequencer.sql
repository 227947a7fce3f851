-- A commit with a NOTIFY takes a lock of the whole cluster. So the functions that append first check by the mark alone
-- whether a sequencer sleeps (attend_log); one that has work does not. They check after they stored the event, thus
-- with a transaction id: a transaction that had none when the sequencer went to sleep sees that it sleeps.
-- The sequencer polls instead where appends may not notify (notifies_appends), and where the server's notification
-- queue is half full, as any login can make it: a commit fails if its notification finds no room.
create or replace function event_store_private.wake_sequencer()
returns void
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
begin
  -- as in is_attended
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
