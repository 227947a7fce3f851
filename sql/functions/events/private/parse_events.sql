-- Reads a JSON array of events, as append_events takes it: what a caller of the store may append, so none of a captured
-- table.
create or replace function event_store_private.parse_events(
  v_events jsonb
)
returns event_store_private.batch_event[]
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
declare
  _batch event_store_private.batch_event[];
  _captured text;
begin
  if v_events is null or jsonb_typeof(v_events) <> 'array' or jsonb_array_length(v_events) = 0 then
    raise exception 'batch is malformed'
      using errcode = 'MR005', detail = 'v_events must be a JSON array of at least one event', hint = 'Nothing was stored.';
  end if;
  begin
    select array_agg(
      row(
        e.ordinal,
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
      )::event_store_private.batch_event
    )
    into _batch
    from jsonb_array_elements(v_events) with ordinality e(element, ordinal);
  exception when data_exception then
    raise exception 'batch is malformed' using errcode = 'MR005', detail = sqlerrm, hint = 'Nothing was stored.';
  end;
  select c.decider into _captured
  from event_store.captured_tables c
  where exists (select from unnest(_batch) b where b.decider = c.decider)
  order by c.decider
  limit 1;
  if found then
    perform event_store_private.refuse_captured_decider(_captured);
  end if;
  return _batch;
end
$$;

comment on function event_store_private.parse_events(jsonb) is
'Reads a JSON array of events. MR005 if it is none, MR034 a decider is captured.';
