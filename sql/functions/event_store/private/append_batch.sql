-- For append_events, after it has read its JSON, and for callers that make events in the database. The batch has at
-- least one event; ordinals count from 1 without gaps, in the order of the array. v_holds_nothing: the caller's
-- transaction had written nothing, so it holds no stream that another session may wait for. v_scheduled: the caller asked
-- for the rights of the role that scheduled the events, whose metadata say when they were due.
create or replace function event_store_private.append_batch(
  v_batch event_store_private.batch_event[],
  v_holds_nothing boolean default pg_current_xact_id_if_assigned() is null,
  v_scheduled boolean default false
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
set search_path = event_store, pg_temp
as $$
-- planner: indexed nested once
#variable_conflict use_column
declare
  _fresh event_store_private.batch_event[]; -- events that are not known to be stored
  _attempted bigint;
  _head_offset bigint; -- the greatest head of the streams that are appended to
  _taken boolean; -- whether another writer took a version of the attempt
  _constraint text;
  _now timestamptz;
  _done record;
  _bad record;
  _purges bigint;
  _lost boolean := false;
begin
  select k.*, d.judged into _bad
  from (
    select
      b.decider, b.event, b.event_version,
      min(b.ordinal) filter (
        where event_store_private.event_fault(
          b.event, b.event_id, b.event_version, b.decider, b.decider_id, b.data, b.command_id, b.final, b.expected_version,
          case when v_scheduled then b.metadata - 'due_at' else b.metadata end
        ) is not null
      ) as malformed
    from unnest(v_batch) b
    group by b.decider, b.event, b.event_version
  ) k
  left join lateral (
    select d.accepts is not null as judged
    from event_store.deciders d
    where d.decider = k.decider and d.event = k.event and d.event_version = k.event_version
      and (d.owner is null or v_scheduled or event_store_private.may_use(d.owner))
  ) d on true
  where k.malformed is not null or d.judged is distinct from false
  order by k.malformed, d.judged nulls first -- unregistered events come before those with a schema
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
              b.event, b.event_id, b.event_version, b.decider, b.decider_id, b.data, b.command_id, b.final, b.expected_version,
              case when v_scheduled then b.metadata - 'due_at' else b.metadata end
            )
          )
          from unnest(v_batch) b
          where b.ordinal = _bad.malformed
        ),
        hint = 'Correct the event; nothing of the batch was stored.';
  elsif found and _bad.judged is null then
    perform event_store_private.refuse_unregistered_event(_bad.decider, _bad.event, _bad.event_version);
  elsif found then
    select b.* into _bad
    from unnest(v_batch) b
    join event_store.deciders d on d.decider = b.decider and d.event = b.event and d.event_version = b.event_version
    where not event_store_private.meets(d.accepts, d.seals, b.data)
      -- stored events are not judged again
      and not exists (select from event_store.events e where e.event_id = b.event_id)
    order by b.ordinal
    limit 1;
    if found then
      perform event_store_private.refuse_data(
        _bad.decider, _bad.event, _bad.event_version, _bad.data, format('event %s of the batch: ', _bad.ordinal)
      );
    end if;
  end if;

  -- Nearly every batch is new as a whole, so that is tried first. Where it fails, the attempt is undone and the stored
  -- events are looked up: either the rest of the batch is tried, or the batch is refused. If another writer took a
  -- version meanwhile, all of it is tried again: one writer always succeeds. With many over the same streams each would
  -- lose at one stream after another, for seconds. So a batch that lost once waits for its streams' turn (take_turns).
  _fresh := v_batch;
  loop
    _taken := false;
    _purges := pg_sequence_last_value('event_store.purge_seq');
    begin
      _now := event_store_private.clock();
      -- One statement: it draws offsets after it began to see the heads, so they rise along each stream.
      with offsets as materialized (
        select array(select nextval('event_store.events_offset_seq') from generate_series(1, cardinality(v_batch))) as drawn
      ), linked as (
        select
          f.*,
          lag(f.event_id) over stream as id_before,
          lag(f.final) over stream as final_before,
          row_number() over stream as number
        from unnest(_fresh) f
        window stream as (partition by f.decider_id, f.decider order by f.ordinal)
      ), chained as materialized (
        -- an event follows the one before it in the batch, the first one of a stream the stream's head
        select
          l.*,
          coalesce(l.id_before, head.last_event_id) as follows,
          coalesce(l.final_before, head.final) as closed,
          head.last_offset as head_offset,
          coalesce(first_value(head.version) over (partition by l.decider_id, l.decider order by l.ordinal), 0) + l.number as version
        from linked l
        left join lateral (
          select h.* from event_store_private.head_of_stream(l.decider_id, l.decider) h where l.number = 1
        ) head on true
      ), refused as materialized (
        select c.ordinal, c.decider, c.decider_id, c.event_id, c.previous_id, c.previous_stated, c.expected_version, c.final_before
        from chained c
        where c.closed or (c.previous_stated and c.previous_id is distinct from c.follows) or c.expected_version <> c.version - 1
        order by c.ordinal
        limit 1
      ), appended as (
        insert into event_store.events as e (
          event, event_id, event_version, decider, decider_id, data, command_id, previous_id, final, created_at, "offset",
          version, metadata
        )
        select
          c.event, c.event_id, c.event_version, c.decider, c.decider_id, c.data, c.command_id, c.follows, c.final,
          _now, (select o.drawn from offsets o)[c.ordinal], c.version, c.metadata
        from chained c
        where not exists (select from refused)
        -- so that batches wait for each other in one order
        order by c.decider_id, c.decider, c.ordinal
        returning e.event_id, e.previous_id, e."offset", e.version
      )
      select r.*, a.*, (select max(c.head_offset) from chained c) as head_offset, (select o.drawn[1] from offsets o) as first_drawn
      into _done
      from (
        select
          array_agg(event_id) as event_ids, array_agg(previous_id) as previous_ids, array_agg("offset") as offsets,
          array_agg(version) as versions
        from appended
      ) a
      left join refused r on true;
      _head_offset := _done.head_offset;
      exit when _done.ordinal is null and (_head_offset > _done.first_drawn) is not true;
      raise exception using errcode = 'MR001'; -- undoes the attempt
    exception
      when unique_violation then
        get stacked diagnostics _constraint = constraint_name;
        _taken := _constraint = 'events_stream_key';
        _done := null;
      when sqlstate 'MR001' then null;
    end;
    if event_store_private.are_sequences_behind(_head_offset) then
      perform event_store_private.advance_sequences();
      continue;
    end if;
    if _taken and current_setting('transaction_isolation') <> 'read committed' then
      raise exception 'a stream was moved on by a transaction that this one cannot see'
        using errcode = 'serialization_failure', hint = 'Repeat the transaction.';
    end if;
    if _taken then
      -- a batch of one event needs no turn: it is done once it is first
      if not _lost and v_holds_nothing and cardinality(_fresh) > 1 then
        perform event_store_private.take_turns(array(select f.decider_id from unnest(_fresh) f));
      end if;
      _lost := true;
      continue;
    end if;

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
    where (e.event, e.event_version, e.decider, e.decider_id, e.command_id, e.final)
        is distinct from (f.event, f.event_version, f.decider, f.decider_id, f.command_id, f.final)
      or not event_store_private.is_same_data(e.data, f.data)
      or (f.previous_stated and e.previous_id is distinct from f.previous_id)
      or f.expected_version <> e.version - 1
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

    -- no further event is stored: the refusal stands
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
    perform event_store_private.refuse_append(_done.decider, _done.decider_id, _done.event_id, _done.previous_id, _done.expected_version);
  end loop;

  if cardinality(_fresh) > 0
    and (
      pg_sequence_last_value('event_store.purge_seq') is distinct from _purges
      or current_setting('transaction_isolation') <> 'read committed'
    )
  then
    perform event_store_private.require_unpurged(_done.event_ids);
  end if;
  if pg_sequence_last_value('event_store.attended_seq') % 2 = 1 then -- a sequencer sleeps
    perform event_store_private.wake_sequencer();
  end if;
  if cardinality(_fresh) = cardinality(v_batch) then
    return query
    select a.*, true from unnest(_done.event_ids, _done.previous_ids, _done.offsets, _done.versions) a(event_id, previous_id, "offset", version)
    order by a."offset"; -- in the order given
  else
    return query
    select e.event_id, e.previous_id, e."offset", e.version, e.event_id in (select f.event_id from unnest(_fresh) f)
    from unnest(v_batch) b
    join event_store.events e using (event_id)
    order by b.ordinal;
  end if;
end
$$;

comment on function event_store_private.append_batch(event_store_private.batch_event[], boolean, boolean) is
'Appends a batch of events over any streams, all or nothing; returns one row per event in order. MR001 to MR005, '
'MR046, MR050, MR055 as append_event.';
