-- ack_event, nack_event, fail_event and extend_lock take the token.
-- With v_ahead the caller takes more events than it handles at once. If it dies, the event that killed it is unknown:
-- none of its deliveries counts as an attempt, and those events are suspect when they are delivered again. If the
-- caller handles suspects one at a time, each after extend_lock, only the event that kills it fails.
-- Example: select decider_id, "offset", lease_token from lease_events('invoices', 100)
create or replace function event_store.lease_events(
  v_view text,
  v_limit int default 1,
  v_seconds bigint default null,
  v_ahead boolean default false
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
  attempt int,
  suspect boolean
)
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
-- planned once: a plan for each array would cost as much as the rest
as $$
-- planner: indexed ordered once
#variable_conflict use_column
declare
  _delivered constant bigint[] := event_store_private.lease_streams(v_view, v_limit, v_seconds, v_ahead);
begin
  return query
  select r.*, k.lease_token, k.attempts, k.ahead = 2
  from event_store.versioned_events r
  cross join lateral (
    select l.lease_token, l.attempts, l.ahead from event_store_private.newest_lock(v_view, r.decider_id, r.decider) l
  ) k
  where r."offset" = any (_delivered)
  order by r."offset";
end
$$;

comment on function event_store.lease_events(text, int, bigint, boolean) is
'Does the same as stream_events and returns with each event the token of its lock, which fences late answers, and the '
'number of the attempt. With v_ahead a lock that ends without an answer is an attempt only if extend_lock was called: '
'call it for suspect events, one at a time, before you handle them. MR005 an argument is not positive; MR010 unknown '
'view; MR012 a bulk view.';
revoke all on function event_store.lease_events(text, int, bigint, boolean) from public;
grant execute on function event_store.lease_events(text, int, bigint, boolean) to event_store_consumer, event_store_owner;
