-- The commit appends the events; data beyond the limits are refused here, and so are data with a plain value where the
-- schema wants a sealed one: of what is staged, files have the traces.
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
  _found record;
begin
  select b.ordinal, b.decider, b.event, b.event_version, b.data, f.fault into _found
  from unnest(event_store_private.parse_events(v_events)) b
  left join event_store.deciders d
    on d.decider = b.decider and d.event = b.event and d.event_version = b.event_version and d.seals
  cross join lateral (
    select case
      when d.seals then event_store_private.event_fault(
        b.event, b.event_id, b.event_version, b.decider, b.decider_id, b.data, b.command_id, b.final, b.expected_version, b.metadata
      )
      else event_store_private.data_fault(b.data)
    end as fault
    offset 0
  ) f -- once, not at each use
  where b.data is not null and (f.fault is not null or d.seals and (b.data @@ d.accepts) is not true)
  limit 1;
  if _found.fault is not null then
    raise exception 'event is malformed'
      using
        errcode = 'MR005', detail = format('event %s of the batch: %s', _found.ordinal, _found.fault),
        hint = 'Correct the event; nothing was staged.';
  elsif found then
    perform event_store_private.refuse_data(
      _found.decider, _found.event, _found.event_version, _found.data, format('event %s of the batch: ', _found.ordinal)
    );
  end if;
  perform event_store_private.stage_change(v_transaction_id, null, null, v_events);
end
$$;

comment on function event_store.add_events(uuid, jsonb) is
'Stages events for the commit of a transaction; v_events is as for append_events, and the commit checks whether they '
'fit. MR005 v_events is malformed, or an argument is null; MR024 another instance of the producer registered; MR026 '
'unknown transaction; MR027 the transaction has ended; MR034 a decider belongs to a capture; MR045 another role''s '
'producer; MR050 data have a plain value where their schema wants a sealed one.';
revoke all on function event_store.add_events(uuid, jsonb) from public;
grant execute on function event_store.add_events(uuid, jsonb) to event_store_writer, event_store_owner;
