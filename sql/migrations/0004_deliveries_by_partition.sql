-- What a bulk lease delivers of streams with a lock is found by its log partition, however many streams wait or are parked.

-- All at once, and in the order in which calls lock them: one by one, later, they would wait for each other.
lock table event_store.views, event_store.sequencer in access exclusive mode;

-- Partial, and not on lease_token: rows mode, where a session takes each delivery, makes no entry at all.
create index stream_locks_in_flight_idx on event_store.stream_locks (view, partition) where in_flight is not null and lease_pid is null;
comment on index event_store.stream_locks_in_flight_idx is 'What is delivered and not answered: read_batch and commit_batch look here for the retries of a lease.';

comment on column event_store.stream_locks.last_error is 'Why the last attempt failed, or why the event was given back; null when it was acknowledged.';

-- Partial, so that a probe for one stream cannot be planned by it: to a planner that knows an empty table the two are the same.
drop index event_store.stream_locks_due_idx;
create index stream_locks_due_idx on event_store.stream_locks (view, locked_until, last_offset) where parked_at is null;
comment on index event_store.stream_locks_due_idx is 'The whole order of stream_events, so that a fetch reads no more locks than it takes.';

-- A delivery says what an acknowledgement needs to know, once for all of them; acknowledging then reads no event.
alter table event_store.stream_locks add column nothing_after boolean not null default false;
comment on column event_store.stream_locks.nothing_after is 'Whether the view wanted nothing after the event in flight when that was delivered (rows).';
-- only rows mode has sessions; a version before this one did not write them down
update event_store.stream_locks k set lease_pid = 0
from event_store.views v
where v.view = k.view and v.mode = 'rows' and k.in_flight is not null and k.lease_pid is null;
