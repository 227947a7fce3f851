-- Nearly always all events are new, fit and follow the stream's head: then one INSERT stores them. append_batch does
-- the rest, and all refusals; its one statement over any streams takes three times as long.
-- Example: select * from append_to_stream('order', 'o-1', '[{"event": "placed", "event_id": "…", "command_id": "…",
--   "data": {}}]', 0)
create or replace function event_store.append_to_stream(
  v_decider text,
  v_decider_id text,
  v_events jsonb,
  v_expected_version bigint default null
)
returns table (
  event_id uuid,
  previous_id uuid,
  "offset" bigint,
  version bigint,
  appended boolean
)
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed once
#variable_conflict use_column
declare
  _purges constant bigint := pg_sequence_last_value('event_store.purge_seq');
  -- read before the attempt, which leaves a transaction id when it is undone
  _holds_nothing constant boolean := pg_current_xact_id_if_assigned() is null;
  _short constant text[] := '{event,event_id,event_version,data,command_id,metadata}';
  _count constant int := case when jsonb_typeof(v_events) = 'array' then jsonb_array_length(v_events) end;
  _head record;
  _done record;
  _stored boolean := false;
  _batch event_store_private.batch_event[];
begin
  -- as append_event does
  select e.event_id as last_event_id, e."offset", e.version, e.final into _head
  from event_store.events e
  where e.decider_id = v_decider_id and e.decider = v_decider
  order by e.version desc
  limit 1;
  if not found and pg_sequence_last_value('event_store.purge_seq') > 0 then
    select p.last_event_id, p.last_offset as "offset", p.version, p.final into _head
    from event_store.purged_streams p
    where p.decider_id = v_decider_id and p.decider = v_decider;
  end if;
  if v_expected_version is null or v_expected_version = coalesce(_head.version, 0) then
    begin
      with appended as (
        insert into event_store.events as e (
          event, event_id, event_version, decider, decider_id, data, command_id, previous_id, final, created_at, "offset",
          version, metadata
        )
        select
          n.event, n.event_id, n.event_version, v_decider, v_decider_id, n.data, n.command_id,
          case when n.number = 1 then _head.last_event_id else (v_events -> (n.number::int - 2) ->> 'event_id')::uuid end,
          n.final, event_store_private.clock(), nextval('event_store.events_offset_seq'), coalesce(_head.version, 0) + n.number,
          n.metadata
        from (
          select
            a.number,
            a.element ->> 'event' as event,
            (a.element ->> 'event_id')::uuid as event_id,
            coalesce((a.element ->> 'event_version')::bigint, 1) as event_version,
            a.element -> 'data' as data,
            (a.element ->> 'command_id')::uuid as command_id,
            coalesce((a.element ->> 'final')::boolean, false) as final,
            nullif(a.element -> 'metadata', 'null') as metadata
          from jsonb_array_elements(v_events) with ordinality a(element, number)
          where (case when a.number = _count then a.element - 'final' else a.element end) - _short = '{}'
          offset 0 -- each value is read once
        ) n
        join event_store.deciders d on d.decider = v_decider and d.event = n.event and d.event_version = n.event_version
        where (d.owner is null or event_store_private.may_append(d.decider, d.owner))
          and event_store_private.event_fault(
            n.event, n.event_id, n.event_version, v_decider, v_decider_id, n.data, n.command_id, n.final, null, n.metadata
          ) is null
          and event_store_private.meets(d.accepts, d.seals, n.data)
          and not event_store_private.is_upper_uuid(v_decider_id)
          and _head.final is not true
          and coalesce(_head."offset", 0) <= coalesce(pg_sequence_last_value('event_store.events_offset_seq'), 0)
        order by n.number
        on conflict do nothing
        returning e.event_id, e.previous_id, e."offset", e.version
      )
      select
        array_agg(a.event_id) as event_ids, array_agg(a.previous_id) as previous_ids, array_agg(a."offset") as offsets,
        array_agg(a.version) as versions
      into _done
      from appended a;
      _stored := cardinality(_done.offsets) = _count;
      if not _stored then
        raise exception using errcode = 'MR001'; -- undoes the attempt
      end if;
    exception when data_exception or sqlstate 'MR001' then null;
    end;
  end if;
  if _stored then
    if pg_sequence_last_value('event_store.purge_seq') is distinct from _purges
      or current_setting('transaction_isolation') <> 'read committed'
    then
      perform event_store_private.require_unpurged(_done.event_ids);
    end if;
    if pg_sequence_last_value('event_store.attended_seq') % 2 = 1 then -- a sequencer sleeps
      perform event_store_private.wake_sequencer();
    end if;
    return query
    select a.*, true
    from unnest(_done.event_ids, _done.previous_ids, _done.offsets, _done.versions) a(event_id, previous_id, "offset", version);
    return;
  end if;
  _batch := event_store_private.parse_events(
    case
      when _count > 0 then (
        select jsonb_agg(
          case
            when jsonb_typeof(a.element) = 'object'
              then jsonb_build_object('decider', v_decider, 'decider_id', v_decider_id) || a.element
            else a.element
          end
          order by a.number
        )
        from jsonb_array_elements(v_events) with ordinality a(element, number)
      )
      else v_events
    end
  );
  select b.* into _head
  from unnest(_batch) b
  where (b.decider, b.decider_id) is distinct from (v_decider, v_decider_id)
  order by b.ordinal
  limit 1;
  if found then
    raise exception 'batch is malformed'
      using
        errcode = 'MR005',
        detail = format(
          'event %s of the batch is of stream (%s, %s), and not of (%s, %s)',
          _head.ordinal, _head.decider, _head.decider_id, v_decider, v_decider_id
        ),
        hint = 'Append to several streams by append_events. Nothing was stored.';
  end if;
  _batch[1].expected_version := coalesce(v_expected_version, _batch[1].expected_version);
  return query select a.* from event_store_private.append_batch(_batch, _holds_nothing) a;
end
$$;

comment on function event_store.append_to_stream(text, text, jsonb, bigint) is
'Appends events to the stream (v_decider, v_decider_id), all or nothing, and returns one row per event in the order given. '
'v_events is a JSON array as append_events takes it; decider and decider_id may be left out. v_expected_version is how many '
'events the stream has (0: none yet); null appends at its end. An event that was stored before has appended = false. MR001 to MR005, '
'MR034, MR046, MR050 and MR055 as append_event.';
revoke all on function event_store.append_to_stream(text, text, jsonb, bigint) from public;
grant execute on function event_store.append_to_stream(text, text, jsonb, bigint) to event_store_writer, event_store_owner;
