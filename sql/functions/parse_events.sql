-- Reads a JSON array of events, as append_events takes it.
create or replace function event_store.parse_events(
  v_events jsonb
)
returns event_store.batch_event[]
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
declare
  _batch event_store.batch_event[];
begin
  if v_events is null or jsonb_typeof(v_events) <> 'array' or jsonb_array_length(v_events) = 0 then
    raise exception 'batch is malformed'
      using errcode = 'MR005', detail = 'v_events must be a JSON array of at least one event', hint = 'Nothing was stored.';
  end if;
  begin
    select array_agg(
      row(
        e.position,
        e.element ->> 'event',
        (e.element ->> 'event_id')::uuid,
        coalesce((e.element ->> 'event_version')::bigint, 1),
        e.element ->> 'decider',
        e.element ->> 'decider_id',
        e.element -> 'data', -- a JSON null is data too
        (e.element ->> 'command_id')::uuid,
        (e.element ->> 'previous_id')::uuid,
        e.element ? 'previous_id',
        coalesce((e.element ->> 'final')::boolean, false)
      )::event_store.batch_event
    )
    into _batch
    from jsonb_array_elements(v_events) with ordinality e(element, position);
  exception when data_exception then
    raise exception 'batch is malformed' using errcode = 'MR005', detail = sqlerrm, hint = 'Nothing was stored.';
  end;
  return _batch;
end
$$;

comment on function event_store.parse_events(jsonb) is 'Reads a JSON array of events. MR005 if it is none.';
