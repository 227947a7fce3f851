-- The stream of a view that was parked first, with its error; dead_letters has all of them, and takes longer with each.
-- Example: select decider, decider_id, last_error from first_dead_letter('invoices')
create or replace function event_store.first_dead_letter(
  v_view text
)
returns table (
  decider text,
  decider_id text,
  attempts int,
  last_error text,
  parked_at timestamptz
)
language sql
stable
security definer
set search_path = event_store, pg_temp
as $$
  select k.decider, k.decider_id, k.attempts, k.last_error, k.parked_at
  from event_store.stream_locks k
  where k.view = v_view and k.parked_at is not null
  order by k.parked_at, k.decider_id, k.decider
  limit 1
$$;

comment on function event_store.first_dead_letter(text) is
'Returns the stream of view v_view that was parked first: after how many attempts, and why; nothing if there is none.';
revoke all on function event_store.first_dead_letter(text) from public;
grant execute on function event_store.first_dead_letter(text) to event_store_consumer, event_store_reader, event_store_owner;
