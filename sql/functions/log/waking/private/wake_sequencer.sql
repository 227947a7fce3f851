-- Tells a sequencer that sleeps of an append, when that commits. A commit with a NOTIFY takes a lock of the whole cluster:
-- so the functions that append ask first whether one sleeps, by the mark alone (attend_log), and a
-- sequencer that has work does not sleep. They ask after they stored the event, thus with a transaction id: whoever had
-- none yet when the sequencer went to sleep sees that it did.
-- Where it may not notify (notifies_appends), the sequencer polls instead.
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
  then
    perform pg_notify('event_store_appended', '');
  end if;
end
$$;

comment on function event_store_private.wake_sequencer() is
'Wakes a sequencer that sleeps when this transaction commits.';
