-- Whether somebody sequences, and sleeps until an append wakes it.

-- Unlogged: to set it takes no transaction id and writes no WAL. After a crash nobody is known to sequence, which is so.
create unlogged sequence event_store.attended_seq minvalue 0 start 0;
comment on sequence event_store.attended_seq is
'Until when a sequencer attends the log, in milliseconds since 1970, doubled; one more while it sleeps, so that an append wakes it.';
