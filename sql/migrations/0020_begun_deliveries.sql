-- What a consumer leased ahead of its handlers is no attempt until one begins.

alter table event_store.stream_locks add column ahead smallint not null default 0;
comment on column event_store.stream_locks.ahead is
'Whether the event in flight was leased ahead and nobody said that its handler began (rows): 0 no; 1 yes; 2 yes, and an '
'earlier lock of it ended without an answer.';
