-- Whether who answers for a delivery still holds it: by the token that came with it, or, without one, by nobody else having
-- got the event in between, or by being the session that did.
create or replace function event_store.holds_lock(
  v_lock event_store.stream_locks,
  v_lease_token bigint
)
returns boolean
language sql
stable
as $$
  select case
    when v_lease_token is not null then v_lock.lease_token = v_lease_token
    else not v_lock.taken_over or v_lock.lease_pid = pg_backend_pid()
  end
$$;

comment on function event_store.holds_lock(event_store.stream_locks, bigint) is 'Whether the caller still holds the delivery that it answers for.';
