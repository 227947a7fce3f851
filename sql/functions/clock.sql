-- The one clock of leases and timestamps: wall-clock time, also inside a long transaction.
-- Tests move it with `set event_store.clock = '2030-01-01 00:00:00+00'`.
create or replace function event_store.clock()
returns timestamptz
language sql
volatile
parallel safe
as $$
  select coalesce(nullif(current_setting('event_store.clock', true), '')::timestamptz, clock_timestamp())
$$;

comment on function event_store.clock() is 'The time by which leases expire and events are stamped; the setting event_store.clock overrides it.';
