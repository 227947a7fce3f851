-- Deliveries: what of them is in flight, who waits, and what an acknowledgement leaves.

-- All at once, and in the order in which calls lock them: one by one, later, they would wait for each other.
lock table event_store.views, event_store.sequencer in access exclusive mode;

-- What a bulk lease delivers of streams with a lock is found by its log partition, however many streams wait or are parked.
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
comment on column event_store.stream_locks.lease_pid is 'The session of the last delivery (rows): it may answer without a token after it took the stream over. Null for a delivery in bulk mode.';
comment on column event_store.stream_locks.nothing_after is 'Whether the view wanted nothing after the event in flight when that was delivered (rows).';
-- what is in flight has a session in rows mode, and none in bulk mode
update event_store.stream_locks k
set lease_pid = case v.mode when 'rows' then coalesce(k.lease_pid, 0) end
from event_store.views v
where v.view = k.view and k.in_flight is not null;
