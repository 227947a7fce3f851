-- The commit appends the events; data beyond the limits are refused here.
create or replace function event_store.add_events(
  v_transaction_id uuid,
  v_events jsonb
)
returns void
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered once
declare
  _fault text;
begin
  select format('event %s of the batch: %s', b.ordinal, f.fault) into _fault
  from unnest(event_store_private.parse_events(v_events)) b
  cross join lateral (select event_store_private.data_fault(b.data) as fault offset 0) f -- once, not at each use
  where b.data is not null and f.fault is not null
  limit 1;
  if _fault is not null then
    raise exception 'event is malformed'
      using errcode = 'MR005', detail = _fault, hint = 'Correct the event; nothing was staged.';
  end if;
  perform event_store_private.stage_change(v_transaction_id, null, null, v_events);
end
$$;

comment on function event_store.add_events(uuid, jsonb) is
'Stages events for the commit of a transaction; v_events is as for append_events, and the commit checks whether they '
'fit. MR005 v_events is malformed, or an argument is null; MR024 another instance of the producer registered; MR026 '
'unknown transaction; MR027 the transaction has ended; MR034 a decider belongs to a capture; MR045 another role''s '
'producer.';
revoke all on function event_store.add_events(uuid, jsonb) from public;
grant execute on function event_store.add_events(uuid, jsonb) to event_store_writer, event_store_owner;
