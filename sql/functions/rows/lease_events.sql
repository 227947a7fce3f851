-- stream_events for callers who want fencing: with each event comes the token of its lease, which ack_event,
-- nack_event, fail_event and extend_lock take, and which delivery it is. An answer with a token that is not in force
-- any more is refused, whoever gives it.
-- Example: select decider_id, "offset", lease_token from lease_events('invoices', 100)
create or replace function event_store.lease_events(
  v_view text,
  v_limit int default 1,
  v_lock_s bigint default null
)
returns table (
  event text,
  event_id uuid,
  event_version bigint,
  decider text,
  decider_id text,
  data jsonb,
  command_id uuid,
  previous_id uuid,
  final boolean,
  created_at timestamptz,
  "offset" bigint,
  version bigint,
  metadata jsonb,
  lease_token bigint,
  attempt int
)
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
-- planned once: for each array anew would cost as much as the rest
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  _delivered constant bigint[] := event_store_private.lease_streams(v_view, v_limit, v_lock_s);
begin
  return query
  select r.*, k.lease_token, k.attempts
  from event_store.versioned_events r
  cross join lateral (
    select l.lease_token, l.attempts from event_store.stream_locks l
    where l.view = v_view and l.decider_id = r.decider_id and l.decider = r.decider
    offset 0 -- a look-up for each: a plan that was made for few locks would read all of the view
  ) k
  where r."offset" = any (_delivered)
  order by r."offset";
end
$$;

comment on function event_store.lease_events(text, int, bigint) is
'Does as stream_events and returns with each event the token of its lock, which fences late answers, and which '
'attempt it is. MR005 an argument is not positive; MR010 unknown view; MR012 a bulk view.';
revoke all on function event_store.lease_events(text, int, bigint) from public;
grant execute on function event_store.lease_events(text, int, bigint) to event_store_consumer, event_store_owner;
