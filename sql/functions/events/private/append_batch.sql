-- Appends a batch that is in memory: append_events after reading its JSON, and whoever makes events in the database.
-- The batch has at least one event, and ordinals from 1 without gaps, in the order of the array.
create or replace function event_store_private.append_batch(
  v_batch event_store_private.batch_event[]
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
-- One plan for a batch of any size, tables with or without statistics: the batch is read once, tables by index.
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  _fresh event_store_private.batch_event[]; -- those that are not known to be stored
  _attempted bigint;
  _offsets bigint[]; -- by ordinal
  _first_offset bigint;
  _attempt xid; -- of the subtransaction
  _some_exist boolean;
  _now timestamptz;
  _done record;
  _bad record;
begin
  select k.* into _bad
  from (
    select
      b.decider, b.event, b.event_version,
      min(b.ordinal) filter (
        where event_store_private.event_fault(
          b.event, b.event_id, b.event_version, b.decider, b.decider_id, b.data, b.command_id, b.final
        ) is not null
      ) as malformed
    from unnest(v_batch) b
    group by b.decider, b.event, b.event_version
  ) k
  where k.malformed is not null or not exists (
    select from event_store.deciders d
    where d.decider = k.decider and d.event = k.event and d.event_version = k.event_version
      and (d.owner is null or event_store_private.may_use(d.owner))
  )
  order by k.malformed -- nulls last
  limit 1;
  if _bad.malformed is not null then
    raise exception 'event is malformed'
      using
        errcode = 'MR005',
        detail = (
          select format(
            'event %s of the batch: %s',
            b.ordinal,
            event_store_private.event_fault(
              b.event, b.event_id, b.event_version, b.decider, b.decider_id, b.data, b.command_id, b.final
            )
          )
          from unnest(v_batch) b
          where b.ordinal = _bad.malformed
        ),
        hint = 'Correct the event; nothing of the batch was stored.';
  elsif found then
    perform event_store_private.refuse_unregistered_event(_bad.decider, _bad.event, _bad.event_version);
  end if;

  -- Nearly every batch is new as a whole, so that is tried first. What is stored already is looked up where that fails:
  -- the attempt is undone, and either the rest of the batch is tried or the batch is refused.
  _fresh := v_batch;
  loop
    begin
      _offsets := array(select nextval('event_store.events_offset_seq') from generate_series(1, cardinality(v_batch)));
      _first_offset := _offsets[1];
      -- One pass in one order over all streams, so batches never deadlock: a new stream gets its head, one that exists
      -- is locked and stays as it is.
      with heads as materialized (
        select distinct on (f.decider_id, f.decider)
          f.decider, f.decider_id, f.event_id, _offsets[f.ordinal] as "offset", f.final,
          count(*) over (partition by f.decider_id, f.decider) as version
        from unnest(_fresh) f
        order by f.decider_id, f.decider, f.ordinal desc
      ), made as (
        insert into event_store.streams as s (decider, decider_id, last_event_id, last_offset, version, final)
        select h.decider, h.decider_id, h.event_id, h."offset", h.version, h.final
        from heads h
        order by h.decider_id, h.decider
        on conflict (decider_id, decider) do update set version = s.version where false
        returning s.xmin as attempt
      )
      select max(m.attempt::text), count(*) < (select count(*) from heads) into _attempt, _some_exist from made m;
      if _some_exist then
        -- offsets rise along a stream only if they are drawn with its row locked
        _offsets := array(select nextval('event_store.events_offset_seq') from generate_series(1, cardinality(v_batch)));
      end if;

      _now := event_store_private.clock();

      perform set_config('event_store.streams_advanced', 'on', true);
      -- in a new statement, which sees the rows as they are locked
      with linked as (
        select
          f.*,
          lag(f.event_id) over stream as id_before,
          lag(f.final) over stream as final_before,
          lead(f.event_id) over stream is null as is_last,
          row_number() over stream as number
        from unnest(_fresh) f
        window stream as (partition by f.decider_id, f.decider order by f.ordinal)
      ), chained as materialized (
        -- an event follows the one before it in the batch, the first one of a stream its head
        select
          l.*,
          coalesce(l.id_before, head.last_event_id) as follows,
          coalesce(l.final_before, head.final) as closed,
          coalesce(head.version, 0) + l.number as version,
          s.ctid as stream
        from linked l
        left join event_store.streams s on _some_exist and s.decider_id = l.decider_id and s.decider = l.decider
        -- the head before this call: none for a stream that was made above (an old row may bear the same 32 bits as
        -- xmin)
        left join lateral (
          select s.last_event_id, s.final, s.version
          where s.xmin is distinct from _attempt or s.last_offset < _first_offset
        ) head on true
      ), refused as materialized (
        select c.ordinal, c.decider, c.decider_id, c.event_id, c.previous_id, c.final_before
        from chained c
        where c.closed or (c.previous_stated and c.previous_id is distinct from c.follows)
        order by c.ordinal
        limit 1
      ), advanced as (
        update event_store.streams s
        set
          last_event_id = c.event_id,
          last_offset = _offsets[c.ordinal],
          version = c.version,
          final = c.final
        from chained c
        where s.ctid = c.stream
          and c.is_last
          and not exists (select from refused)
      ), appended as (
        insert into event_store.events as e (
          event, event_id, event_version, decider, decider_id, data, command_id, previous_id, final, created_at, "offset"
        )
        select
          c.event, c.event_id, c.event_version, c.decider, c.decider_id, c.data, c.command_id, c.follows, c.final,
          _now, _offsets[c.ordinal]
        from chained c
        where not exists (select from refused)
        order by c.ordinal
        returning e.event_id, e.previous_id, e."offset"
      )
      select r.*, a.*
      into _done
      from (
        select array_agg(event_id) as event_ids, array_agg(previous_id) as previous_ids, array_agg("offset") as offsets
        from appended
      ) a
      left join refused r on true;
      perform set_config('event_store.streams_advanced', 'off', true);
      exit when _done.ordinal is null;
      raise exception using errcode = 'MR001'; -- undoes the attempt
    exception
      when unique_violation then _done := null;
      when sqlstate 'MR001' then null;
    end;

    select b.event_id into _bad from unnest(v_batch) b group by b.event_id having count(*) > 1 limit 1;
    if found then
      raise exception 'event is malformed'
        using
          errcode = 'MR005',
          detail = format('event_id %s occurs more than once in the batch', _bad.event_id),
          hint = 'Give each event an event_id of its own; nothing of the batch was stored.';
    end if;
    select e.event_id into _bad
    from unnest(_fresh) f
    join event_store.events e using (event_id)
    where (e.event, e.event_version, e.decider, e.decider_id, e.data, e.command_id, e.final)
        is distinct from (f.event, f.event_version, f.decider, f.decider_id, f.data, f.command_id, f.final)
      or (f.previous_stated and e.previous_id is distinct from f.previous_id)
    order by f.ordinal
    limit 1;
    if found then
      perform event_store_private.refuse_reused_event_id(_bad.event_id);
    end if;
    _attempted := cardinality(_fresh);
    _fresh := array(
      select f from unnest(_fresh) f
      where not exists (select from event_store.events e where e.event_id = f.event_id)
    );
    exit when cardinality(_fresh) = 0;
    continue when cardinality(_fresh) < _attempted;

    -- nothing more is stored: the refusal stands
    if _done is null then
      raise exception 'an event_id is stored by a transaction that this one cannot see'
        using errcode = 'serialization_failure', hint = 'Repeat the transaction.';
    elsif _done.final_before then
      raise exception 'last event for this decider stream is already final. the stream is closed, you can not append events to it.'
        using
          errcode = 'MR002',
          detail = format('event %s of the batch follows the final event of stream (%s, %s) in the same batch', _done.ordinal, _done.decider, _done.decider_id),
          hint = 'Append to another stream; nothing of the batch was stored.';
    end if;
    perform event_store_private.refuse_append(_done.decider, _done.decider_id, _done.event_id, _done.previous_id);
  end loop;

  if cardinality(_fresh) = cardinality(v_batch) then
    return query select a.*, true from unnest(_done.event_ids, _done.previous_ids, _done.offsets) a;
  else
    return query
    select e.event_id, e.previous_id, e."offset", e.event_id in (select f.event_id from unnest(_fresh) f)
    from unnest(v_batch) b
    join event_store.events e using (event_id)
    order by b.ordinal;
  end if;
end
$$;

comment on function event_store_private.append_batch(event_store_private.batch_event[]) is
'Appends a batch of events over any streams, all or nothing; returns one row per event in order. MR001 to MR005, '
'MR046 as append_event.';
