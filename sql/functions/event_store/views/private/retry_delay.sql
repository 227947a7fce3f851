-- The backoff of a stream after this many failed attempts: 5 s, doubled each time, at most an hour.
create or replace function event_store_private.retry_delay(
  v_attempts int
)
returns interval
language sql
immutable
parallel safe
as $$
  select least(interval '5 seconds' * 2 ^ least(v_attempts - 1, 20), interval '1 hour')
$$;

comment on function event_store_private.retry_delay(int) is
'The backoff after this many failed attempts: exponential, 5 s to 1 h.';
