-- Takes what append_events takes, so no event of a captured table. An unknown key is refused: with previousId for
-- previous_id the caller would lose the optimistic lock without noticing. v_message_id is the producer's message that
-- the events belong to.
create or replace function event_store_private.parse_events(
  v_events jsonb,
  v_message_id text default null
)
returns event_store_private.batch_event[]
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
declare
  _batch event_store_private.batch_event[];
  _known constant text[] := '{event,event_id,event_version,decider,decider_id,data,command_id,previous_id,final,expected_version,metadata}';
  _unknown bigint;
  _captured text;
  _each record;
  _fault text;
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
        coalesce((e.element ->> 'final')::boolean, false),
        (e.element ->> 'expected_version')::bigint,
        case
          when v_message_id is null or jsonb_typeof(e.element -> 'metadata') not in ('object', 'null')
            then nullif(e.element -> 'metadata', 'null')
          else coalesce(nullif(e.element -> 'metadata', 'null'), '{}') || jsonb_build_object('message_id', v_message_id)
        end
      )::event_store_private.batch_event
    ), min(e.ordinal) filter (where e.element - _known <> '{}')
    into _batch, _unknown
    from jsonb_array_elements(v_events) with ordinality e(element, ordinal);
    if _unknown is not null then
      raise exception 'batch is malformed'
        using
          errcode = 'MR005',
          detail = (
            select format('event %s of the batch has unknown keys: %s', _unknown, string_agg(k.key, ', ' order by k.key))
            from jsonb_object_keys((v_events -> (_unknown - 1)::int) - _known) k(key)
          ),
          hint = format('The keys of an event are %s. Nothing was stored.', array_to_string(_known, ', '));
    end if;
  exception when data_exception then
    _fault := case when jsonb_typeof(v_events -> 0) = 'object' then sqlerrm else 'it is no JSON object' end;
    if jsonb_array_length(v_events) > 1 then
      -- parsed alone, the event that cannot be read is refused with its own fault
      for _each in select * from jsonb_array_elements(v_events) with ordinality e(element, ordinal) loop
        begin
          perform event_store_private.parse_events(jsonb_build_array(_each.element));
        exception when sqlstate 'MR005' then
          get stacked diagnostics _fault = pg_exception_detail;
          _fault := format('event %s of the batch: %s', _each.ordinal, _fault);
          exit;
        end;
      end loop;
    end if;
    raise exception 'batch is malformed' using errcode = 'MR005', detail = _fault, hint = 'Nothing was stored.';
  end;
  select min(b.ordinal) into _unknown from unnest(_batch) b where event_store_private.is_upper_uuid(b.decider_id);
  if _unknown is not null then
    raise exception 'event is malformed'
      using
        errcode = 'MR005',
        detail = format(
          'event %s of the batch: decider_id %s is a UUID in upper case; write it in lower case', _unknown, _batch[_unknown].decider_id
        ),
        hint = 'Correct the event; nothing of the batch was stored.';
  end if;
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

comment on function event_store_private.parse_events(jsonb, text) is
'Reads a JSON array of events and adds v_message_id, unless null, to their metadata. MR005 it is none, has unknown keys or a UUID in upper case as decider_id; MR034 a '
'decider is captured.';
