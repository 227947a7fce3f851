-- Appends a batch over any streams: all of it or nothing, in the order given.
-- v_events is a JSON array of {decider, decider_id, event, event_id, data, command_id, previous_id, event_version, final}.
-- An event that leaves previous_id out goes to the end of its stream whatever that is; one that states it (null: first)
-- must meet exactly that, as in append_event. Events that are stored already are returned with appended = false.
-- Streams are locked in sorted order, so batches over the same streams wait for each other and never deadlock.
-- Example: select * from append_events('[{"decider":"order","decider_id":"o-1","event":"order_placed","event_id":"…","command_id":"…","data":{}}]')
create or replace function event_store.append_events(
  v_events jsonb
)
returns table (
  event_id uuid,
  previous_id uuid,
  "offset" bigint,
  appended boolean
)
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
#variable_conflict use_column
declare
  _batch event_store.batch_event[];
  _fresh event_store.batch_event[];
  _offsets bigint[];
  _inserted bigint;
  _bad record;
begin
  if v_events is null or jsonb_typeof(v_events) <> 'array' or jsonb_array_length(v_events) = 0 then
    raise exception 'batch is malformed'
      using errcode = 'MR005', detail = 'v_events must be a JSON array of at least one event', hint = 'Nothing was stored.';
  end if;
  begin
    select array_agg(
      row(
        b.position, b.event, b.event_id, coalesce(b.event_version, 1), b.decider, b.decider_id,
        coalesce(b.data, b.element -> 'data'), -- a JSON null is data too
        b.command_id, b.previous_id, b.element ? 'previous_id', coalesce(b.final, false)
      )::event_store.batch_event
      order by b.position
    )
    into _batch
    from rows from (
      jsonb_to_recordset(v_events) as (
        event text, event_id uuid, event_version bigint, decider text, decider_id text, data jsonb, command_id uuid,
        previous_id uuid, final boolean
      ),
      jsonb_array_elements(v_events)
    ) with ordinality as b(
      event, event_id, event_version, decider, decider_id, data, command_id, previous_id, final, element, position
    );
  exception when data_exception or datatype_mismatch then
    raise exception 'batch is malformed' using errcode = 'MR005', detail = sqlerrm, hint = 'Nothing was stored.';
  end;

  select b.position, f.fault into _bad
  from unnest(_batch) b
  cross join lateral event_store.event_fault(
    b.event, b.event_id, b.event_version, b.decider, b.decider_id, b.data, b.command_id, b.final
  ) f(fault)
  where f.fault is not null
  order by b.position
  limit 1;
  if found then
    raise exception 'event is malformed'
      using
        errcode = 'MR005',
        detail = format('event %s of the batch: %s', _bad.position, _bad.fault),
        hint = 'Correct the event; nothing of the batch was stored.';
  end if;

  select b.event_id into _bad from unnest(_batch) b group by b.event_id having count(*) > 1 limit 1;
  if found then
    raise exception 'event is malformed'
      using
        errcode = 'MR005',
        detail = format('event_id %s occurs more than once in the batch', _bad.event_id),
        hint = 'Give each event an event_id of its own; nothing of the batch was stored.';
  end if;

  select k.decider, k.event, k.event_version into _bad
  from (select distinct b.decider, b.event, b.event_version from unnest(_batch) b) k
  where not exists (
    select from event_store.deciders d
    where d.decider = k.decider and d.event = k.event and d.event_version = k.event_version
  )
  limit 1;
  if found then
    perform event_store.refuse_unregistered_event(_bad.decider, _bad.event, _bad.event_version);
  end if;

  -- Every stream gets its row, then every row is locked, both in one order: two phases in the same order cannot deadlock.
  insert into event_store.streams as s (decider, decider_id, last_offset, version)
  select k.decider, k.decider_id, -1, 0
  from (select distinct b.decider_id, b.decider from unnest(_batch) b order by 1, 2) k
  on conflict do nothing;
  perform from event_store.streams s
  join (select distinct b.decider_id, b.decider from unnest(_batch) b) k using (decider_id, decider)
  order by s.decider_id, s.decider
  for update of s;

  -- Only now, in a new statement, what a concurrent batch stored before us is visible.
  select e.event_id into _bad
  from unnest(_batch) b
  join event_store.events e using (event_id)
  where (e.event, e.event_version, e.decider, e.decider_id, e.data, e.command_id, e.final)
      is distinct from (b.event, b.event_version, b.decider, b.decider_id, b.data, b.command_id, b.final)
    or (b.previous_stated and e.previous_id is distinct from b.previous_id)
  order by b.position
  limit 1;
  if found then
    perform event_store.refuse_reused_event_id(_bad.event_id);
  end if;
  select array_agg(b order by b.position) into _fresh
  from unnest(_batch) b
  where not exists (select from event_store.events e where e.event_id = b.event_id);

  if _fresh is not null then
    -- the chain: each event's predecessor is the one before it in the batch, or the stream's last
    with chained as (
      select
        f.position, f.decider, f.decider_id, f.event_id, f.previous_id, f.previous_stated,
        coalesce(lag(f.event_id) over stream, s.last_event_id) as actual_previous_id,
        coalesce(lag(f.final) over stream, s.final) as closed
      from unnest(_fresh) f
      join event_store.streams s using (decider_id, decider)
      window stream as (partition by f.decider_id, f.decider order by f.position)
    )
    select c.* into _bad
    from chained c
    where c.closed or (c.previous_stated and c.previous_id is distinct from c.actual_previous_id)
    order by c.position
    limit 1;
    if found and _bad.closed and not exists (
      select from event_store.streams s
      where s.decider_id = _bad.decider_id and s.decider = _bad.decider and s.final
    ) then
      raise exception 'last event for this decider stream is already final. the stream is closed, you can not append events to it.'
        using
          errcode = 'MR002',
          detail = format('event %s of the batch follows the final event of stream (%s, %s) in the same batch', _bad.position, _bad.decider, _bad.decider_id),
          hint = 'Append to another stream; nothing of the batch was stored.';
    elsif found then
      perform event_store.refuse_append(_bad.decider, _bad.decider_id, _bad.event_id, _bad.previous_id);
    end if;

    -- one session draws rising numbers
    _offsets := array(select nextval('event_store.events_offset_seq') from generate_series(1, cardinality(_fresh)));
    perform set_config('event_store.streams_advanced', 'on', true);
    with chained as (
      select
        f.event, f.event_id, f.event_version, f.decider, f.decider_id, f.data, f.command_id, f.final,
        coalesce(lag(f.event_id) over stream, s.last_event_id) as previous_id,
        s.version + row_number() over stream as version,
        lead(f.position) over stream is null as is_last,
        _offsets[f.ordinal] as "offset"
      from unnest(_fresh) with ordinality f(
        position, event, event_id, event_version, decider, decider_id, data, command_id, previous_id, previous_stated, final, ordinal
      )
      join event_store.streams s using (decider_id, decider)
      window stream as (partition by f.decider_id, f.decider order by f.ordinal)
    ), advanced as (
      update event_store.streams s
      set last_event_id = c.event_id, last_offset = c."offset", version = c.version, final = c.final
      from chained c
      where c.is_last and s.decider_id = c.decider_id and s.decider = c.decider
    )
    insert into event_store.events (
      event, event_id, event_version, decider, decider_id, data, command_id, previous_id, final, created_at, "offset"
    )
    select
      c.event, c.event_id, c.event_version, c.decider, c.decider_id, c.data, c.command_id, c.previous_id, c.final,
      event_store.clock(), c."offset"
    from chained c
    order by c."offset"
    on conflict (event_id) do nothing;
    get diagnostics _inserted = row_count;
    perform set_config('event_store.streams_advanced', 'off', true);
    if _inserted < cardinality(_fresh) then
      -- another transaction stored one of our event_ids in a stream that we did not lock
      perform event_store.refuse_reused_event_id(e.event_id)
      from unnest(_fresh) f
      join event_store.events e using (event_id)
      where e.decider_id <> f.decider_id or e.decider <> f.decider;
    end if;
  end if;

  return query
  -- what was stored before was stored before we held the locks, so below our first offset
  select e.event_id, e.previous_id, e."offset", coalesce(e."offset" >= _offsets[1], false)
  from unnest(_batch) b
  join event_store.events e using (event_id)
  order by b.position;
end
$$;

comment on function event_store.append_events(jsonb) is 'Appends a JSON array of events over any streams, all or nothing; returns one row per event in order. MR001 to MR005 as append_event.';
