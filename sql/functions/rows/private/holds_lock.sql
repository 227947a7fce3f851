-- Whether who answers for a delivery still holds it: by the token that came with it; or, without one, by being the
-- session that got it; or, where the answer says which event it is for, by nobody else having got that event in
-- between.
create or replace function event_store_private.holds_lock(
  v_lock event_store.stream_locks,
  v_offset bigint,
  v_lease_token bigint
)
returns boolean
language sql
stable
as $$
  select case
    when v_lease_token is not null then v_lock.lease_token = v_lease_token
    else coalesce(v_lock.lease_pid = pg_backend_pid(), false) or (v_lock.in_flight = v_offset and not v_lock.taken_over) is true
  end
$$;

comment on function event_store_private.holds_lock(event_store.stream_locks, bigint, bigint) is
'Whether the caller still holds the delivery that it answers for.';
