-- With its token an answer counts however late, until another consumer gets the event. The session does not identify
-- the consumer: a connection pool gives one session to many clients, and many sessions to one client.
create or replace function event_store_private.holds_lock(
  v_lock event_store.stream_locks,
  v_lease_token bigint,
  v_now timestamptz
)
returns boolean
language sql
immutable
parallel safe
as $$
  select case when v_lease_token is not null then v_lock.lease_token = v_lease_token else v_lock.locked_until > v_now end
$$;

comment on function event_store_private.holds_lock(event_store.stream_locks, bigint, timestamptz) is
'Whether an answer for the event in flight counts: with its token, or without one while the lock lasts.';
