-- PostgreSQL database dump

SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

CREATE SCHEMA event_store;

COMMENT ON SCHEMA event_store IS 'Events, their order, and who has consumed them.';

CREATE SCHEMA read_models;

COMMENT ON SCHEMA read_models IS 'The read models: one SQL view per model over its partitioned state.';

CREATE TYPE event_store.batch_event AS (
	"position" bigint,
	event text,
	event_id uuid,
	event_version bigint,
	decider text,
	decider_id text,
	data jsonb,
	command_id uuid,
	previous_id uuid,
	previous_stated boolean,
	final boolean
);

COMMENT ON TYPE event_store.batch_event IS 'One event of a batch as append_events holds it in memory.';

SET default_tablespace = '';

SET default_table_access_method = heap;

CREATE TABLE event_store.stream_locks (
    view text NOT NULL,
    decider text NOT NULL COLLATE pg_catalog."C",
    decider_id text NOT NULL COLLATE pg_catalog."C",
    partition integer NOT NULL,
    last_offset bigint NOT NULL,
    locked_until timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    in_flight bigint,
    attempts integer DEFAULT 0 NOT NULL,
    last_error text,
    parked_at timestamp with time zone,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    lease_token bigint DEFAULT 0 NOT NULL,
    lease_pid integer,
    taken_over boolean DEFAULT false NOT NULL,
    caught_up boolean DEFAULT false NOT NULL,
    nothing_after boolean DEFAULT false NOT NULL,
    CONSTRAINT stream_locks_delivery_is_ahead CHECK ((in_flight > last_offset)),
    CONSTRAINT stream_locks_parked_is_not_in_flight CHECK (((parked_at IS NULL) OR (in_flight IS NULL)))
)
WITH (fillfactor='50');

COMMENT ON TABLE event_store.stream_locks IS 'The streams of a view that have something to deliver, are in flight, wait for a retry or are parked. Sparse: an idle stream has no row.';

COMMENT ON COLUMN event_store.stream_locks.view IS 'The view.';

COMMENT ON COLUMN event_store.stream_locks.decider IS 'The kind of entity.';

COMMENT ON COLUMN event_store.stream_locks.decider_id IS 'The entity.';

COMMENT ON COLUMN event_store.stream_locks.partition IS 'The log partition of the stream.';

COMMENT ON COLUMN event_store.stream_locks.last_offset IS 'The offset of the last acknowledged event of the stream.';

COMMENT ON COLUMN event_store.stream_locks.locked_until IS 'Until when the stream is not given out.';

COMMENT ON COLUMN event_store.stream_locks.in_flight IS 'The offset of the event that a consumer holds; null for none.';

COMMENT ON COLUMN event_store.stream_locks.attempts IS 'How often the event after last_offset was delivered and not given back (rows), or failed (bulk).';

COMMENT ON COLUMN event_store.stream_locks.last_error IS 'Why the last attempt failed, or why the event was given back; null when it was acknowledged.';

COMMENT ON COLUMN event_store.stream_locks.parked_at IS 'When the stream was given up and became a dead letter; null while it is not.';

COMMENT ON COLUMN event_store.stream_locks.created_at IS 'When the lock was made.';

COMMENT ON COLUMN event_store.stream_locks.updated_at IS 'When the lock last changed.';

COMMENT ON COLUMN event_store.stream_locks.lease_token IS 'The token of the last delivery (rows), or of the lease that retries the stream (bulk).';

COMMENT ON COLUMN event_store.stream_locks.lease_pid IS 'The session of the last delivery (rows): it may answer without a token after it took the stream over. Null for a delivery in bulk mode.';

COMMENT ON COLUMN event_store.stream_locks.taken_over IS 'Whether the event in flight was delivered before to somebody who let the lock end: that one may still answer.';

COMMENT ON COLUMN event_store.stream_locks.caught_up IS 'Whether the stream had nothing left when its event was acknowledged: the dispatcher looks at these and removes the lock.';

COMMENT ON COLUMN event_store.stream_locks.nothing_after IS 'Whether the view wanted nothing after the event in flight when that was delivered (rows).';

CREATE TABLE event_store.streams (
    decider text NOT NULL COLLATE pg_catalog."C",
    decider_id text NOT NULL COLLATE pg_catalog."C",
    last_event_id uuid NOT NULL,
    last_offset bigint NOT NULL,
    version bigint NOT NULL,
    final boolean DEFAULT false NOT NULL
)
WITH (fillfactor='80');

COMMENT ON TABLE event_store.streams IS 'The head of each stream. Its row is the optimistic lock of an append: the first writer moves it, the second one conflicts.';

COMMENT ON COLUMN event_store.streams.decider IS 'The kind of entity.';

COMMENT ON COLUMN event_store.streams.decider_id IS 'The entity.';

COMMENT ON COLUMN event_store.streams.last_event_id IS 'The event_id of the stream''s last event: what the next append states as previous_id.';

COMMENT ON COLUMN event_store.streams.last_offset IS 'The offset of the stream''s last event.';

COMMENT ON COLUMN event_store.streams.version IS 'How many events the stream has.';

COMMENT ON COLUMN event_store.streams.final IS 'Whether the last event closed the stream.';

CREATE VIEW event_store.locks AS
 SELECT l.view,
    l.decider_id,
    s.last_offset AS "offset",
    l.last_offset,
    l.locked_until,
    s.final AS offset_final,
    l.created_at,
    l.updated_at
   FROM (event_store.stream_locks l
     JOIN event_store.streams s USING (decider_id, decider));

COMMENT ON VIEW event_store.locks IS 'The locks in the shape of fstore-sql. "offset" is the head of the stream.';

CREATE FUNCTION event_store.ack_event(v_view text, v_decider_id text, v_offset bigint, v_lease_token bigint DEFAULT NULL::bigint) RETURNS SETOF event_store.locks
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  _now constant timestamptz := event_store.clock();
begin
  return query
  update event_store.stream_locks k
  set
    last_offset = v_offset, in_flight = null, taken_over = false, attempts = 0, last_error = null, locked_until = _now,
    updated_at = _now,
    caught_up = k.nothing_after
  from event_store.streams s
  where k.view = v_view and k.decider_id = v_decider_id and k.in_flight = v_offset
    and event_store.holds_lock(k, v_offset, v_lease_token)
    and k.lease_pid is not null -- in bulk mode nobody has a single event
    and s.decider_id = k.decider_id and s.decider = k.decider
  returning k.view, k.decider_id, s.last_offset, k.last_offset, k.locked_until, s.final, k.created_at, k.updated_at;
  if not found then
    perform event_store.known_view(v_view, 'rows');
    perform event_store.refuse_not_in_flight(v_view, v_decider_id, v_offset, v_lease_token);
  end if;
end
$$;

COMMENT ON FUNCTION event_store.ack_event(v_view text, v_decider_id text, v_offset bigint, v_lease_token bigint) IS 'Acknowledges the event in flight and frees its stream. MR010, MR012, MR016 not in flight.';

CREATE FUNCTION event_store.ack_event(v_view text, v_decider_id uuid, v_offset bigint, v_lease_token bigint DEFAULT NULL::bigint) RETURNS SETOF event_store.locks
    LANGUAGE sql
    AS $$
  select * from event_store.ack_event(v_view, v_decider_id::text, v_offset, v_lease_token)
$$;

COMMENT ON FUNCTION event_store.ack_event(v_view text, v_decider_id uuid, v_offset bigint, v_lease_token bigint) IS 'ack_event for UUID identifiers.';

CREATE FUNCTION event_store.ack_events(v_view text, v_offsets bigint[], v_lease_tokens bigint[] DEFAULT NULL::bigint[]) RETURNS SETOF bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
declare
  _now constant timestamptz := event_store.clock();
begin
  perform event_store.known_view(v_view, 'rows');
  if v_offsets is null or cardinality(v_offsets) <> coalesce(cardinality(v_lease_tokens), cardinality(v_offsets)) then
    perform event_store.refuse_request(
      format('%s offsets, %s lease tokens', coalesce(cardinality(v_offsets)::text, 'no'), coalesce(cardinality(v_lease_tokens)::text, 'no')),
      'Pass an array of offsets and, where you have them, as many lease tokens.'
    );
  end if;
  return query
  with held as materialized (
    -- in one order, so that two callers with the same streams do not deadlock
    select k.decider_id, k.decider
    from unnest(v_offsets, v_lease_tokens) a("offset", lease_token)
    join event_store.events e using ("offset")
    join event_store.stream_locks k
      on k.view = v_view and k.decider_id = e.decider_id and k.decider = e.decider and k.in_flight = e."offset"
    where event_store.holds_lock(k, a."offset", a.lease_token)
    order by k.decider_id, k.decider
    for update of k
  )
  update event_store.stream_locks k
  set
    last_offset = k.in_flight, in_flight = null, taken_over = false, attempts = 0, last_error = null, locked_until = _now,
    updated_at = _now,
    caught_up = k.nothing_after
  from held
  -- by key and not by ctid: while we waited for the lock, extend_lock may have made another version of the row
  where k.view = v_view and k.decider_id = held.decider_id and k.decider = held.decider
  returning k.last_offset;
end
$$;

COMMENT ON FUNCTION event_store.ack_events(v_view text, v_offsets bigint[], v_lease_tokens bigint[]) IS 'Acknowledges many events; returns the offsets that were acknowledged. MR005, MR010, MR012.';

CREATE TABLE event_store.events (
    event text NOT NULL,
    event_id uuid NOT NULL,
    event_version bigint DEFAULT 1 NOT NULL,
    decider text NOT NULL COLLATE pg_catalog."C",
    decider_id text NOT NULL COLLATE pg_catalog."C",
    data jsonb NOT NULL,
    command_id uuid NOT NULL,
    previous_id uuid,
    final boolean DEFAULT false NOT NULL,
    created_at timestamp with time zone NOT NULL,
    "offset" bigint NOT NULL,
    transaction_id xid8 DEFAULT pg_current_xact_id() NOT NULL
);

COMMENT ON TABLE event_store.events IS 'Every event, once, never changed. Its first eleven columns are fstore-sql''s.';

COMMENT ON COLUMN event_store.events.event IS 'The event''s name, registered in deciders.';

COMMENT ON COLUMN event_store.events.event_id IS 'The event''s identity. Appending it again stores nothing.';

COMMENT ON COLUMN event_store.events.event_version IS 'The version of the event''s schema.';

COMMENT ON COLUMN event_store.events.decider IS 'The kind of entity that emitted the event.';

COMMENT ON COLUMN event_store.events.decider_id IS 'The entity that emitted the event.';

COMMENT ON COLUMN event_store.events.data IS 'What happened.';

COMMENT ON COLUMN event_store.events.command_id IS 'The command that caused the event.';

COMMENT ON COLUMN event_store.events.previous_id IS 'The event before this one in its stream; null for the first.';

COMMENT ON COLUMN event_store.events.final IS 'Whether the event closes its stream.';

COMMENT ON COLUMN event_store.events.created_at IS 'When the event was appended, by the store''s clock.';

COMMENT ON COLUMN event_store.events."offset" IS 'Unique and increasing along each stream, with gaps. Drawn after the stream''s row is locked.';

COMMENT ON COLUMN event_store.events.transaction_id IS 'The appending transaction: how the sequencer knows that the event is committed.';

CREATE VIEW event_store.recorded_events AS
 SELECT event,
    event_id,
    event_version,
    decider,
    decider_id,
    data,
    command_id,
    previous_id,
    final,
    created_at,
    "offset"
   FROM event_store.events;

COMMENT ON VIEW event_store.recorded_events IS 'An event in the shape that every function returns it: fstore-sql''s columns.';

CREATE FUNCTION event_store.append_event(v_event text, v_event_id uuid, v_decider text, v_decider_id text, v_data jsonb, v_command_id uuid, v_previous_id uuid, v_event_version bigint DEFAULT 1, v_final boolean DEFAULT false) RETURNS SETOF event_store.recorded_events
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
begin
  return query
  insert into event_store.events as e (event, event_id, event_version, decider, decider_id, data, command_id, previous_id, final)
  values (v_event, v_event_id, v_event_version, v_decider, v_decider_id, v_data, v_command_id, v_previous_id, v_final)
  on conflict (event_id) do nothing
  returning
    e.event, e.event_id, e.event_version, e.decider, e.decider_id, e.data, e.command_id, e.previous_id, e.final,
    e.created_at, e."offset";
  if not found then
    -- the guard skipped a retry, or the event_id belongs to another stream; this tells which
    perform event_store.is_stored(
      v_event, v_event_id, v_event_version, v_decider, v_decider_id, v_data, v_command_id, v_previous_id, v_final
    );
    return query select * from event_store.recorded_events r where r.event_id = v_event_id;
  end if;
end
$$;

COMMENT ON FUNCTION event_store.append_event(v_event text, v_event_id uuid, v_decider text, v_decider_id text, v_data jsonb, v_command_id uuid, v_previous_id uuid, v_event_version bigint, v_final boolean) IS 'Appends one event under optimistic locking and returns it. MR001 conflict, MR002 closed, MR003 event_id reused, MR004 unregistered, MR005 malformed.';

CREATE FUNCTION event_store.append_event(v_event text, v_event_id uuid, v_decider text, v_decider_id uuid, v_data jsonb, v_command_id uuid, v_previous_id uuid, v_event_version bigint DEFAULT 1, v_final boolean DEFAULT false) RETURNS SETOF event_store.recorded_events
    LANGUAGE sql
    AS $$
  select * from event_store.append_event(
    v_event, v_event_id, v_decider, v_decider_id::text, v_data, v_command_id, v_previous_id, v_event_version, v_final
  )
$$;

COMMENT ON FUNCTION event_store.append_event(v_event text, v_event_id uuid, v_decider text, v_decider_id uuid, v_data jsonb, v_command_id uuid, v_previous_id uuid, v_event_version bigint, v_final boolean) IS 'append_event for UUID identifiers.';

CREATE FUNCTION event_store.append_events(v_events jsonb) RETURNS TABLE(event_id uuid, previous_id uuid, "offset" bigint, appended boolean)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
#variable_conflict use_column
declare
  _batch event_store.batch_event[];
  _fresh event_store.batch_event[]; -- those that are not known to be stored
  _attempted bigint;
  _offsets bigint[]; -- by position in the batch
  _first_offset bigint;
  _attempt xid; -- of the subtransaction
  _some_exist boolean;
  _now timestamptz;
  _done record;
  _bad record;
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

  select k.* into _bad
  from (
    select
      b.decider, b.event, b.event_version,
      min(b.position) filter (
        where event_store.event_fault(
          b.event, b.event_id, b.event_version, b.decider, b.decider_id, b.data, b.command_id, b.final
        ) is not null
      ) as malformed
    from unnest(_batch) b
    group by b.decider, b.event, b.event_version
  ) k
  where k.malformed is not null or not exists (
    select from event_store.deciders d
    where d.decider = k.decider and d.event = k.event and d.event_version = k.event_version
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
            b.position,
            event_store.event_fault(
              b.event, b.event_id, b.event_version, b.decider, b.decider_id, b.data, b.command_id, b.final
            )
          )
          from unnest(_batch) b
          where b.position = _bad.malformed
        ),
        hint = 'Correct the event; nothing of the batch was stored.';
  elsif found then
    perform event_store.refuse_unregistered_event(_bad.decider, _bad.event, _bad.event_version);
  end if;

  -- Nearly every batch is new as a whole, so that is tried first. What is stored already is looked up where that fails:
  -- the attempt is undone, and either the rest of the batch is tried or the batch is refused.
  _fresh := _batch;
  loop
    begin
      _offsets := array(select nextval('event_store.events_offset_seq') from generate_series(1, cardinality(_batch)));
      _first_offset := _offsets[1];
      -- One pass in one order over all streams, so batches never deadlock: a new stream gets its head, one that exists is
      -- locked and stays as it is.
      with heads as materialized (
        select distinct on (f.decider_id, f.decider)
          f.decider, f.decider_id, f.event_id, _offsets[f.position] as "offset", f.final,
          count(*) over (partition by f.decider_id, f.decider) as version
        from unnest(_fresh) f
        order by f.decider_id, f.decider, f.position desc
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
        _offsets := array(select nextval('event_store.events_offset_seq') from generate_series(1, cardinality(_batch)));
      end if;

      _now := event_store.clock();

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
        window stream as (partition by f.decider_id, f.decider order by f.position)
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
        -- the head before this call: none for a stream that was made above (an old row may bear the same 32 bits as xmin)
        left join lateral (
          select s.last_event_id, s.final, s.version
          where s.xmin is distinct from _attempt or s.last_offset < _first_offset
        ) head on true
      ), refused as materialized (
        select c.position, c.decider, c.decider_id, c.event_id, c.previous_id, c.final_before
        from chained c
        where c.closed or (c.previous_stated and c.previous_id is distinct from c.follows)
        order by c.position
        limit 1
      ), advanced as (
        update event_store.streams s
        set
          last_event_id = c.event_id,
          last_offset = _offsets[c.position],
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
          _now, _offsets[c.position]
        from chained c
        where not exists (select from refused)
        order by c.position
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
      exit when _done.position is null;
      raise exception using errcode = 'MR001'; -- undoes the attempt
    exception
      when unique_violation then _done := null;
      when sqlstate 'MR001' then null;
    end;

    select b.event_id into _bad from unnest(_batch) b group by b.event_id having count(*) > 1 limit 1;
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
    order by f.position
    limit 1;
    if found then
      perform event_store.refuse_reused_event_id(_bad.event_id);
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
          detail = format('event %s of the batch follows the final event of stream (%s, %s) in the same batch', _done.position, _done.decider, _done.decider_id),
          hint = 'Append to another stream; nothing of the batch was stored.';
    end if;
    perform event_store.refuse_append(_done.decider, _done.decider_id, _done.event_id, _done.previous_id);
  end loop;

  if cardinality(_fresh) = cardinality(_batch) then
    return query select a.*, true from unnest(_done.event_ids, _done.previous_ids, _done.offsets) a;
  else
    return query
    select e.event_id, e.previous_id, e."offset", e.event_id in (select f.event_id from unnest(_fresh) f)
    from unnest(_batch) b
    join event_store.events e using (event_id)
    order by b.position;
  end if;
end
$$;

COMMENT ON FUNCTION event_store.append_events(v_events jsonb) IS 'Appends a JSON array of events over any streams, all or nothing; returns one row per event in order. MR001 to MR005 as append_event.';

CREATE FUNCTION event_store.archive_state(v_partition integer DEFAULT NULL::integer) RETURNS TABLE(archive_id uuid, partition integer, earliest_offset bigint, archived_offset bigint, high_water_mark bigint, from_offset bigint, to_offset bigint, path text, bytes bigint, checksum text)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
begin
  if v_partition is not null then
    perform event_store.require_partition(v_partition);
  end if;
  return query
  select
    a.archive_id, p.partition, p.earliest_offset, p.archived_offset, p.high_water_mark,
    f.from_offset, f.to_offset, f.path, f.bytes, f.checksum
  from event_store.partitions p
  cross join event_store.archive a
  left join event_store.archive_files f on f.partition = p.partition
  where v_partition is null or p.partition = v_partition
  order by p.partition, f.from_offset;
end
$$;

COMMENT ON FUNCTION event_store.archive_state(v_partition integer) IS 'The files of the archive beside the marks of the log, in one snapshot; null for all log partitions. MR013 unknown partition.';

CREATE FUNCTION event_store.attach_consumer(v_view text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
begin
  perform event_store.known_view(v_view);
  perform pg_advisory_lock_shared(event_store.consumer_class(), hashtext(v_view));
end
$$;

COMMENT ON FUNCTION event_store.attach_consumer(v_view text) IS 'Marks this session as a live consumer of a view until it ends. MR010 unknown view.';

CREATE FUNCTION event_store.attached_consumers() RETURNS TABLE(view_hash integer, consumers bigint)
    LANGUAGE sql
    AS $$
  -- pg_locks shows keys as oids, which have no sign
  select l.objid::bigint::bit(32)::int, count(*)
  from pg_locks l
  where l.locktype = 'advisory'
    and l.database = (select d.oid from pg_database d where d.datname = current_database())
    and l.classid = event_store.consumer_class()::bit(32)::bigint::oid
    and l.objsubid = 2
    and l.granted
  group by 1
$$;

COMMENT ON FUNCTION event_store.attached_consumers() IS 'How many live sessions attached themselves to each view, by the hash of its name.';

CREATE FUNCTION event_store.audit(v_operation text, v_view text, v_reason text, v_detail jsonb) RETURNS void
    LANGUAGE sql
    AS $$
  insert into event_store.audit_log (done_at, done_by, operation, view, reason, detail)
  -- the caller, also inside a security definer function
  values (event_store.clock(), session_user, v_operation, v_view, v_reason, v_detail)
$$;

COMMENT ON FUNCTION event_store.audit(v_operation text, v_view text, v_reason text, v_detail jsonb) IS 'Writes down what an operator did, who and why.';

CREATE FUNCTION event_store.available_offset_range(v_partition integer DEFAULT NULL::integer) RETURNS TABLE(partition integer, earliest_offset bigint, high_water_mark bigint, events bigint)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
#variable_conflict use_column
begin
  if v_partition is not null then
    perform event_store.require_partition(v_partition);
  end if;
  return query
  select p.partition, p.earliest_offset, p.high_water_mark, p.high_water_mark - p.earliest_offset
  from event_store.partitions p
  where v_partition is null or p.partition = v_partition
  order by p.partition;
end
$$;

COMMENT ON FUNCTION event_store.available_offset_range(v_partition integer) IS 'The partition offsets that the log holds, from earliest_offset up to before high_water_mark. MR013 unknown partition.';

CREATE FUNCTION event_store.backup_cut() RETURNS TABLE(archive_id uuid, last_offset bigint, lease_token bigint)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
  select a.archive_id, o.last_value, t.last_value
  from event_store.archive a
  cross join event_store.events_offset_seq o
  cross join event_store.lease_token_seq t
$$;

COMMENT ON FUNCTION event_store.backup_cut() IS 'Whose backup it is, and the last offset and token that were given out.';

CREATE FUNCTION event_store.begin_restore() RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  _table regclass;
  _rows bigint;
  _found text[];
begin
  -- in the order of migrations, which lock tables; and sequencers pass by a locked row
  lock table event_store.views in exclusive mode;
  update event_store.sequencer set sequenced_at = 'infinity'; -- until finish_restore
  lock table event_store.deciders, event_store.streams, event_store.events,
    event_store.event_log, event_store.partitions, event_store.checkpoints, event_store.stream_locks, event_store.audit_log
    in exclusive mode;
  foreach _table in array event_store.restore_tables() loop
    -- how many is nobody's question: a store in use has millions
    execute format('select count(*) from (select from %s limit 1000) counted', _table) into _rows;
    if _rows > 0 then
      _found := _found || format('%s has %s rows', _table, case _rows when 1000 then '1000 or more' else _rows::text end);
    end if;
  end loop;
  if exists (select from event_store.partitions where high_water_mark > 0) then
    _found := _found || 'its log has begun'::text;
  end if;
  if _found is not null then
    raise exception 'store is not empty'
      using
        errcode = 'MR021',
        detail = format('database %s: %s', current_database(), array_to_string(_found, '; ')),
        hint = 'Restore into a new database: nothing here was changed.';
  end if;

  foreach _table in array event_store.restore_tables() loop
    if not has_table_privilege(session_user, _table, 'insert') then
      execute format('grant insert on %s to %I', _table, session_user);
    end if;
  end loop;
  perform set_config('event_store.streams_advanced', 'on', true);
end
$$;

COMMENT ON FUNCTION event_store.begin_restore() IS 'Lets this transaction load a backup into an empty store, if finish_restore ends it. MR021 not empty.';

CREATE FUNCTION event_store.claim_batch(v_view text, v_owner text, v_limit bigint DEFAULT 100000, v_lease_s bigint DEFAULT NULL::bigint) RETURNS TABLE(partition integer, from_offset bigint, to_offset bigint, lease_token bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
#variable_conflict use_column
declare
  _view constant event_store.views := event_store.known_view(v_view, 'bulk');
  _lease constant interval := event_store.lease_duration(_view, v_lease_s);
  _now timestamptz;
  _claimed int[];
begin
  if coalesce(v_owner, '') = '' then
    perform event_store.refuse_request(format('v_owner is %L', v_owner), 'An owner is named: the id of a run, say.');
  end if;
  if coalesce(v_limit, 0) <= 0 then
    perform event_store.refuse_request(format('v_limit is %s', v_limit), 'v_limit must be at least 1.');
  end if;
  if not _view.enabled then
    return;
  end if;
  perform event_store.sequence_events();

  -- locks them; the ranges are read in the statements after that
  _claimed := event_store.pass_over_unwanted(v_view);
  perform event_store.sweep_locks(_view, _claimed, true);

  _now := event_store.clock();
  return query
  with pending as (
    select c.partition, c.position, p.high_water_mark, oldest."offset" as oldest
    from event_store.checkpoints c
    join event_store.partitions p using (partition)
    left join event_store.event_log oldest on oldest.partition = c.partition and oldest.partition_offset = c.position
    where c.view = v_view
      and c.partition = any (_claimed)
      and (
        c.position < p.high_water_mark
        or c.partition in (
          select k.partition
          from event_store.stream_locks k
          -- what is not sequenced yet cannot be delivered: a lease for it would be empty
          cross join lateral (
            select from event_store.events e
            join event_store.event_log l using ("offset")
            where e.decider_id = k.decider_id and e.decider = k.decider and e."offset" > k.last_offset
              and event_store.wants(_view.deciders, _view.events, e.decider, e.event)
            limit 1
          ) next_event
          where k.view = v_view and k.parked_at is null and k.locked_until <= _now
        )
      )
  ), shared as (
    select
      q.partition, q.high_water_mark,
      coalesce(
        sum(greatest(q.high_water_mark - q.position, 0))
          over (order by q.oldest nulls first rows between unbounded preceding and 1 preceding),
        0
      )::bigint as taken_before
    from pending q
  ), leased as (
    update event_store.checkpoints c
    set
      lease_owner = v_owner,
      lease_token = nextval('event_store.lease_token_seq'),
      leased_until = _now + _lease,
      leased_from = c.position,
      leased_to = c.position + least(greatest(s.high_water_mark - c.position, 0), v_limit - s.taken_before),
      rebuilds = false
    from shared s
    where c.view = v_view and c.partition = s.partition and s.taken_before < v_limit
    returning c.partition, c.leased_from, c.leased_to, c.lease_token
  ), retried as (
    -- what this lease delivers of the streams that have a lock: up to in_flight
    update event_store.stream_locks k
    set in_flight = last_event."offset", lease_token = due.lease_token, lease_pid = null, updated_at = _now
    from (
      select x.decider_id, x.decider, x.last_offset, d.partition, d.leased_to, d.lease_token
      from event_store.stream_locks x
      join leased d using (partition)
      where x.view = v_view and x.locked_until <= _now and x.parked_at is null
      order by x.locked_until
      limit 10000
    ) due
    left join lateral (
      select e."offset"
      from event_store.events e
      join event_store.event_log l using ("offset")
      where e.decider_id = due.decider_id and e.decider = due.decider and e."offset" > due.last_offset
        and l.partition_offset < due.leased_to
        and event_store.wants(_view.deciders, _view.events, e.decider, e.event)
      order by e."offset" desc
      limit 1
    ) last_event on true
    where k.view = v_view and k.decider_id = due.decider_id and k.decider = due.decider
  )
  select d.partition, d.leased_from, d.leased_to, d.lease_token from leased d;
end
$$;

COMMENT ON FUNCTION event_store.claim_batch(v_view text, v_owner text, v_limit bigint, v_lease_s bigint) IS 'Leases log partitions with pending events or due retries and returns the ranges to read; none when there is nothing to do. MR005 malformed, MR010 unknown view, MR012 other mode.';

CREATE FUNCTION event_store.claim_partition(v_view text, v_partition integer, v_owner text, v_lease_s bigint DEFAULT NULL::bigint) RETURNS TABLE(partition integer, from_offset bigint, to_offset bigint, lease_token bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
#variable_conflict use_column
declare
  _view constant event_store.views := event_store.known_view(v_view, 'bulk');
  _lease constant interval := event_store.lease_duration(_view, v_lease_s);
  _checkpoint event_store.checkpoints;
begin
  if coalesce(v_owner, '') = '' then
    perform event_store.refuse_request(format('v_owner is %L', v_owner), 'An owner is named: the id of a run, say.');
  end if;
  if (event_store.lock_view(v_view, 'bulk')).view is null then
    perform event_store.refuse_view_in_use(v_view, 'somebody is changing it');
  end if;
  perform event_store.require_partition(v_partition);
  -- the log keeps what we are about to read
  perform pg_advisory_xact_lock_shared(event_store.history_key());
  begin
    select * into _checkpoint from event_store.checkpoints c
    where c.view = v_view and c.partition = v_partition
    for update nowait;
  exception when lock_not_available then
    raise exception 'log partition is leased'
      using
        errcode = 'MR014',
        detail = format('partition %s of view %L is being claimed or committed', v_partition, v_view),
        hint = 'Try again in a moment.';
  end;
  if _checkpoint.leased_until > event_store.clock() then
    raise exception 'log partition is leased'
      using
        errcode = 'MR014',
        detail = format('partition %s of view %L is leased by %s until %s', v_partition, v_view, _checkpoint.lease_owner, _checkpoint.leased_until),
        hint = 'Try again when the lease is given back or has expired.';
  end if;
  -- only now: who waits with the sequencer's row in hand keeps new events from everybody
  perform event_store.sequence_events();
  return query
  update event_store.checkpoints c
  set
    lease_owner = v_owner,
    lease_token = nextval('event_store.lease_token_seq'),
    leased_until = event_store.clock() + _lease,
    leased_from = p.earliest_offset,
    leased_to = p.high_water_mark,
    rebuilds = true
  from event_store.partitions p
  where c.view = v_view and c.partition = v_partition and p.partition = c.partition
  returning c.partition, c.leased_from, c.leased_to, c.lease_token;
end
$$;

COMMENT ON FUNCTION event_store.claim_partition(v_view text, v_partition integer, v_owner text, v_lease_s bigint) IS 'Leases one log partition for a rebuild and returns all that it holds as a range. MR005, MR010, MR012, MR013 unknown partition, MR014 leased, MR017 being changed.';

CREATE FUNCTION event_store.clock() RETURNS timestamp with time zone
    LANGUAGE sql PARALLEL SAFE
    AS $$
  select case
    when coalesce(current_setting('event_store.clock', true), '') <> ''
      and pg_has_role(session_user, 'event_store_owner', 'member')
    then current_setting('event_store.clock')::timestamptz
    else clock_timestamp()
  end
$$;

COMMENT ON FUNCTION event_store.clock() IS 'The time by which leases expire and events are stamped; for the store''s owner, the setting event_store.clock overrides it.';

CREATE FUNCTION event_store.commit_batch(v_view text, v_partition integer[], v_to_offset bigint[], v_lease_token bigint[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  _view event_store.views;
  _now timestamptz;
  _bad text;
begin
  perform event_store.require_leases(v_view, v_partition, v_lease_token);
  select string_agg(
    format(
      'partition %s: to %s, position %s, leased up to %s, high-water mark %s',
      b.partition, b.to_offset, c.position, c.leased_to, p.high_water_mark
    ),
    '; ' order by b.partition
  )
  into _bad
  from unnest(v_partition, v_to_offset) b(partition, to_offset)
  left join event_store.checkpoints c on c.view = v_view and c.partition = b.partition
  left join event_store.partitions p on p.partition = b.partition
  -- a lease of the version before this one has no range
  where (b.to_offset between c.position and coalesce(c.leased_to, p.high_water_mark)) is not true
    or (c.rebuilds and b.to_offset <> c.leased_to)
    -- a stream that failed at an event beyond it: what lies between would be nobody's
    or (
      b.to_offset < c.leased_to
      and exists (
        select from event_store.stream_locks k
        join event_store.events e on e.decider_id = k.decider_id and e.decider = k.decider and e."offset" <= k.last_offset
        join event_store.event_log l on l."offset" = e."offset"
        where k.view = v_view and k.partition = b.partition and k.lease_token = c.lease_token and k.in_flight is null
          and l.partition_offset >= b.to_offset
      )
    );
  if _bad is not null then
    raise exception 'checkpoint cannot move there'
      using
        errcode = 'MR015',
        detail = _bad,
        hint = 'Commit an offset from the position up to the end of the leased range; a rebuild commits all of it.';
  end if;

  if exists (select from event_store.stream_locks where view = v_view) then
    _now := event_store.clock();
    if exists (select from event_store.checkpoints c where c.view = v_view and c.partition = any (v_partition) and c.rebuilds) then
      delete from event_store.stream_locks k
      using event_store.checkpoints c
      where c.view = v_view and c.partition = any (v_partition) and c.rebuilds
        and k.view = v_view and k.partition = c.partition and k.lease_token <> c.lease_token;
    end if;
    update event_store.stream_locks k
    set last_offset = retried.up_to, in_flight = null, attempts = 0, last_error = null, locked_until = _now, updated_at = _now
    from (
      select r.decider_id, r.decider, case when b.to_offset = c.leased_to then r.in_flight else below.up_to end as up_to
      from unnest(v_partition, v_to_offset, v_lease_token) b(partition, to_offset, lease_token)
      join event_store.checkpoints c on c.view = v_view and c.partition = b.partition
      join event_store.stream_locks r
        on r.view = v_view and r.partition = b.partition and r.lease_token = b.lease_token
        and r.in_flight is not null and r.lease_pid is null
      -- a commit of a part of the range acknowledges that part of a retry, too
      left join lateral (
        select coalesce(max(e."offset"), r.last_offset) as up_to
        from event_store.events e
        join event_store.event_log l using ("offset")
        where b.to_offset < c.leased_to
          and e.decider_id = r.decider_id and e.decider = r.decider
          and e."offset" > r.last_offset and e."offset" <= r.in_flight
          and l.partition_offset < b.to_offset
      ) below on true
    ) retried
    where k.view = v_view and k.decider_id = retried.decider_id and k.decider = retried.decider;
  end if;

  update event_store.checkpoints c
  set
    position = b.to_offset, lease_owner = null, leased_until = null, leased_from = null, leased_to = null, rebuilds = false
  from unnest(v_partition, v_to_offset) b(partition, to_offset)
  where c.view = v_view and c.partition = b.partition;

  if _now is not null then
    _view := event_store.known_view(v_view);
    perform event_store.sweep_locks(_view, v_partition, true);
  end if;
end
$$;

COMMENT ON FUNCTION event_store.commit_batch(v_view text, v_partition integer[], v_to_offset bigint[], v_lease_token bigint[]) IS 'Moves the checkpoints of a claimed batch and ends its leases, fenced by token. MR005, MR010, MR011 lease lost, MR012, MR015 offset out of range.';

CREATE FUNCTION event_store.committed_snapshot() RETURNS pg_snapshot
    LANGUAGE sql
    AS $$
  select case
    when own >= pg_snapshot_xmin(now_) and own < pg_snapshot_xmax(now_) then
      format(
        '%s:%s:%s',
        pg_snapshot_xmin(now_),
        pg_snapshot_xmax(now_),
        (select string_agg(x::text, ',' order by x) from (select pg_snapshot_xip(now_) union select own) in_progress(x))
      )::pg_snapshot
    else now_
  end
  from (select pg_current_snapshot(), pg_current_xact_id_if_assigned()) current(now_, own)
$$;

COMMENT ON FUNCTION event_store.committed_snapshot() IS 'What is committed now: pg_current_snapshot() with the caller''s own transaction counted as in progress.';

CREATE FUNCTION event_store.consumer_class() RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
  select hashtext('event_store.attach_consumer')
$$;

COMMENT ON FUNCTION event_store.consumer_class() IS 'The first key of the advisory locks that mark live consumers.';

CREATE FUNCTION event_store.dead_letters(v_view text DEFAULT NULL::text) RETURNS TABLE(view text, decider text, decider_id text, partition integer, event text, "offset" bigint, attempts integer, last_error text, parked_at timestamp with time zone, waiting bigint)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
#variable_conflict use_column
begin
  if v_view is not null then
    perform event_store.known_view(v_view);
  end if;
  return query
  select
    k.view, k.decider, k.decider_id, k.partition, case when l."offset" is not null then failed.event end, l."offset", k.attempts,
    k.last_error, k.parked_at, failed.waiting
  from event_store.stream_locks k
  join event_store.views v using (view)
  left join lateral (
    select
      (array_agg(e.event order by e."offset"))[1] as event,
      min(e."offset") as "offset",
      count(*) as waiting
    from event_store.events e
    where e.decider_id = k.decider_id and e.decider = k.decider and e."offset" > k.last_offset
      and event_store.wants(v.deciders, v.events, e.decider, e.event)
  ) failed on true
  left join event_store.event_log l on l."offset" = failed."offset"
  where k.parked_at is not null and (v_view is null or k.view = v_view)
  order by k.parked_at, k.view, k.decider_id, k.decider;
end
$$;

COMMENT ON FUNCTION event_store.dead_letters(v_view text) IS 'The parked streams of a view with what failed and why. MR010 unknown view.';

CREATE FUNCTION event_store.discard_dead_letter(v_view text, v_decider text, v_decider_id text, v_reason text, v_offset bigint DEFAULT NULL::bigint) RETURNS SETOF event_store.recorded_events
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  _now constant timestamptz := event_store.clock();
  _view constant event_store.views := event_store.known_view(v_view);
  _lock event_store.stream_locks;
  _event event_store.recorded_events;
begin
  if coalesce(v_reason, '') = '' then
    perform event_store.refuse_request('v_reason is empty', 'Say in v_reason why the event is given up.');
  end if;
  select * into _lock from event_store.stream_locks
  where view = v_view and decider_id = v_decider_id and decider = v_decider and parked_at is not null
  for update;
  if not found then
    raise exception 'stream is not parked'
      using
        errcode = 'MR018',
        detail = format('view %L, stream (%s, %s)', v_view, v_decider, v_decider_id),
        hint = 'dead_letters(view) lists what is.';
  end if;
  select * into _event from event_store.recorded_events e
  where e.decider_id = v_decider_id and e.decider = v_decider and e."offset" > _lock.last_offset
    and event_store.wants(_view.deciders, _view.events, e.decider, e.event)
    -- what is not in the log yet cannot have failed
    and exists (select from event_store.event_log l where l."offset" = e."offset")
  order by e."offset"
  limit 1;
  if v_offset <> coalesce(_event."offset", -1) then
    raise exception 'stream is not parked'
      using
        errcode = 'MR018',
        detail = format(
          'view %L, stream (%s, %s): it is parked at offset %s, not at %s', v_view, v_decider, v_decider_id,
          coalesce(_event."offset"::text, 'none'), v_offset
        ),
        hint = 'dead_letters(view) lists what is.';
  end if;
  update event_store.stream_locks
  set
    last_offset = coalesce(_event."offset", last_offset), parked_at = null, caught_up = true, taken_over = false, attempts = 0, last_error = null,
    locked_until = _now, updated_at = _now
  where view = v_view and decider_id = v_decider_id and decider = v_decider;
  perform event_store.audit(
    'discard_dead_letter', v_view, v_reason,
    jsonb_build_object(
      'decider', v_decider, 'decider_id', v_decider_id, 'event', _event.event, 'event_id', _event.event_id,
      'offset', _event."offset", 'attempts', _lock.attempts, 'last_error', _lock.last_error, 'parked_at', _lock.parked_at
    )
  );
  if _event."offset" is not null then
    return next _event;
  end if;
end
$$;

COMMENT ON FUNCTION event_store.discard_dead_letter(v_view text, v_decider text, v_decider_id text, v_reason text, v_offset bigint) IS 'Gives up the event that a parked stream failed at; audited. MR005, MR010, MR018 not parked.';

CREATE FUNCTION event_store.dispatch_events(v_view text, v_window integer DEFAULT 5000, v_max_waiting integer DEFAULT 2000) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
declare
  _now constant timestamptz := event_store.clock();
  _view constant event_store.views := event_store.lock_view(v_view, 'rows');
  _dispatch event_store.dispatches;
  _sweeps_all boolean; -- once a minute
  _has_room boolean;
  _claimed int[];
  _passed bigint;
begin
  if coalesce(v_window, 0) <= 0 or coalesce(v_max_waiting, 0) <= 0 then
    perform event_store.refuse_request(
      format('v_window %s, v_max_waiting %s', coalesce(v_window::text, 'null'), coalesce(v_max_waiting::text, 'null')),
      'v_window and v_max_waiting must be at least 1.'
    );
  end if;
  if _view.view is null then
    return 0;
  end if;
  select * into _dispatch from event_store.dispatches where view = v_view;
  _sweeps_all := _dispatch.swept_at <= _now - interval '1 minute';
  -- Partitions with new events, and those where a lock may have to go: a remover that another dispatcher overtakes would
  -- remove the lock that this one relies on.
  _claimed := array(
    select c.partition
    from event_store.checkpoints c
    join event_store.partitions p using (partition)
    where c.view = v_view
      and (
        c.position < p.high_water_mark
        or _sweeps_all
        or c.partition in (select k.partition from event_store.stream_locks k where k.view = v_view and k.caught_up)
      )
    for update of c skip locked
  );
  _has_room := cardinality(_claimed) > 0 and not exists (
    select from event_store.stream_locks k
    where k.view = v_view and k.parked_at is null and k.locked_until <= _now
    offset v_max_waiting - 1
  );

  with passed as materialized (
    select l.partition, l.partition_offset, e."offset", e.decider, e.decider_id,
      event_store.wants(_view.deciders, _view.events, e.decider, e.event) as wanted
    from event_store.checkpoints c
    join event_store.event_log l
      on l.partition = c.partition and l.partition_offset >= c.position and l.partition_offset < c.position + v_window
    join event_store.events e using ("offset")
    where _has_room and c.view = v_view and c.partition = any (_claimed)
  ), locked as (
    -- locked until now: it waits behind the streams that were freed before
    insert into event_store.stream_locks (
      view, decider, decider_id, partition, last_offset, locked_until, created_at, updated_at
    )
    select v_view, s.decider, s.decider_id, s.partition, s.before_first, _now, _now, _now
    from (
      select p.decider, p.decider_id, p.partition, min(p."offset") - 1 as before_first
      from passed p
      where p.wanted
      group by p.decider, p.decider_id, p.partition
    ) s
    -- One probe for each stream, however many wait: an anti join may be planned to compare each with all.
    -- `on conflict do nothing` would wait for a consumer that has this lock in an open transaction.
    left join lateral (
      select true as held
      from event_store.stream_locks k
      where k.view = v_view and k.decider_id = s.decider_id and k.decider = s.decider
      limit 1
    ) k on true
    where k.held is null
  ), moved as (
    update event_store.checkpoints c
    set position = p.position
    from (select partition, max(partition_offset) + 1 as position from passed group by partition) p
    where c.view = v_view and c.partition = p.partition
  )
  select count(*) into _passed from passed;

  perform event_store.sweep_locks(_view, _claimed, _sweeps_all);

  if _passed > 0 or _sweeps_all or _dispatch.dispatched_at < _now - interval '500 milliseconds' then
    update event_store.dispatches
    set dispatched_at = _now, swept_at = case when _sweeps_all then _now else swept_at end
    where view = (select view from event_store.dispatches where view = v_view for update skip locked);
  end if;
  return _passed;
end
$$;

COMMENT ON FUNCTION event_store.dispatch_events(v_view text, v_window integer, v_max_waiting integer) IS 'Locks the streams that have new events for a rows view and moves its checkpoints past them; returns how many log positions were passed. MR005, MR010, MR012.';

CREATE TABLE event_store.views (
    view text NOT NULL,
    start_at timestamp with time zone NOT NULL,
    lock_timeout_s bigint DEFAULT 300 NOT NULL,
    pooling_delay_s bigint,
    edge_function_url text,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    mode text DEFAULT 'rows'::text NOT NULL,
    deciders text[],
    events text[],
    enabled boolean DEFAULT true NOT NULL,
    max_attempts integer DEFAULT 5 NOT NULL,
    CONSTRAINT views_lock_timeout_is_positive CHECK ((lock_timeout_s > 0)),
    CONSTRAINT views_max_attempts_is_positive CHECK ((max_attempts > 0)),
    CONSTRAINT views_mode_is_known CHECK ((mode = ANY (ARRAY['rows'::text, 'bulk'::text]))),
    CONSTRAINT views_pooling_delay_is_not_negative CHECK ((pooling_delay_s >= 0)),
    CONSTRAINT views_view_is_named CHECK ((view <> ''::text))
);

COMMENT ON TABLE event_store.views IS 'The named consumers of the log. Their progress is in checkpoints and stream_locks and is never touched from here.';

COMMENT ON COLUMN event_store.views.view IS 'The consumer''s name.';

COMMENT ON COLUMN event_store.views.start_at IS 'From when on the view wants events. It counts once, at registration.';

COMMENT ON COLUMN event_store.views.lock_timeout_s IS 'How long a lock or a lease lasts where the caller does not say, in seconds.';

COMMENT ON COLUMN event_store.views.pooling_delay_s IS 'How long to wait between two polls that found nothing, in seconds; null where the client polls by itself.';

COMMENT ON COLUMN event_store.views.edge_function_url IS 'Where each event is sent by HTTP POST; null where the client fetches events.';

COMMENT ON COLUMN event_store.views.created_at IS 'When the view was registered.';

COMMENT ON COLUMN event_store.views.updated_at IS 'When the view''s settings last changed.';

COMMENT ON COLUMN event_store.views.mode IS 'rows: one event per stream at a time (stream_events). bulk: ranges of log partitions (claim_batch).';

COMMENT ON COLUMN event_store.views.deciders IS 'The deciders that the view wants; null for all.';

COMMENT ON COLUMN event_store.views.events IS 'The events that the view wants; null for all.';

COMMENT ON COLUMN event_store.views.enabled IS 'Whether the view is given events.';

COMMENT ON COLUMN event_store.views.max_attempts IS 'After how many failed attempts a stream is parked.';

CREATE FUNCTION event_store.enable_view(v_view text, v_enabled boolean DEFAULT true, v_reason text DEFAULT NULL::text) RETURNS SETOF event_store.views
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
begin
  if v_enabled is null then
    perform event_store.refuse_request('v_enabled is null', 'v_enabled must be true or false.');
  end if;
  perform event_store.known_view(v_view);
  update event_store.views set enabled = v_enabled, updated_at = event_store.clock() where view = v_view and enabled <> v_enabled;
  if found then
    perform event_store.audit('enable_view', v_view, v_reason, jsonb_build_object('enabled', v_enabled));
  end if;
  return query select * from event_store.views where view = v_view;
end
$$;

COMMENT ON FUNCTION event_store.enable_view(v_view text, v_enabled boolean, v_reason text) IS 'Enables or disables a view. MR005 malformed, MR010 unknown view.';

CREATE FUNCTION event_store.event_fault(v_event text, v_event_id uuid, v_event_version bigint, v_decider text, v_decider_id text, v_data jsonb, v_command_id uuid, v_final boolean) RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$
  select case
    when v_decider is null then 'decider is null'
    when v_decider_id is null then 'decider_id is null'
    when v_decider_id = '' then 'decider_id is empty'
    when octet_length(v_decider_id) > 1024 then
      format('decider_id has %s bytes; at most 1024 are allowed', octet_length(v_decider_id))
    when v_event is null then 'event is null'
    when v_event_id is null then 'event_id is null'
    when v_event_version is null then 'event_version is null'
    when v_data is null then 'data is null'
    when v_command_id is null then 'command_id is null'
    when v_final is null then 'final is null'
    when pg_column_size(v_data) > coalesce(nullif(current_setting('event_store.max_data_bytes', true), '')::int, 1048576) then
      format(
        'data has %s bytes; event_store.max_data_bytes allows %s',
        pg_column_size(v_data),
        coalesce(nullif(current_setting('event_store.max_data_bytes', true), ''), '1048576')
      )
  end
$$;

COMMENT ON FUNCTION event_store.event_fault(v_event text, v_event_id uuid, v_event_version bigint, v_decider text, v_decider_id text, v_data jsonb, v_command_id uuid, v_final boolean) IS 'What makes an event unfit to be stored, as a sentence; null if nothing.';

CREATE FUNCTION event_store.extend_lease(v_view text, v_partition integer[], v_lease_token bigint[], v_lease_s bigint DEFAULT NULL::bigint) RETURNS timestamp with time zone
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  _until timestamptz;
begin
  perform event_store.require_leases(v_view, v_partition, v_lease_token);
  _until := event_store.clock() + event_store.lease_duration(event_store.known_view(v_view, 'bulk'), v_lease_s);
  update event_store.checkpoints set leased_until = _until where view = v_view and partition = any (v_partition);
  return _until;
end
$$;

COMMENT ON FUNCTION event_store.extend_lease(v_view text, v_partition integer[], v_lease_token bigint[], v_lease_s bigint) IS 'Extends leases in force and returns until when. MR005, MR010, MR011 lease lost, MR012.';

CREATE FUNCTION event_store.extend_lock(v_view text, v_decider_id text, v_offset bigint, v_seconds integer DEFAULT NULL::integer, v_lease_token bigint DEFAULT NULL::bigint) RETURNS SETOF event_store.locks
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  _now constant timestamptz := event_store.clock();
  _view constant event_store.views := event_store.known_view(v_view, 'rows');
  _decider text;
begin
  if v_seconds <= 0 then
    perform event_store.refuse_request(
      format('v_seconds is %s', v_seconds),
      'v_seconds must be at least 1; null means the view''s lock_timeout_s.'
    );
  end if;
  update event_store.stream_locks k
  set locked_until = _now + make_interval(secs => coalesce(v_seconds, _view.lock_timeout_s)), updated_at = _now
  where k.view = v_view and k.decider_id = v_decider_id and k.in_flight = v_offset and event_store.holds_lock(k, v_offset, v_lease_token)
  returning k.decider into _decider;
  if not found then
    perform event_store.refuse_not_in_flight(v_view, v_decider_id, v_offset, v_lease_token);
  end if;
  return query select * from event_store.lock_of_stream(v_view, v_decider_id, _decider);
end
$$;

COMMENT ON FUNCTION event_store.extend_lock(v_view text, v_decider_id text, v_offset bigint, v_seconds integer, v_lease_token bigint) IS 'Lets the lock of the event in flight last longer. MR005, MR010, MR012, MR016 not in flight.';

CREATE FUNCTION event_store.extend_lock(v_view text, v_decider_id uuid, v_offset bigint, v_seconds integer DEFAULT NULL::integer, v_lease_token bigint DEFAULT NULL::bigint) RETURNS SETOF event_store.locks
    LANGUAGE sql
    AS $$
  select * from event_store.extend_lock(v_view, v_decider_id::text, v_offset, v_seconds, v_lease_token)
$$;

COMMENT ON FUNCTION event_store.extend_lock(v_view text, v_decider_id uuid, v_offset bigint, v_seconds integer, v_lease_token bigint) IS 'extend_lock for UUID identifiers.';

CREATE FUNCTION event_store.fail_event(v_view text, v_decider_id text, v_offset bigint, v_error text, v_lease_token bigint DEFAULT NULL::bigint) RETURNS SETOF event_store.locks
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  _now constant timestamptz := event_store.clock();
  _view constant event_store.views := event_store.known_view(v_view, 'rows');
  _decider text;
begin
  if coalesce(v_error, '') = '' then
    perform event_store.refuse_request('v_error is empty', 'Say in v_error why the event failed.');
  end if;
  update event_store.stream_locks k
  set
    in_flight = null,
    last_error = v_error,
    parked_at = case when k.attempts >= _view.max_attempts then _now end,
    locked_until = case when k.attempts >= _view.max_attempts then 'infinity' else _now + event_store.retry_delay(k.attempts) end,
    updated_at = _now
  where k.view = v_view and k.decider_id = v_decider_id and k.in_flight = v_offset and event_store.holds_lock(k, v_offset, v_lease_token)
  returning k.decider into _decider;
  if not found then
    perform event_store.refuse_not_in_flight(v_view, v_decider_id, v_offset, v_lease_token);
  end if;
  return query select * from event_store.lock_of_stream(v_view, v_decider_id, _decider);
end
$$;

COMMENT ON FUNCTION event_store.fail_event(v_view text, v_decider_id text, v_offset bigint, v_error text, v_lease_token bigint) IS 'Says that the event in flight failed: its stream is retried with backoff, then parked. MR005, MR010, MR012, MR016 not in flight.';

CREATE FUNCTION event_store.fail_event(v_view text, v_decider_id uuid, v_offset bigint, v_error text, v_lease_token bigint DEFAULT NULL::bigint) RETURNS SETOF event_store.locks
    LANGUAGE sql
    AS $$
  select * from event_store.fail_event(v_view, v_decider_id::text, v_offset, v_error, v_lease_token)
$$;

COMMENT ON FUNCTION event_store.fail_event(v_view text, v_decider_id uuid, v_offset bigint, v_error text, v_lease_token bigint) IS 'fail_event for UUID identifiers.';

CREATE FUNCTION event_store.fail_streams(v_view text, v_partition integer, v_lease_token bigint, v_failures jsonb) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $_$
declare
  _view constant event_store.views := event_store.known_view(v_view, 'bulk');
  _now timestamptz;
  _fault text := case
    when v_failures is null or jsonb_typeof(v_failures) <> 'array' or jsonb_array_length(v_failures) = 0 then
      'v_failures must be a JSON array of at least one {decider, decider_id, error, offset}, the last if it is known'
  end;
  _lease event_store.checkpoints;
  _parked bigint;
begin
  if _fault is null then
    select format('%s has no decider, no decider_id, no error or no whole offset, or is named twice', f.failure) into _fault
    from (
      select failure, count(*) over (partition by failure -> 'decider', failure -> 'decider_id') as named
      from jsonb_array_elements(v_failures) failure
    ) f
    where named > 1 or not coalesce(
      jsonb_typeof(failure -> 'decider') = 'string' and jsonb_typeof(failure -> 'decider_id') = 'string' and failure ->> 'error' <> ''
        and coalesce(failure ->> 'offset', '0') ~ '^[0-9]{1,18}$',
      false
    )
    limit 1;
  end if;
  if _fault is not null then
    perform event_store.refuse_request(_fault, 'Nothing was changed.');
  end if;
  perform event_store.require_leases(v_view, array[v_partition], array[v_lease_token]);
  select * into _lease from event_store.checkpoints where view = v_view and partition = v_partition;
  _now := event_store.clock();

  select format('stream (%s, %s)', f.decider, f.decider_id) || coalesce(' at offset ' || f."offset", '') into _fault
  from jsonb_to_recordset(v_failures) f(decider text, decider_id text, "offset" bigint)
  left join lateral event_store.first_delivered(_view, _lease, f.decider, f.decider_id) first("offset") on true
  where first."offset" is null
    or f."offset" < first."offset"
    or f."offset" > first."offset" and not exists (
      select from event_store.events e
      join event_store.event_log l using ("offset")
      where e."offset" = f."offset" and e.decider_id = f.decider_id and e.decider = f.decider
        and l.partition_offset < _lease.leased_to
        and event_store.wants(_view.deciders, _view.events, e.decider, e.event)
    )
  limit 1;
  if _fault is not null then
    raise exception 'event is not in flight'
      using
        errcode = 'MR016',
        detail = format('the lease of log partition %s delivers nothing of %s', v_partition, _fault),
        hint = 'Name streams that read_batch returned for this lease, before commit_batch.';
  end if;

  -- A claim with an older snapshot, which does not see these locks, must fail (40001) and not deliver their events once more.
  update event_store.checkpoints set position = position where view = v_view and partition = v_partition;
  with failed as (
    insert into event_store.stream_locks as k (
      view, decider, decider_id, partition, last_offset, locked_until, attempts, last_error, parked_at, lease_token, created_at,
      updated_at
    )
    select
      v_view, f.decider, f.decider_id, v_partition, coalesce(f."offset", first."offset") - 1,
      case when n.attempts >= _view.max_attempts then 'infinity' else _now + event_store.retry_delay(n.attempts) end,
      n.attempts, f.error, case when n.attempts >= _view.max_attempts then _now end, v_lease_token, _now, _now
    from jsonb_to_recordset(v_failures) f(decider text, decider_id text, error text, "offset" bigint)
    left join event_store.stream_locks known on known.view = v_view and known.decider_id = f.decider_id and known.decider = f.decider
    left join lateral (
      select e."offset"
      from event_store.events e
      where e.decider_id = f.decider_id and e.decider = f.decider and e."offset" > known.last_offset
        and event_store.wants(_view.deciders, _view.events, e.decider, e.event)
      order by e."offset"
      limit 1
    ) tried on true
    -- another event than the one that was tried before has had no attempt
    cross join lateral (
      select case when f."offset" <> tried."offset" then 1 else coalesce(known.attempts, 0) + 1 end
    ) n(attempts)
    cross join lateral event_store.first_delivered(_view, _lease, f.decider, f.decider_id) first("offset")
    on conflict (view, decider_id, decider) do update
    set
      -- a retry goes on after what is acknowledged, a rebuild begins anew
      last_offset = case when _lease.rebuilds then excluded.last_offset else greatest(k.last_offset, excluded.last_offset) end,
      in_flight = null, locked_until = excluded.locked_until, attempts = excluded.attempts, last_error = excluded.last_error,
      parked_at = excluded.parked_at, lease_token = excluded.lease_token, updated_at = _now
    returning k.parked_at
  )
  select count(parked_at) into _parked from failed;
  return _parked;
end
$_$;

COMMENT ON FUNCTION event_store.fail_streams(v_view text, v_partition integer, v_lease_token bigint, v_failures jsonb) IS 'Hands failed streams of a batch over to their locks, to be retried or parked; returns how many are parked. MR005, MR010, MR011 lease lost, MR012, MR016 not delivered.';

CREATE FUNCTION event_store.finish_restore(v_partition integer[], v_earliest_offset bigint[], v_high_water_mark bigint[], v_last_offset bigint, v_lease_token bigint, v_detail jsonb) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  _partitions bigint;
  _events bigint;
  _fault text;
  _table regclass;
begin
  if current_setting('event_store.streams_advanced', true) is distinct from 'on' then
    perform event_store.refuse_request('no restore has begun in this transaction', 'Call begin_restore first.');
  end if;
  select count(*) into _partitions from event_store.partitions;
  select count(*) into _events from event_store.events;

  select string_agg(fault, '; ') into _fault
  from (
    -- the primary key has each position once: so many between first and last are all of them
    select format(
      'log partition %s holds %s events from %s to %s, not %s to %s',
      coalesce(w.partition, l.partition), coalesce(l.events, 0), l.first, l.last + 1, w.earliest_offset, w.high_water_mark
    ) as fault
    from unnest(v_partition, v_earliest_offset, v_high_water_mark) w(partition, earliest_offset, high_water_mark)
    full join (
      select partition, count(*) as events, min(partition_offset) as first, max(partition_offset) as last
      from event_store.event_log
      group by partition
    ) l using (partition)
    where (w.earliest_offset <= w.high_water_mark and w.partition between 0 and _partitions - 1) is not true
      or coalesce(l.events, 0) <> w.high_water_mark - w.earliest_offset
      or l.first <> w.earliest_offset
      or l.last <> w.high_water_mark - 1
    union all
    select format('%s log partitions are stated, of %s', cardinality(v_partition), _partitions)
    where (select count(distinct p) from unnest(v_partition) p) <> _partitions
    union all
    select format('%s events and %s positions of the log', _events, (select count(*) from event_store.event_log))
    where _events <> (select count(*) from event_store.event_log)
    union all
    (
      select format('event %s has no position in log partition %s', e."offset", event_store.stream_partition(e.decider_id, _partitions))
      from event_store.events e
      left join event_store.event_log l using ("offset")
      where l.partition is distinct from event_store.stream_partition(e.decider_id, _partitions)
      limit 3
    )
    union all
    (
      select format('stream (%s, %s) ends at %s, its last event is %s', decider, decider_id, s.last_offset, e.last_offset)
      from (
        select decider, decider_id, max("offset") as last_offset from event_store.events group by decider_id, decider
      ) e
      left join event_store.streams s using (decider_id, decider)
      where s.last_offset is distinct from e.last_offset
      limit 3
    )
    union all
    (
      select format('view %L stands at %s of log partition %s, which ends at %s', c.view, c.position, c.partition, w.high_water_mark)
      from event_store.checkpoints c
      join unnest(v_partition, v_high_water_mark) w(partition, high_water_mark) using (partition)
      where c.position > w.high_water_mark and not exists (
        -- RESET_TO_OFFSET may place a view beyond the log, where it waits
        select from event_store.audit_log a where a.view = c.view and a.operation = 'seek_view'
      )
      limit 3
    )
  ) faults;
  if _fault is not null then
    raise exception 'what was loaded is not whole'
      using errcode = 'MR022', detail = _fault, hint = 'Nothing is stored. Restore another backup.';
  end if;

  update event_store.partitions p
  set high_water_mark = w.high_water_mark, archived_offset = w.earliest_offset, earliest_offset = w.earliest_offset
  from unnest(v_partition, v_earliest_offset, v_high_water_mark) w(partition, earliest_offset, high_water_mark)
  where p.partition = w.partition;
  insert into event_store.dispatches (view) select view from event_store.views;
  perform setval('event_store.events_offset_seq', greatest(1, v_last_offset, (select max(last_offset) from event_store.streams)));
  perform setval(
    'event_store.lease_token_seq',
    greatest(
      1, v_lease_token, (select max(lease_token) from event_store.checkpoints), (select max(lease_token) from event_store.stream_locks)
    )
  );
  perform setval('event_store.audit_log_audit_id_seq', max(audit_id)) from event_store.audit_log having count(*) > 0;
  update event_store.sequencer
  set
    snapshot = event_store.committed_snapshot(),
    cluster = (select system_identifier from pg_control_system()),
    sequenced_at = '-infinity';
  perform event_store.audit('restore', null, null, v_detail);

  perform set_config('event_store.streams_advanced', 'off', true);
  foreach _table in array event_store.restore_tables() loop
    -- not from whose it is: that would take the right from the store's own functions
    if not pg_has_role(session_user, (select relowner from pg_class where oid = _table), 'usage') then
      execute format('revoke insert on %s from %I', _table, session_user);
    end if;
  end loop;
  return _events;
end
$$;

COMMENT ON FUNCTION event_store.finish_restore(v_partition integer[], v_earliest_offset bigint[], v_high_water_mark bigint[], v_last_offset bigint, v_lease_token bigint, v_detail jsonb) IS 'Checks what a restore loaded and opens the store; audited; returns how many events. MR005 none begun, MR022 not whole.';

CREATE TABLE event_store.checkpoints (
    view text NOT NULL,
    partition integer NOT NULL,
    "position" bigint NOT NULL,
    lease_owner text,
    lease_token bigint DEFAULT 0 NOT NULL,
    leased_until timestamp with time zone,
    leased_from bigint,
    leased_to bigint,
    rebuilds boolean DEFAULT false NOT NULL,
    CONSTRAINT checkpoints_lease_is_whole CHECK (((lease_owner IS NULL) = (leased_until IS NULL))),
    CONSTRAINT checkpoints_position_is_not_negative CHECK (("position" >= 0))
)
WITH (fillfactor='50');

COMMENT ON TABLE event_store.checkpoints IS 'A view''s progress in each log partition, and who may move it.';

COMMENT ON COLUMN event_store.checkpoints.view IS 'The view.';

COMMENT ON COLUMN event_store.checkpoints.partition IS 'The log partition.';

COMMENT ON COLUMN event_store.checkpoints."position" IS 'The view''s next partition offset: every event below is acknowledged, or its stream has a lock.';

COMMENT ON COLUMN event_store.checkpoints.lease_owner IS 'Who holds the lease; null for nobody.';

COMMENT ON COLUMN event_store.checkpoints.lease_token IS 'Rises with every lease. A commit states it, which fences out former owners.';

COMMENT ON COLUMN event_store.checkpoints.leased_until IS 'When the lease expires; null where there is none.';

COMMENT ON COLUMN event_store.checkpoints.leased_from IS 'The first partition offset of the leased range; null where there is no lease.';

COMMENT ON COLUMN event_store.checkpoints.leased_to IS 'The partition offset after the leased range: a commit goes no further. Null where there is no lease.';

COMMENT ON COLUMN event_store.checkpoints.rebuilds IS 'Whether the lease is for a rebuild, which reads every stream, locked or not.';

CREATE FUNCTION event_store.first_delivered(v_view event_store.views, v_lease event_store.checkpoints, v_decider text, v_decider_id text) RETURNS bigint
    LANGUAGE plpgsql STABLE
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  _lock event_store.stream_locks;
begin
  if not v_lease.rebuilds then
    select * into _lock from event_store.stream_locks
    where view = v_lease.view and decider_id = v_decider_id and decider = v_decider;
    if found and (_lock.lease_token <> v_lease.lease_token or _lock.in_flight is null) then
      return null;
    end if;
  end if;
  return (
    select e."offset"
    from event_store.events e
    join event_store.event_log l using ("offset")
    where e.decider_id = v_decider_id and e.decider = v_decider
      and e."offset" > coalesce(_lock.last_offset, -1)
      and l.partition = v_lease.partition
      and (_lock.view is not null or l.partition_offset >= v_lease.leased_from)
      and l.partition_offset < v_lease.leased_to
      and event_store.wants(v_view.deciders, v_view.events, e.decider, e.event)
    order by e."offset"
    limit 1
  );
end
$$;

COMMENT ON FUNCTION event_store.first_delivered(v_view event_store.views, v_lease event_store.checkpoints, v_decider text, v_decider_id text) IS 'The offset of the first event that a lease delivers of a stream; null for none.';

CREATE FUNCTION event_store.forbid_change() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  _ignore boolean := tg_op <> 'TRUNCATE' and current_setting('event_store.on_forbidden_change', true) = 'ignore';
begin
  if tg_op = 'DELETE' and tg_table_name = 'events' and current_setting('event_store.purging', true) = 'on' then
    -- the setting alone lets nothing go that is kept
    if tg_level = 'STATEMENT' or exists (
      select from event_store.event_log l
      join event_store.partitions p using (partition)
      where l."offset" = old."offset" and l.partition_offset < p.earliest_offset
    ) then
      return old;
    end if;
  elsif tg_level = 'ROW' then
    return null;
  end if;
  if _ignore then
    raise warning '% of %.% was ignored', lower(tg_op), tg_table_schema, tg_table_name;
    return null;
  end if;
  raise exception '% of %.% is forbidden', lower(tg_op), tg_table_schema, tg_table_name
    using
      errcode = 'MR006',
      detail = 'Events and their registrations are facts: they are never changed or removed.',
      hint = 'Append another event that corrects it.';
end
$$;

COMMENT ON FUNCTION event_store.forbid_change() IS 'Trigger: raises MR006, or warns and skips where event_store.on_forbidden_change is ignore.';

CREATE FUNCTION event_store.get_events(v_decider_id text, v_decider text) RETURNS SETOF event_store.recorded_events
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
  select r.*
  from event_store.recorded_events r
  where r.decider_id = v_decider_id and r.decider = v_decider
  order by r."offset"
$$;

COMMENT ON FUNCTION event_store.get_events(v_decider_id text, v_decider text) IS 'The events of one stream, in order; none for an unknown stream.';

CREATE FUNCTION event_store.get_events(v_decider_id uuid, v_decider text) RETURNS SETOF event_store.recorded_events
    LANGUAGE sql STABLE
    AS $$
  select * from event_store.get_events(v_decider_id::text, v_decider)
$$;

COMMENT ON FUNCTION event_store.get_events(v_decider_id uuid, v_decider text) IS 'get_events for UUID identifiers.';

CREATE FUNCTION event_store.get_last_event(v_decider_id text, v_decider text) RETURNS SETOF event_store.recorded_events
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
  select r.*
  from event_store.streams s
  join event_store.recorded_events r on r."offset" = s.last_offset
  where s.decider_id = v_decider_id and s.decider = v_decider
$$;

COMMENT ON FUNCTION event_store.get_last_event(v_decider_id text, v_decider text) IS 'The last event of one stream; none for an unknown stream.';

CREATE FUNCTION event_store.get_last_event(v_decider_id uuid, v_decider text) RETURNS SETOF event_store.recorded_events
    LANGUAGE sql STABLE
    AS $$
  select * from event_store.get_last_event(v_decider_id::text, v_decider)
$$;

COMMENT ON FUNCTION event_store.get_last_event(v_decider_id uuid, v_decider text) IS 'get_last_event for UUID identifiers.';

CREATE FUNCTION event_store.give_back_event(v_view text, v_decider_id text, v_milliseconds bigint, v_offset bigint, v_lease_token bigint, v_error text) RETURNS SETOF event_store.locks
    LANGUAGE plpgsql
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  _now constant timestamptz := event_store.clock();
  _deciders text[];
begin
  if v_milliseconds is null or v_milliseconds not between 0 and 2147483647000 then
    perform event_store.refuse_request(
      format('v_milliseconds is %s', coalesce(v_milliseconds::text, 'null')),
      'v_milliseconds must be from 0 to 2147483647000.'
    );
  end if;
  perform event_store.known_view(v_view, 'rows');
  -- lock first: what another consumer gets in between is not ours
  _deciders := array(
    select k.decider
    from event_store.stream_locks k
    where k.view = v_view and k.decider_id = v_decider_id
      and (k.in_flight = v_offset or (v_offset is null and k.in_flight is not null))
      and event_store.holds_lock(k, v_offset, v_lease_token)
    order by k.decider
    for update
  );
  if cardinality(_deciders) = 0 then
    perform event_store.refuse_not_in_flight(v_view, v_decider_id, v_offset, v_lease_token);
  elsif cardinality(_deciders) > 1 then
    perform event_store.refuse_request(
      format('decider_id %L has events in flight for deciders %s', v_decider_id, array_to_string(_deciders, ', ')),
      'State v_offset: the offset of the event that is given back.'
    );
  end if;
  update event_store.stream_locks k
  set
    in_flight = null, attempts = greatest(k.attempts - 1, 0), last_error = coalesce(nullif(v_error, ''), k.last_error),
    locked_until = _now + v_milliseconds * interval '1 millisecond', updated_at = _now
  where k.view = v_view and k.decider_id = v_decider_id and k.decider = _deciders[1];
  return query select * from event_store.lock_of_stream(v_view, v_decider_id, _deciders[1]);
end
$$;

COMMENT ON FUNCTION event_store.give_back_event(v_view text, v_decider_id text, v_milliseconds bigint, v_offset bigint, v_lease_token bigint, v_error text) IS 'Gives the event in flight back for a later delivery. MR005, MR010, MR012, MR016 not in flight.';

CREATE FUNCTION event_store.guard_append() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
declare
  _fault text;
begin
  -- All that an event must meet in one statement; which of it was not met is asked only where it moved no stream.
  if new.previous_id is null then
    insert into event_store.streams as s (decider, decider_id, last_event_id, last_offset, version, final)
    select new.decider, new.decider_id, new.event_id, nextval('event_store.events_offset_seq'), 1, new.final
    where event_store.event_fault(
        new.event, new.event_id, new.event_version, new.decider, new.decider_id, new.data, new.command_id, new.final
      ) is null
      and exists (
        select from event_store.deciders d
        where d.decider = new.decider and d.event = new.event and d.event_version = new.event_version
      )
      -- The insert would find this too, but `on conflict do nothing` would then leave the stream's row ahead of its events.
      and not exists (select from event_store.events e where e.event_id = new.event_id)
    on conflict do nothing
    returning s.last_offset into new."offset";
  else
    update event_store.streams s
    set
      last_event_id = new.event_id,
      last_offset = nextval('event_store.events_offset_seq'),
      version = s.version + 1,
      final = new.final
    where s.decider_id = new.decider_id
      and s.decider = new.decider
      and s.last_event_id = new.previous_id
      and not s.final
      and event_store.event_fault(
        new.event, new.event_id, new.event_version, new.decider, new.decider_id, new.data, new.command_id, new.final
      ) is null
      and exists (
        select from event_store.deciders d
        where d.decider = new.decider and d.event = new.event and d.event_version = new.event_version
      )
      and not exists (select from event_store.events e where e.event_id = new.event_id)
    returning s.last_offset into new."offset";
  end if;
  if found then
    new.created_at := event_store.clock();
    new.transaction_id := pg_current_xact_id();
    return new;
  end if;

  _fault := event_store.event_fault(
    new.event, new.event_id, new.event_version, new.decider, new.decider_id, new.data, new.command_id, new.final
  );
  if _fault is not null then
    raise exception 'event is malformed'
      using errcode = 'MR005', detail = _fault, hint = 'Correct the event; nothing was stored.';
  end if;
  if not exists (
    select from event_store.deciders
    where decider = new.decider and event = new.event and event_version = new.event_version
  ) then
    perform event_store.refuse_unregistered_event(new.decider, new.event, new.event_version);
  end if;
  if event_store.is_stored(
    new.event, new.event_id, new.event_version, new.decider, new.decider_id, new.data, new.command_id, new.previous_id, new.final
  ) then
    return null;
  end if;
  perform event_store.refuse_append(new.decider, new.decider_id, new.event_id, new.previous_id);
end
$$;

COMMENT ON FUNCTION event_store.guard_append() IS 'Trigger: checks an event, advances its stream and draws its offset, or raises MR001 to MR005.';

CREATE FUNCTION event_store.has_caught_up(v_view text, v_other text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  _view constant event_store.views := event_store.known_view(v_view);
begin
  perform event_store.known_view(v_other);
  perform from event_store.checkpoints where view = v_other order by partition for share;
  return not exists (
    select from event_store.checkpoints o
    join event_store.checkpoints c on c.view = v_view and c.partition = o.partition
    where o.view = v_other and c.position < o.position
  ) and not exists (
    -- what has a lock here may be acknowledged there: by the checkpoint, or up to where the stream's lock is there
    select from event_store.stream_locks k
    join event_store.checkpoints there on there.view = v_other and there.partition = k.partition
    left join event_store.stream_locks o on o.view = v_other and o.decider_id = k.decider_id and o.decider = k.decider
    where k.view = v_view
      and exists (
        select from event_store.events e
        join event_store.event_log l using ("offset")
        where e.decider_id = k.decider_id and e.decider = k.decider and e."offset" > k.last_offset
          and case when o.view is null then l.partition_offset < there.position else e."offset" <= o.last_offset end
          and event_store.wants(_view.deciders, _view.events, e.decider, e.event)
        offset 0
      )
  ) and not exists (
    -- a lock there may acknowledge events that the checkpoint here has not reached
    select from event_store.stream_locks o
    join event_store.checkpoints here on here.view = v_view and here.partition = o.partition
    where o.view = v_other
      and not exists (
        select from event_store.stream_locks k
        where k.view = v_view and k.decider_id = o.decider_id and k.decider = o.decider
        offset 0
      )
      and exists (
        select from event_store.events e
        join event_store.event_log l using ("offset")
        where e.decider_id = o.decider_id and e.decider = o.decider
          and e."offset" <= o.last_offset and l.partition_offset >= here.position
        offset 0
      )
  );
end
$$;

COMMENT ON FUNCTION event_store.has_caught_up(v_view text, v_other text) IS 'Whether a view stands nowhere behind another one; keeps that one where it is until the transaction ends. MR010 unknown view.';

CREATE FUNCTION event_store.history_key() RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
  select hashtextextended('event_store.history', 0)
$$;

COMMENT ON FUNCTION event_store.history_key() IS 'The key of the advisory lock of the log''s history.';

CREATE FUNCTION event_store.holds_lock(v_lock event_store.stream_locks, v_offset bigint, v_lease_token bigint) RETURNS boolean
    LANGUAGE sql STABLE
    AS $$
  select case
    when v_lease_token is not null then v_lock.lease_token = v_lease_token
    else coalesce(v_lock.lease_pid = pg_backend_pid(), false) or (v_lock.in_flight = v_offset and not v_lock.taken_over) is true
  end
$$;

COMMENT ON FUNCTION event_store.holds_lock(v_lock event_store.stream_locks, v_offset bigint, v_lease_token bigint) IS 'Whether the caller still holds the delivery that it answers for.';

CREATE FUNCTION event_store.is_stored(v_event text, v_event_id uuid, v_event_version bigint, v_decider text, v_decider_id text, v_data jsonb, v_command_id uuid, v_previous_id uuid, v_final boolean) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  _same boolean := (
    select
      (e.event, e.event_version, e.decider, e.decider_id, e.data, e.command_id, e.previous_id, e.final)
      is not distinct from
      (v_event, v_event_version, v_decider, v_decider_id, v_data, v_command_id, v_previous_id, v_final)
    from event_store.events e
    where e.event_id = v_event_id
  );
begin
  if not _same then
    perform event_store.refuse_reused_event_id(v_event_id);
  end if;
  return _same is not null;
end
$$;

COMMENT ON FUNCTION event_store.is_stored(v_event text, v_event_id uuid, v_event_version bigint, v_decider text, v_decider_id text, v_data jsonb, v_command_id uuid, v_previous_id uuid, v_final boolean) IS 'Whether this very event is stored; raises MR003 if its event_id belongs to another one.';

CREATE FUNCTION event_store.known_view(v_view text, v_mode text DEFAULT NULL::text) RETURNS event_store.views
    LANGUAGE plpgsql STABLE
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  _view event_store.views;
begin
  select * into _view from event_store.views where view = v_view;
  if not found then
    raise exception 'view is not registered'
      using
        errcode = 'MR010',
        detail = format('view %L', v_view),
        hint = 'Register it: select * from register_view(view).';
  end if;
  if _view.mode <> v_mode then
    raise exception 'view is consumed in another mode'
      using
        errcode = 'MR012',
        detail = format('view %L is in mode %s; this call is for mode %s', v_view, _view.mode, v_mode),
        hint = 'rows: dispatch_events, stream_events, lease_events, ack_event, ack_events, nack_event, schedule_nack_event, fail_event, extend_lock. bulk: claim_batch, claim_partition, locked_partitions, read_batch, fail_streams, commit_batch, extend_lease, release_batch, pass_over_unwanted.';
  end if;
  return _view;
end
$$;

COMMENT ON FUNCTION event_store.known_view(v_view text, v_mode text) IS 'A view''s registration. MR010 not registered, MR012 consumed in the other mode.';

CREATE FUNCTION event_store.lease_duration(v_view event_store.views, v_lease_s bigint) RETURNS interval
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
begin
  if v_lease_s not between 1 and 2147483647 then
    perform event_store.refuse_request(
      format('v_lease_s is %s', v_lease_s), 'A lease lasts 1 s to 2147483647 s; null means the view''s lock_timeout_s.'
    );
  end if;
  return make_interval(secs => coalesce(v_lease_s, v_view.lock_timeout_s));
end
$$;

COMMENT ON FUNCTION event_store.lease_duration(v_view event_store.views, v_lease_s bigint) IS 'The length of a lease. MR005 for one that is too short or too long.';

CREATE FUNCTION event_store.lease_events(v_view text, v_limit integer DEFAULT 1, v_seconds integer DEFAULT NULL::integer) RETURNS TABLE(event text, event_id uuid, event_version bigint, decider text, decider_id text, data jsonb, command_id uuid, previous_id uuid, final boolean, created_at timestamp with time zone, "offset" bigint, lease_token bigint, attempt integer)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
#variable_conflict use_column
declare
  _delivered constant bigint[] := event_store.lease_streams(v_view, v_limit, v_seconds);
begin
  return query
  select r.*, k.lease_token, k.attempts
  from event_store.recorded_events r
  join event_store.stream_locks k on k.view = v_view and k.decider_id = r.decider_id and k.decider = r.decider
  where r."offset" = any (_delivered)
  order by r."offset";
end
$$;

COMMENT ON FUNCTION event_store.lease_events(v_view text, v_limit integer, v_seconds integer) IS 'stream_events with the token of each lease. MR005 malformed, MR010 unknown view, MR012 other mode.';

CREATE FUNCTION event_store.lease_free_streams(v_view event_store.views, v_limit integer, v_seconds integer) RETURNS bigint[]
    LANGUAGE plpgsql
    SET search_path TO 'event_store', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_sort TO 'off'
    AS $$
declare
  _now timestamptz;
  _free tid[];
  _delivered bigint[];
begin
  -- again where all that were taken were parked: who is given nothing believes that there is nothing; but not without end
  for _turn in 1..100 loop
    _now := event_store.clock(); -- what was just dispatched is free from then on
    -- Lock first, then read in another statement: a snapshot older than the lock would lease what is already acknowledged.
    _free := array(
      select k.ctid
      from event_store.stream_locks k
      cross join lateral (
        select 1
        from event_store.events e
        join event_store.event_log l using ("offset")
        where e.decider_id = k.decider_id and e.decider = k.decider and e."offset" > k.last_offset
          and event_store.wants(v_view.deciders, v_view.events, e.decider, e.event)
        limit 1
      ) pending
      where k.view = v_view.view and k.parked_at is null and k.locked_until <= _now
      order by k.locked_until, k.last_offset
      limit v_limit
      for update of k skip locked
    );

    _now := greatest(_now, event_store.clock());
    with held as materialized (
      -- by nothing but ctid: any index that another condition allows may be planned to be read from end to end
      select k.ctid as version, k.* from event_store.stream_locks k where k.ctid = any (_free)
    ), leased as (
      update event_store.stream_locks k
      set
        in_flight = case when exhausted.yes then null else next_event."offset" end,
        taken_over = k.taken_over or k.in_flight is not null,
        caught_up = false,
        nothing_after = not exists (
          select from event_store.events e
          where e.decider_id = k.decider_id and e.decider = k.decider and e."offset" > next_event."offset"
            and event_store.wants(v_view.deciders, v_view.events, e.decider, e.event)
        ),
        lease_token = nextval('event_store.lease_token_seq'),
        lease_pid = pg_backend_pid(),
        attempts = case when exhausted.yes then k.attempts else k.attempts + 1 end,
        last_error = case
          when exhausted.yes then
            format('The lock ended without an answer, at delivery %s.', k.attempts) || coalesce(' Before that: ' || k.last_error, '')
          else k.last_error
        end,
        parked_at = case when exhausted.yes then _now end,
        locked_until = case
          when exhausted.yes then 'infinity'
          else _now + make_interval(secs => coalesce(v_seconds, v_view.lock_timeout_s))
        end,
        updated_at = _now
      from held
      cross join lateral (select held.in_flight is not null and held.attempts >= v_view.max_attempts) exhausted(yes)
      cross join lateral (
        select e."offset"
        from event_store.events e
        join event_store.event_log l using ("offset")
        where e.decider_id = held.decider_id and e.decider = held.decider and e."offset" > held.last_offset
          and event_store.wants(v_view.deciders, v_view.events, e.decider, e.event)
        order by e."offset"
        limit 1
      ) next_event
      where k.ctid = held.version and held.parked_at is null and held.locked_until <= _now
      returning k.in_flight
    )
    select array_agg(in_flight) into _delivered from leased where in_flight is not null;
    exit when _delivered is not null or cardinality(_free) = 0;
  end loop;
  return _delivered;
end
$$;

COMMENT ON FUNCTION event_store.lease_free_streams(v_view event_store.views, v_limit integer, v_seconds integer) IS 'Leases free streams of a rows view; returns the offsets of their next events, null for none.';

CREATE FUNCTION event_store.lease_owners(v_view text) RETURNS SETOF text
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
  select distinct c.lease_owner
  from event_store.checkpoints c
  where c.view = v_view and c.leased_until > event_store.clock()
  order by 1
$$;

COMMENT ON FUNCTION event_store.lease_owners(v_view text) IS 'The owners of the live leases of a view.';

CREATE FUNCTION event_store.lease_streams(v_view text, v_limit integer, v_seconds integer) RETURNS bigint[]
    LANGUAGE plpgsql
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  _recently constant timestamptz := event_store.clock() - interval '1 second';
  _alone constant boolean := statement_timestamp() = transaction_timestamp();
  _view event_store.views;
  _sequencer_away boolean;
  _dispatcher_away boolean;
  _delivered bigint[];
begin
  if coalesce(v_limit, 0) <= 0 or v_seconds <= 0 then
    perform event_store.refuse_request(
      format('v_limit %s, v_seconds %s', coalesce(v_limit::text, 'null'), coalesce(v_seconds::text, 'null')),
      'v_limit and v_seconds must be at least 1; v_seconds null means the view''s lock_timeout_s.'
    );
  end if;
  _view := event_store.lock_view(v_view, 'rows');
  if _view.enabled is not true then
    return null;
  end if;
  select s.sequenced_at < _recently, d.dispatched_at < _recently
  into _sequencer_away, _dispatcher_away
  from event_store.sequencer s, event_store.dispatches d
  where d.view = v_view;
  if _sequencer_away then
    perform event_store.sequence_events();
  end if;
  if _dispatcher_away then
    perform event_store.dispatch_events(v_view);
  end if;
  _delivered := event_store.lease_free_streams(_view, v_limit, v_seconds);
  if _alone and coalesce(cardinality(_delivered), 0) < v_limit then
    perform event_store.sequence_events();
    if event_store.dispatch_events(v_view) > 0 then
      _delivered := _delivered
        || event_store.lease_free_streams(_view, v_limit - coalesce(cardinality(_delivered), 0), v_seconds);
    end if;
  end if;
  return _delivered;
end
$$;

COMMENT ON FUNCTION event_store.lease_streams(v_view text, v_limit integer, v_seconds integer) IS 'Leases free streams of a rows view; returns the offsets of their next events, null for none. MR005, MR010, MR012.';

CREATE FUNCTION event_store.list_archive_file(v_partition integer, v_from_offset bigint, v_to_offset bigint, v_path text, v_bytes bigint, v_checksum text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $_$
declare
  _partition event_store.partitions;
  _fault text;
begin
  if coalesce(v_path, '') = '' or (v_bytes > 0) is not true or (v_checksum ~ '^[0-9a-f]{64}$') is not true then
    perform event_store.refuse_request(
      format('path %s, %s bytes, checksum %s', v_path, v_bytes, v_checksum), 'State a path, a size, and a SHA-256 in hexadecimal digits.'
    );
  end if;
  -- in the sequencer's order: it moves the marks with its own row in hand, and would wait for us there
  perform from event_store.sequencer for update;
  perform event_store.require_partition(v_partition);
  select * into _partition from event_store.partitions where partition = v_partition for update;

  delete from event_store.archive_files
  where partition = v_partition and from_offset >= v_from_offset and to_offset <= v_to_offset;
  select case
    when (0 <= v_from_offset and v_from_offset < v_to_offset and v_to_offset <= _partition.high_water_mark) is not true
      then format('%s to %s cannot be archived', v_from_offset, v_to_offset)
    when exists (
      select from event_store.archive_files
      where partition = v_partition and from_offset < v_to_offset and to_offset > v_from_offset
    )
      then format('a listed file holds only a part of %s to %s', v_from_offset, v_to_offset)
    when v_from_offset > greatest(
      _partition.earliest_offset,
      (select max(to_offset) from event_store.archive_files where partition = v_partition and to_offset <= v_from_offset)
    )
      then format('events before %s are not archived', v_from_offset)
  end
  into _fault;
  if _fault is not null then
    perform event_store.refuse_offset(_partition, _fault);
  end if;
  insert into event_store.archive_files (partition, from_offset, to_offset, path, events, bytes, checksum, archived_at)
  values (
    v_partition, v_from_offset, v_to_offset, v_path, v_to_offset - v_from_offset, v_bytes, v_checksum, event_store.clock()
  );
  return event_store.mark_archived(v_partition, v_to_offset);
end
$_$;

COMMENT ON FUNCTION event_store.list_archive_file(v_partition integer, v_from_offset bigint, v_to_offset bigint, v_path text, v_bytes bigint, v_checksum text) IS 'Lists a checked file of the archive; returns up to where the log partition is archived. MR005 malformed, MR013 unknown partition, MR015 out of range.';

CREATE FUNCTION event_store.lock_archive(v_partition integer) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
begin
  perform event_store.require_partition(v_partition);
  return pg_try_advisory_lock(hashtextextended('event_store.archive.' || v_partition, 0));
end
$$;

COMMENT ON FUNCTION event_store.lock_archive(v_partition integer) IS 'Makes the session the writer of a log partition''s archive; false where another one is. MR013 unknown partition.';

CREATE FUNCTION event_store.lock_idle_view(v_view text, v_dry_run boolean DEFAULT false) RETURNS event_store.views
    LANGUAGE plpgsql
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  _now timestamptz;
  _view event_store.views;
  _used_by text;
begin
  if not pg_try_advisory_xact_lock(event_store.view_key(v_view)) then
    perform event_store.refuse_view_in_use(v_view, 'a transaction that leased something of it is still open');
  end if;
  _view := event_store.known_view(v_view);
  begin
    perform from event_store.views where view = v_view for update nowait;
    perform from event_store.checkpoints where view = v_view order by partition for update nowait;
    perform from event_store.stream_locks where view = v_view for update nowait;
  exception when lock_not_available then
    perform event_store.refuse_view_in_use(v_view, 'a transaction that commits or acknowledges is still open');
  end;

  _now := event_store.clock();
  select string_agg(distinct format('log partitions are leased by %s', lease_owner), '; ') into _used_by
  from event_store.checkpoints
  where view = v_view and leased_until > _now;
  if _used_by is null then
    select format('%s events are in flight, the last until %s', count(*), max(locked_until)) into _used_by
    from event_store.stream_locks
    where view = v_view and in_flight is not null and locked_until > _now
    having count(*) > 0;
  end if;
  if _used_by is not null then
    perform event_store.refuse_view_in_use(v_view, _used_by);
  end if;

  if v_dry_run then
    return _view;
  end if;
  update event_store.checkpoints
  set lease_owner = null, leased_until = null, leased_from = null, leased_to = null, rebuilds = false
  where view = v_view and lease_owner is not null;
  -- who got an event in rows mode may still answer; what a bulk lease left behind was nobody's
  update event_store.stream_locks set in_flight = null, taken_over = taken_over or _view.mode = 'rows', lease_pid = null
  where view = v_view and in_flight is not null;
  return _view;
end
$$;

COMMENT ON FUNCTION event_store.lock_idle_view(v_view text, v_dry_run boolean) IS 'Takes a view for itself until the transaction ends. MR010, MR017 in use.';

CREATE FUNCTION event_store.lock_of_stream(v_view text, v_decider_id text, v_decider text) RETURNS SETOF event_store.locks
    LANGUAGE sql STABLE
    AS $$
  select l.view, l.decider_id, s.last_offset, l.last_offset, l.locked_until, s.final, l.created_at, l.updated_at
  from event_store.stream_locks l
  join event_store.streams s using (decider_id, decider)
  where l.view = v_view and l.decider_id = v_decider_id and l.decider = v_decider
$$;

COMMENT ON FUNCTION event_store.lock_of_stream(v_view text, v_decider_id text, v_decider text) IS 'The lock of one stream, in fstore-sql''s columns.';

CREATE FUNCTION event_store.lock_view(v_view text, v_mode text) RETURNS event_store.views
    LANGUAGE plpgsql
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
begin
  if not pg_try_advisory_xact_lock_shared(event_store.view_key(v_view)) then
    return null;
  end if;
  return event_store.known_view(v_view, v_mode);
end
$$;

COMMENT ON FUNCTION event_store.lock_view(v_view text, v_mode text) IS 'A view''s registration, kept from changing until the transaction ends; null while somebody changes it. MR010, MR012.';

CREATE FUNCTION event_store.locked_partitions(v_view text, v_partition integer[], v_lease_token bigint[]) RETURNS TABLE(partition integer, retries bigint)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
#variable_conflict use_column
begin
  perform event_store.known_view(v_view, 'bulk');
  return query
  select k.partition, count(*) filter (where k.lease_token = b.lease_token and k.in_flight is not null and k.lease_pid is null)
  from event_store.stream_locks k
  join unnest(v_partition, v_lease_token) b(partition, lease_token) on b.partition = k.partition
  where k.view = v_view
  group by k.partition
  order by k.partition;
end
$$;

COMMENT ON FUNCTION event_store.locked_partitions(v_view text, v_partition integer[], v_lease_token bigint[]) IS 'The leased log partitions where streams have locks, and how many of them the lease tries again. MR010, MR012.';

CREATE FUNCTION event_store.mark_archived(v_partition integer, v_to_offset bigint) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  _partition event_store.partitions;
begin
  if v_to_offset is null then
    perform event_store.refuse_request('v_to_offset is null', 'State a partition offset.');
  end if;
  -- in the sequencer's order: it moves the marks with its own row in hand, and would wait for us there
  perform from event_store.sequencer for update;
  perform event_store.require_partition(v_partition);
  select * into _partition from event_store.partitions where partition = v_partition for update;
  if v_to_offset < 0 or v_to_offset > _partition.high_water_mark then
    perform event_store.refuse_offset(_partition, format('%s cannot be archived', v_to_offset));
  end if;
  update event_store.partitions set archived_offset = v_to_offset where partition = v_partition and archived_offset < v_to_offset;
  return greatest(_partition.archived_offset, v_to_offset);
end
$$;

COMMENT ON FUNCTION event_store.mark_archived(v_partition integer, v_to_offset bigint) IS 'Says up to where a log partition is kept outside, too; returns that offset. MR005 malformed, MR013 unknown partition, MR015 out of range.';

CREATE FUNCTION event_store.nack_event(v_view text, v_decider_id text, v_offset bigint DEFAULT NULL::bigint, v_lease_token bigint DEFAULT NULL::bigint, v_error text DEFAULT NULL::text) RETURNS SETOF event_store.locks
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
  select * from event_store.give_back_event(v_view, v_decider_id, 0, v_offset, v_lease_token, v_error)
$$;

COMMENT ON FUNCTION event_store.nack_event(v_view text, v_decider_id text, v_offset bigint, v_lease_token bigint, v_error text) IS 'Gives back the event in flight. MR005, MR010, MR012, MR016 not in flight.';

CREATE FUNCTION event_store.nack_event(v_view text, v_decider_id uuid, v_offset bigint DEFAULT NULL::bigint, v_lease_token bigint DEFAULT NULL::bigint, v_error text DEFAULT NULL::text) RETURNS SETOF event_store.locks
    LANGUAGE sql
    AS $$
  select * from event_store.nack_event(v_view, v_decider_id::text, v_offset, v_lease_token, v_error)
$$;

COMMENT ON FUNCTION event_store.nack_event(v_view text, v_decider_id uuid, v_offset bigint, v_lease_token bigint, v_error text) IS 'nack_event for UUID identifiers.';

CREATE FUNCTION event_store.offset_for_timestamp(v_partition integer, v_timestamp timestamp with time zone) RETURNS bigint
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
begin
  perform event_store.require_partition(v_partition);
  if v_timestamp is null then
    perform event_store.refuse_request('v_timestamp is null', '-infinity is the earliest offset, infinity the high-water mark.');
  end if;
  return (select found.partition_offset from event_store.offsets_for_timestamp(v_timestamp, array[v_partition]) found);
end
$$;

COMMENT ON FUNCTION event_store.offset_for_timestamp(v_partition integer, v_timestamp timestamp with time zone) IS 'The first kept partition offset appended at or after a time; the high-water mark if none. MR005 malformed, MR013 unknown partition.';

CREATE FUNCTION event_store.offsets_for_timestamp(v_timestamp timestamp with time zone, v_partitions integer[] DEFAULT NULL::integer[]) RETURNS TABLE(partition integer, partition_offset bigint)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    SET plan_cache_mode TO 'force_custom_plan'
    AS $$
#variable_conflict use_column
begin
  if v_timestamp is null or cardinality(v_partitions) = 0 then
    return;
  end if;
  if v_timestamp = '-infinity' then
    return query
    select p.partition, p.earliest_offset
    from event_store.partitions p
    where v_partitions is null or p.partition = any (v_partitions);
    return;
  end if;
  return query
  select p.partition, coalesce(found.partition_offset, p.high_water_mark)
  from event_store.partitions p
  left join (
    select l.partition, min(l.partition_offset) as partition_offset
    from event_store.events e
    join event_store.event_log l using ("offset")
    join event_store.partitions kept on kept.partition = l.partition and l.partition_offset >= kept.earliest_offset
    where e.created_at >= v_timestamp and (v_partitions is null or l.partition = any (v_partitions))
    group by l.partition
  ) found using (partition)
  where v_partitions is null or p.partition = any (v_partitions);
end
$$;

COMMENT ON FUNCTION event_store.offsets_for_timestamp(v_timestamp timestamp with time zone, v_partitions integer[]) IS 'The first kept partition offset appended at or after a time, for several log partitions at once.';

CREATE FUNCTION event_store.partition_info() RETURNS TABLE(partition integer, earliest_offset bigint, archived_offset bigint, high_water_mark bigint, events bigint, bytes bigint, last_activity timestamp with time zone, active_views bigint)
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
  with store as (
    select
      pg_total_relation_size('event_store.events') + pg_total_relation_size('event_store.event_log') as bytes,
      nullif(sum(high_water_mark - earliest_offset), 0) as events
    from event_store.partitions
  )
  select
    p.partition,
    p.earliest_offset,
    p.archived_offset,
    p.high_water_mark,
    p.high_water_mark - p.earliest_offset,
    coalesce(s.bytes * (p.high_water_mark - p.earliest_offset) / s.events, 0)::bigint,
    e.created_at,
    (
      select count(*)
      from event_store.views v
      where exists (
          select from event_store.checkpoints c
          where c.view = v.view and c.partition = p.partition and c.leased_until > (select event_store.clock())
        )
        or exists (
          select from event_store.stream_locks k
          where k.view = v.view and k.partition = p.partition and k.in_flight is not null and k.locked_until > (select event_store.clock())
        )
    )
  from event_store.partitions p
  cross join store s
  left join event_store.event_log l on l.partition = p.partition and l.partition_offset = p.high_water_mark - 1
  left join event_store.events e using ("offset")
  order by p.partition
$$;

COMMENT ON FUNCTION event_store.partition_info() IS 'For every log partition: marks, events, bytes, last activity, active views.';

CREATE FUNCTION event_store.pass_over_unwanted(v_view text) RETURNS integer[]
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
declare
  _view constant event_store.views := event_store.lock_view(v_view, 'bulk');
  _locked int[];
begin
  if _view.view is null then
    return '{}';
  end if;
  -- Lock first. The clock is read after the lock is ours, the marks in the statements after that: an older look could take
  -- a partition for which nothing is left.
  _locked := array(
    select c.partition
    from event_store.checkpoints c
    join event_store.partitions p using (partition)
    where c.view = v_view
      and (
        c.position < p.high_water_mark
        or c.partition in (
          select k.partition from event_store.stream_locks k where k.view = v_view and k.parked_at is null and k.locked_until <= (select event_store.clock())
        )
      )
      and (c.leased_until is null or c.leased_until <= (select event_store.clock()))
    for update of c skip locked
  );
  if _view.deciders is null and _view.events is null then
    return _locked;
  end if;

  update event_store.checkpoints c
  set position = wanted.position
  from (
    select at.partition, coalesce(first.partition_offset, seen.up_to) as position
    from event_store.checkpoints at
    join event_store.partitions p using (partition)
    cross join lateral (select least(p.high_water_mark, at.position + 100000)) seen(up_to)
    left join lateral (
      select l.partition_offset
      from event_store.event_log l
      join event_store.events e using ("offset")
      where l.partition = at.partition
        and l.partition_offset >= at.position
        and l.partition_offset < seen.up_to
        and event_store.wants(_view.deciders, _view.events, e.decider, e.event)
      order by l.partition_offset
      limit 1
    ) first on true
    where at.view = v_view and at.partition = any (_locked)
  ) wanted
  where c.view = v_view and c.partition = wanted.partition and c.position < wanted.position;
  return _locked;
end
$$;

COMMENT ON FUNCTION event_store.pass_over_unwanted(v_view text) IS 'Moves the checkpoints of a bulk view past events that it does not want; returns the log partitions that it locked. MR010, MR012.';

CREATE FUNCTION event_store.poll_views() RETURNS TABLE(view text, mode text, enabled boolean, pooling_delay_s bigint, edge_function_url text, due bigint, consumers bigint)
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
  select
    v.view,
    v.mode,
    v.enabled,
    v.pooling_delay_s,
    v.edge_function_url,
    coalesce(c.ahead, 0)::bigint + (
      select count(*) from (
        select from event_store.stream_locks k
        where k.view = v.view and k.parked_at is null and not k.caught_up and k.locked_until <= (select event_store.clock())
        limit 1000
      ) free
    ),
    coalesce(a.consumers, 0)
  from event_store.views v
  left join (
    select c.view, sum(greatest(p.high_water_mark - c.position, 0)) as ahead
    from event_store.checkpoints c
    join event_store.partitions p using (partition)
    group by c.view
  ) c using (view)
  left join event_store.attached_consumers() a on a.view_hash = hashtext(v.view)
  order by v.view
$$;

COMMENT ON FUNCTION event_store.poll_views() IS 'For every view: is it enabled, how much is due, how many live consumers it has.';

CREATE FUNCTION event_store.purge_events(v_partition integer, v_limit bigint DEFAULT 100000) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
declare
  _offsets bigint[];
  _purged bigint;
begin
  if coalesce(v_limit, 0) <= 0 then
    perform event_store.refuse_request(format('v_limit is %s', coalesce(v_limit::text, 'null')), 'v_limit must be at least 1.');
  end if;
  perform event_store.require_partition(v_partition);
  _offsets := array(
    select l."offset"
    from event_store.event_log l
    where l.partition = v_partition
      and l.partition_offset < (select p.earliest_offset from event_store.partitions p where p.partition = v_partition)
    order by l.partition_offset
    limit v_limit
    for update skip locked -- two purges share the work
  );
  -- the events first: the trigger that forbids it (forbid_change) finds by event_log that they lie below the mark
  perform set_config('event_store.purging', 'on', true);
  delete from event_store.events where "offset" = any (_offsets);
  get diagnostics _purged = row_count;
  perform set_config('event_store.purging', 'off', true);
  delete from event_store.event_log where "offset" = any (_offsets);
  return _purged;
end
$$;

COMMENT ON FUNCTION event_store.purge_events(v_partition integer, v_limit bigint) IS 'Deletes events below the low-water mark of a log partition; returns how many. MR005, MR013.';

CREATE FUNCTION event_store.raise_low_water_mark(v_partition integer, v_offset bigint, v_reason text DEFAULT NULL::text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  _partition event_store.partitions;
  _needed text;
begin
  if v_offset is null then
    perform event_store.refuse_request('v_offset is null', 'State a partition offset.');
  end if;
  perform event_store.require_partition(v_partition);
  -- nobody is placed below the new mark while we look who stands there
  if not pg_try_advisory_xact_lock(event_store.history_key()) then
    _needed := 'an open transaction places a view in the log, rebuilds from it or shortens it';
  end if;
  _partition := event_store.require_partition(v_partition);
  if v_offset < 0 or v_offset > _partition.high_water_mark then
    perform event_store.refuse_offset(_partition, format('%s cannot be the low-water mark', v_offset));
  end if;

  if _needed is null then
    select string_agg(needed.reason, '; ') into _needed
    from (
      select format('it is archived up to %s', _partition.archived_offset) as reason
      where _partition.archived_offset < v_offset
      union all
      select format('view %L stands at %s', c.view, c.position)
      from event_store.checkpoints c
      where c.partition = v_partition and c.position < v_offset
      union all
      select format('%s reads it from %s for view %L', c.lease_owner, c.leased_from, c.view)
      from event_store.checkpoints c
      -- past its time, too: such a lease can still be committed (require_leases)
      where c.partition = v_partition and c.leased_from < v_offset and c.lease_owner is not null
      union all
      select format('stream (%s, %s) has a lock in view %L', k.decider, k.decider_id, k.view)
      from event_store.stream_locks k
      cross join lateral (
        select from event_store.events e
        join event_store.event_log l using ("offset")
        where e.decider_id = k.decider_id and e.decider = k.decider and e."offset" > k.last_offset
          and l.partition_offset < v_offset
        limit 1
      ) held
      where k.partition = v_partition
      limit 10
    ) needed;
  end if;
  if _needed is not null then
    raise exception 'history is still needed'
      using
        errcode = 'MR020',
        detail = format('log partition %s below %s: %s', v_partition, v_offset, _needed),
        hint = 'Archive it, let the views consume it, settle their dead letters, give back leases of dead owners (release_owner), or remove views that are not used (unregister_view). What an open transaction does ends with it.';
  end if;

  -- in the sequencer's order: it moves the marks with its own row in hand, and would wait for us there
  perform from event_store.sequencer for update;
  update event_store.partitions set earliest_offset = v_offset where partition = v_partition and earliest_offset < v_offset;
  if found then
    perform event_store.audit(
      'raise_low_water_mark', null, v_reason,
      jsonb_build_object('partition', v_partition, 'from_offset', _partition.earliest_offset, 'to_offset', v_offset)
    );
  end if;
  return greatest(_partition.earliest_offset, v_offset);
end
$$;

COMMENT ON FUNCTION event_store.raise_low_water_mark(v_partition integer, v_offset bigint, v_reason text) IS 'Gives up the archived history of a log partition below an offset; audited. MR005 malformed, MR013 unknown partition, MR015 out of range, MR020 still needed.';

CREATE FUNCTION event_store.read_batch(v_view text, v_partition integer, v_lease_token bigint) RETURNS TABLE(partition_offset bigint, event text, event_id uuid, event_version bigint, decider text, decider_id text, data jsonb, command_id uuid, previous_id uuid, final boolean, created_at timestamp with time zone, "offset" bigint)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
#variable_conflict use_column
declare
  _view constant event_store.views := event_store.known_view(v_view, 'bulk');
  _lease event_store.checkpoints;
begin
  select * into _lease from event_store.checkpoints c
  where c.view = v_view and c.partition = v_partition and c.lease_token = v_lease_token and c.lease_owner is not null;
  if not found then
    perform event_store.refuse_lost_lease(v_view, array[v_partition], array[v_lease_token]);
  end if;
  if not _lease.rebuilds then
    return query
    select l.partition_offset, r.*
    from event_store.stream_locks k
    join event_store.recorded_events r
      on r.decider_id = k.decider_id and r.decider = k.decider and r."offset" > k.last_offset and r."offset" <= k.in_flight
    join event_store.event_log l on l."offset" = r."offset"
    where k.view = v_view
      and k.partition = v_partition
      and k.lease_token = v_lease_token
      and k.in_flight is not null and k.lease_pid is null
      and l.partition_offset < _lease.leased_to
      and event_store.wants(_view.deciders, _view.events, r.decider, r.event)
    order by r."offset";
  end if;
  return query
  select l.partition_offset, r.*
  from event_store.event_log l
  join event_store.recorded_events r using ("offset")
  where l.partition = v_partition
    and l.partition_offset >= _lease.leased_from
    and l.partition_offset < _lease.leased_to
    and event_store.wants(_view.deciders, _view.events, r.decider, r.event)
    and (
      _lease.rebuilds
      or not exists (
        select from event_store.stream_locks k
        where k.view = v_view and k.decider_id = r.decider_id and k.decider = r.decider
      )
    )
  order by l.partition_offset;
end
$$;

COMMENT ON FUNCTION event_store.read_batch(v_view text, v_partition integer, v_lease_token bigint) IS 'The events that a lease of one log partition delivers. MR010, MR011 lease lost, MR012.';

CREATE FUNCTION event_store.read_log(v_partition integer, v_from_offset bigint, v_limit bigint DEFAULT 1000) RETURNS TABLE(partition_offset bigint, event text, event_id uuid, event_version bigint, decider text, decider_id text, data jsonb, command_id uuid, previous_id uuid, final boolean, created_at timestamp with time zone, "offset" bigint)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
#variable_conflict use_column
declare
  _to_offset bigint;
begin
  if coalesce(v_limit, 0) <= 0 then
    perform event_store.refuse_request(format('v_limit is %s', coalesce(v_limit::text, 'null')), 'v_limit must be at least 1.');
  end if;
  perform event_store.validate_offset_range(v_partition, v_from_offset, v_from_offset);
  _to_offset := v_from_offset + least(v_limit, (event_store.require_partition(v_partition)).high_water_mark - v_from_offset);
  return query
  select l.partition_offset, r.*
  from event_store.event_log l
  join event_store.recorded_events r using ("offset")
  where l.partition = v_partition and l.partition_offset >= v_from_offset and l.partition_offset < _to_offset
  order by l.partition_offset;
end
$$;

COMMENT ON FUNCTION event_store.read_log(v_partition integer, v_from_offset bigint, v_limit bigint) IS 'Reads a log partition from an offset on. MR005 malformed, MR013 unknown partition, MR015 out of range.';

CREATE FUNCTION event_store.rebase_sequencer() RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  -- before the update: what commits while that runs is new to the next call
  _committed constant pg_snapshot := event_store.committed_snapshot();
begin
  perform set_config('event_store.rebasing', 'on', true);
  update event_store.events e
  set transaction_id = case when l."offset" is null then pg_current_xact_id() else '3'::xid8 end
  from event_store.events x
  left join event_store.event_log l using ("offset")
  where e."offset" = x."offset"
    and (l."offset" is null or e.transaction_id >= pg_snapshot_xmin(_committed));
  perform set_config('event_store.rebasing', 'off', true);
  update event_store.sequencer
  set snapshot = _committed, cluster = (select system_identifier from pg_control_system());
  raise notice 'event_store was restored from another cluster; its transaction ids were re-based';
end
$$;

COMMENT ON FUNCTION event_store.rebase_sequencer() IS 'Re-bases stored transaction ids after a restore into another cluster.';

CREATE FUNCTION event_store.refuse_append(v_decider text, v_decider_id text, v_event_id uuid, v_previous_id uuid) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  _stream event_store.streams;
begin
  select * into _stream from event_store.streams where decider_id = v_decider_id and decider = v_decider;
  if _stream.final then
    raise exception 'last event for this decider stream is already final. the stream is closed, you can not append events to it.'
      using
        errcode = 'MR002',
        detail = format('stream (%s, %s) was closed by event_id %s at version %s', v_decider, v_decider_id, _stream.last_event_id, _stream.version),
        hint = 'Append to another stream.';
  end if;
  raise exception using
    errcode = 'MR001',
    message = case
      when v_previous_id is null then 'previous_id can only be null for the first decider event'
      when exists (
        select from event_store.events
        where event_id = v_previous_id and decider_id = v_decider_id and decider = v_decider
      ) then 'previous_id must be the last event of the decider stream'
      else 'previous_id must be in the same decider'
    end,
    detail = format(
      'event_id %s states previous_id %s; stream (%s, %s) has %s',
      v_event_id,
      coalesce(v_previous_id::text, 'null'),
      v_decider,
      v_decider_id,
      case
        when _stream.last_event_id is null then 'no event'
        else format('last event_id %s at version %s', _stream.last_event_id, _stream.version)
      end
    ),
    hint = 'Read the stream again, decide again, and append with its last event_id as previous_id; stream_head has it, also where events were purged.';
end
$$;

COMMENT ON FUNCTION event_store.refuse_append(v_decider text, v_decider_id text, v_event_id uuid, v_previous_id uuid) IS 'Raises MR001 (conflict) or MR002 (closed stream) with the stream''s state in DETAIL.';

CREATE FUNCTION event_store.refuse_lost_lease(v_view text, v_partition integer[], v_lease_token bigint[]) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
begin
  raise exception 'lease is lost'
    using
      errcode = 'MR011',
      detail = (
        select string_agg(
          format(
            'partition %s: token %s stated, token %s in force%s',
            b.partition, b.token, coalesce(c.lease_token::text, 'none'), coalesce(' for ' || c.lease_owner, ', no lease')
          ),
          '; ' order by b.partition
        )
        from unnest(v_partition, v_lease_token) b(partition, token)
        left join event_store.checkpoints c on c.view = v_view and c.partition = b.partition
        where c.lease_token is distinct from b.token or c.lease_owner is null
      ),
      hint = 'Drop this batch and claim again; its events are delivered again.';
end
$$;

COMMENT ON FUNCTION event_store.refuse_lost_lease(v_view text, v_partition integer[], v_lease_token bigint[]) IS 'Raises MR011 and says which leases are lost.';

CREATE FUNCTION event_store.refuse_not_in_flight(v_view text, v_decider_id text, v_offset bigint, v_lease_token bigint) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
begin
  raise exception 'event is not in flight'
    using
      errcode = 'MR016',
      detail = format(
        'view %L, decider_id %L, offset %s%s; %s',
        v_view,
        v_decider_id,
        coalesce(v_offset::text, 'any'),
        coalesce(', lease token ' || v_lease_token, ''),
        coalesce(
          (
            select string_agg(
              format(
                '%s: %s, acknowledged up to %s',
                k.decider,
                case
                  when k.parked_at is not null then 'parked'
                  when k.in_flight is null then 'nothing in flight'
                  else format(
                    'in flight %s%s',
                    k.in_flight,
                    case when not event_store.holds_lock(k, v_offset, v_lease_token) then ' for somebody else' else '' end
                  )
                end,
                k.last_offset
              ),
              '; ' order by k.decider
            )
            from event_store.stream_locks k
            where k.view = v_view and k.decider_id = v_decider_id
          ),
          'nothing of this stream is waiting'
        )
      ),
      hint = 'Answer for each event once, before its lock ends, with its offset. After a late answer the event is delivered again: fetch it with stream_events.';
end
$$;

COMMENT ON FUNCTION event_store.refuse_not_in_flight(v_view text, v_decider_id text, v_offset bigint, v_lease_token bigint) IS 'Raises MR016 and says what is in flight.';

CREATE TABLE event_store.partitions (
    partition integer NOT NULL,
    high_water_mark bigint DEFAULT 0 NOT NULL,
    earliest_offset bigint DEFAULT 0 NOT NULL,
    archived_offset bigint DEFAULT 0 NOT NULL,
    CONSTRAINT partitions_keep_what_is_not_archived CHECK (((earliest_offset <= archived_offset) AND (archived_offset <= high_water_mark))),
    CONSTRAINT partitions_marks_in_order CHECK (((0 <= earliest_offset) AND (earliest_offset <= high_water_mark)))
)
WITH (fillfactor='50');

COMMENT ON TABLE event_store.partitions IS 'The log partitions: hash buckets of decider_id. Their number is fixed when the database is made.';

COMMENT ON COLUMN event_store.partitions.partition IS 'The log partition, from 0.';

COMMENT ON COLUMN event_store.partitions.high_water_mark IS 'The partition offset that the next event will get.';

COMMENT ON COLUMN event_store.partitions.earliest_offset IS 'The first partition offset that is still kept.';

COMMENT ON COLUMN event_store.partitions.archived_offset IS 'Every event below this partition offset is kept outside, too: only these may be deleted.';

CREATE FUNCTION event_store.refuse_offset(v_partition event_store.partitions, v_fault text) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
begin
  raise exception 'offset is out of range'
    using
      errcode = 'MR015',
      detail = format(
        'log partition %s: %s; earliest offset %s, high-water mark %s',
        v_partition.partition, v_fault, v_partition.earliest_offset, v_partition.high_water_mark
      ),
      hint = 'available_offset_range() returns what each log partition holds.';
end
$$;

COMMENT ON FUNCTION event_store.refuse_offset(v_partition event_store.partitions, v_fault text) IS 'Raises MR015 and says what the log partition holds.';

CREATE FUNCTION event_store.refuse_read_model(v_view text) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  _model text := (select model from read_models.declarations where view = v_view limit 1);
begin
  if _model is not null then
    raise exception 'view belongs to a read model'
      using
        errcode = 'MR019',
        detail = format('view %L is where read model %s stands', v_view, _model),
        hint = format('Materialize its log partitions to rebuild them, or run: millrace reset %s', _model);
  end if;
end
$$;

COMMENT ON FUNCTION event_store.refuse_read_model(v_view text) IS 'Raises MR019 where the view is that of a read model.';

CREATE FUNCTION event_store.refuse_request(v_fault text, v_hint text) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
begin
  raise exception 'request is malformed' using errcode = 'MR005', detail = v_fault, hint = v_hint;
end
$$;

COMMENT ON FUNCTION event_store.refuse_request(v_fault text, v_hint text) IS 'Raises MR005 with what is wrong and what is allowed.';

CREATE FUNCTION event_store.refuse_reused_event_id(v_event_id uuid) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
begin
  raise exception 'event_id is already stored with other content'
    using
      errcode = 'MR003',
      detail = (
        select format('event_id %s is event %s of stream (%s, %s) at offset %s', event_id, event, decider, decider_id, "offset")
        from event_store.events
        where event_id = v_event_id
      ),
      hint = 'A retry must repeat the event unchanged; another event needs an event_id of its own.';
end
$$;

COMMENT ON FUNCTION event_store.refuse_reused_event_id(v_event_id uuid) IS 'Raises MR003 and names the stored event.';

CREATE FUNCTION event_store.refuse_unregistered_event(v_decider text, v_event text, v_event_version bigint) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
begin
  raise exception 'event is not registered for its decider'
    using
      errcode = 'MR004',
      detail = format(
        'decider %s has no event %s version %s; it has: %s',
        v_decider,
        v_event,
        v_event_version,
        coalesce(
          (
            select string_agg(format('%s version %s', event, event_version), ', ' order by event, event_version)
            from (
              select event, event_version from event_store.deciders
              where decider = v_decider order by event, event_version limit 20
            ) known
          ),
          'none'
        )
      ),
      hint = 'Register it: select * from register_decider_event(decider, event, description, version).';
end
$$;

COMMENT ON FUNCTION event_store.refuse_unregistered_event(v_decider text, v_event text, v_event_version bigint) IS 'Raises MR004 and lists the events that the decider has (at most 20).';

CREATE FUNCTION event_store.refuse_view_in_use(v_view text, v_used_by text) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
begin
  raise exception 'view is in use'
    using
      errcode = 'MR017',
      detail = format('view %L: %s', v_view, v_used_by),
      hint = 'Stop its consumers (enable_view(view, false) gives them nothing more), wait until their leases end, and try again.';
end
$$;

COMMENT ON FUNCTION event_store.refuse_view_in_use(v_view text, v_used_by text) IS 'Raises MR017 and says who uses the view.';

CREATE TABLE event_store.deciders (
    decider text NOT NULL,
    event text NOT NULL,
    event_version bigint DEFAULT 1 NOT NULL,
    description text NOT NULL
);

COMMENT ON TABLE event_store.deciders IS 'The kinds of event that each kind of entity (decider) may append. Rows are never changed or removed.';

COMMENT ON COLUMN event_store.deciders.decider IS 'A kind of entity that emits events, such as order.';

COMMENT ON COLUMN event_store.deciders.event IS 'The name of an event that this decider may append.';

COMMENT ON COLUMN event_store.deciders.event_version IS 'The version of the event''s schema.';

COMMENT ON COLUMN event_store.deciders.description IS 'What the event says, for people.';

CREATE FUNCTION event_store.register_decider_event(v_decider text, v_event text, v_description text, v_event_version bigint DEFAULT 1) RETURNS SETOF event_store.deciders
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
begin
  if coalesce(v_decider, '') = '' or coalesce(v_event, '') = '' or v_description is null or v_event_version is null then
    perform event_store.refuse_request(
      format('decider %L, event %L, description %L, version %L', v_decider, v_event, v_description, v_event_version),
      'Decider and event must be named; description and version must not be null.'
    );
  end if;
  insert into event_store.deciders (decider, event, event_version, description)
  values (v_decider, v_event, v_event_version, v_description)
  on conflict do nothing;
  return query
  select * from event_store.deciders d
  where d.decider = v_decider and d.event = v_event and d.event_version = v_event_version;
end
$$;

COMMENT ON FUNCTION event_store.register_decider_event(v_decider text, v_event text, v_description text, v_event_version bigint) IS 'Registers an event that a decider may append; idempotent. MR005 malformed.';

CREATE FUNCTION event_store.register_view(v_view text, v_start_at timestamp with time zone DEFAULT NULL::timestamp with time zone, v_lock_timeout_s bigint DEFAULT 300, v_pooling_delay_s bigint DEFAULT NULL::bigint, v_edge_function_url text DEFAULT NULL::text, v_mode text DEFAULT NULL::text, v_deciders text[] DEFAULT NULL::text[], v_events text[] DEFAULT NULL::text[], v_max_attempts integer DEFAULT 5) RETURNS SETOF event_store.views
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  _now constant timestamptz := event_store.clock();
  _begun constant pg_snapshot := pg_current_snapshot();
  _view event_store.views;
  _fault text := case
    when coalesce(v_view, '') = '' then 'the view has no name'
    when length(v_view) > 200 then 'a name has at most 200 characters'
    -- what an interval and a wait of a client's can hold
    when coalesce(v_lock_timeout_s, 0) not between 1 and 2147483647 then 'v_lock_timeout_s must be from 1 to 2147483647'
    when v_pooling_delay_s not between 0 and 2147483647 then 'v_pooling_delay_s must be from 0 to 2147483647, or null'
    when v_mode not in ('rows', 'bulk') then 'v_mode must be rows or bulk, or null'
    when cardinality(v_deciders) = 0 or array_position(v_deciders, null) is not null then
      'v_deciders must name deciders, or be null for all'
    when cardinality(v_events) = 0 or array_position(v_events, null) is not null then
      'v_events must name events, or be null for all'
    when coalesce(v_max_attempts, 0) <= 0 then 'v_max_attempts must be at least 1'
  end;
begin
  if _fault is not null then
    perform event_store.refuse_request(format('view %L: %s', v_view, _fault), 'Correct it; nothing was registered or changed.');
  end if;

  insert into event_store.views (
    view, start_at, lock_timeout_s, pooling_delay_s, edge_function_url, created_at, updated_at, mode, deciders, events,
    max_attempts
  )
  values (
    v_view, coalesce(v_start_at, _now), v_lock_timeout_s, v_pooling_delay_s, v_edge_function_url, _now, _now,
    coalesce(v_mode, 'rows'), v_deciders, v_events, v_max_attempts
  )
  on conflict (view) do nothing
  returning * into _view;

  if found then
    if _view.mode = 'bulk' and v_edge_function_url is not null then
      perform event_store.refuse_request(
        format('view %L: only a rows view is pushed to an edge_function_url', v_view), 'Correct it; nothing was registered or changed.'
      );
    end if;
    insert into event_store.dispatches (view) values (v_view);
    -- the log keeps what we are placed before; shared, so that it waits for nobody but a call that is as short
    perform pg_advisory_xact_lock_shared(event_store.history_key());
    -- History is searched before the sequencer's row is ours, which nobody else can have then. What gets its offset from now on is
    -- passed only if it is from before the start and was committed when this call began: an append in flight is delivered.
    insert into event_store.checkpoints (view, partition, position)
    select v_view, found.partition, found.partition_offset
    from event_store.offsets_for_timestamp(_view.start_at) found;
    perform event_store.sequence_events();
    update event_store.checkpoints c
    set position = coalesce(
      (
        select min(l.partition_offset)
        from event_store.event_log l
        join event_store.events e using ("offset")
        where l.partition = c.partition and l.partition_offset >= c.position
          and (e.created_at >= _view.start_at or not pg_visible_in_snapshot(e.transaction_id, _begun))
      ),
      (select p.high_water_mark from event_store.partitions p where p.partition = c.partition)
    )
    from event_store.event_log first
    join event_store.events e using ("offset")
    where c.view = v_view
      and first.partition = c.partition and first.partition_offset = c.position
      and e.created_at < _view.start_at and pg_visible_in_snapshot(e.transaction_id, _begun);
    return next _view;
    return;
  end if;

  -- not `for update`: that would wait for an open transaction that dispatched, as its new locks refer to the view
  select * into _view from event_store.views where view = v_view for no key update;
  if v_mode <> _view.mode then
    perform event_store.refuse_read_model(v_view);
    perform event_store.lock_idle_view(v_view);
  end if;
  if coalesce(v_mode, _view.mode) = 'bulk' and v_edge_function_url is not null then
    perform event_store.refuse_request(
      format('view %L: only a rows view is pushed to an edge_function_url', v_view), 'Correct it; nothing was registered or changed.'
    );
  end if;
  if (_view.deciders, _view.events) is distinct from (v_deciders, v_events) then
    -- the next dispatch looks for locks that hold nothing any more which the view wants; if one is under way, that in a minute
    update event_store.dispatches set swept_at = '-infinity'
    where view = (select view from event_store.dispatches where view = v_view for update skip locked);
  end if;
  update event_store.views
  set
    lock_timeout_s = v_lock_timeout_s,
    pooling_delay_s = v_pooling_delay_s,
    edge_function_url = v_edge_function_url,
    mode = coalesce(v_mode, mode),
    deciders = v_deciders,
    events = v_events,
    max_attempts = v_max_attempts,
    updated_at = _now
  where view = v_view
    and (lock_timeout_s, pooling_delay_s, edge_function_url, mode, deciders, events, max_attempts) is distinct from (
      v_lock_timeout_s, v_pooling_delay_s, v_edge_function_url, coalesce(v_mode, mode), v_deciders, v_events, v_max_attempts
    );
  return query select * from event_store.views where view = v_view;
end
$$;

COMMENT ON FUNCTION event_store.register_view(v_view text, v_start_at timestamp with time zone, v_lock_timeout_s bigint, v_pooling_delay_s bigint, v_edge_function_url text, v_mode text, v_deciders text[], v_events text[], v_max_attempts integer) IS 'Registers a view or changes its settings, never its progress. MR005 malformed, MR017 another mode while it is in use, MR019 another mode for a read model.';

CREATE FUNCTION event_store.release_batch(v_view text, v_partition integer[], v_lease_token bigint[]) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  _released bigint;
begin
  perform event_store.known_view(v_view, 'bulk');
  with released as (
    update event_store.checkpoints c
    set lease_owner = null, leased_until = null, leased_from = null, leased_to = null, rebuilds = false
    from unnest(v_partition, v_lease_token) b(partition, token)
    where c.view = v_view and c.partition = b.partition and c.lease_token = b.token and c.lease_owner is not null
    returning 1
  )
  select count(*) into _released from released;
  return _released;
end
$$;

COMMENT ON FUNCTION event_store.release_batch(v_view text, v_partition integer[], v_lease_token bigint[]) IS 'Gives leases back; returns how many were still held. MR010, MR012.';

CREATE FUNCTION event_store.release_owner(v_owner text) RETURNS bigint
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
  with released as (
    update event_store.checkpoints
    set lease_owner = null, leased_until = null, leased_from = null, leased_to = null, rebuilds = false
    where lease_owner = v_owner
    returning 1
  )
  select count(*) from released
$$;

COMMENT ON FUNCTION event_store.release_owner(v_owner text) IS 'Gives back every lease of one owner; returns how many.';

CREATE FUNCTION event_store.require_finished_restore() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
begin
  if (select sequenced_at from event_store.sequencer) = 'infinity' then
    perform event_store.refuse_request(
      'a restore has begun and is not finished', 'Call finish_restore in the transaction of begin_restore, or roll it back.'
    );
  end if;
  return null;
end
$$;

COMMENT ON FUNCTION event_store.require_finished_restore() IS 'Trigger: refuses to commit a restore that is not finished. MR005.';

CREATE FUNCTION event_store.require_leases(v_view text, v_partition integer[], v_lease_token bigint[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
begin
  if v_partition is null or cardinality(v_partition) = 0 or cardinality(v_partition) <> coalesce(cardinality(v_lease_token), 0)
    -- one partition with two offsets would take either
    or (select count(*) <> count(distinct partition) from unnest(v_partition) b(partition))
  then
    perform event_store.refuse_request(
      'v_partition and v_lease_token must have the same, positive length, and name each partition once',
      'Pass on what claim_batch returned.'
    );
  end if;
  perform event_store.known_view(v_view, 'bulk');
  perform from event_store.checkpoints
  where view = v_view and partition = any (v_partition)
  order by partition
  for update;
  if exists (
    select from unnest(v_partition, v_lease_token) b(partition, token)
    left join event_store.checkpoints c on c.view = v_view and c.partition = b.partition
    where c.lease_token is distinct from b.token or c.lease_owner is null
  ) then
    perform event_store.refuse_lost_lease(v_view, v_partition, v_lease_token);
  end if;
end
$$;

COMMENT ON FUNCTION event_store.require_leases(v_view text, v_partition integer[], v_lease_token bigint[]) IS 'Locks the checkpoints of a batch; MR011 unless every token is that of a lease in force.';

CREATE FUNCTION event_store.require_partition(v_partition integer) RETURNS event_store.partitions
    LANGUAGE plpgsql STABLE
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  _partition event_store.partitions;
begin
  select * into _partition from event_store.partitions where partition = v_partition;
  if not found then
    raise exception 'log partition does not exist'
      using
        errcode = 'MR013',
        detail = format('partition %s', coalesce(v_partition::text, 'null')),
        hint = (select format('Log partitions are 0 to %s.', max(partition)) from event_store.partitions);
  end if;
  return _partition;
end
$$;

COMMENT ON FUNCTION event_store.require_partition(v_partition integer) IS 'The marks of a log partition. MR013 unknown partition.';

CREATE FUNCTION event_store.restore_tables() RETURNS regclass[]
    LANGUAGE sql STABLE
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
  select array[
    'event_store.deciders', 'event_store.streams', 'event_store.events', 'event_store.event_log', 'event_store.views',
    'event_store.checkpoints', 'event_store.stream_locks', 'event_store.audit_log'
  ]::regclass[]
$$;

COMMENT ON FUNCTION event_store.restore_tables() IS 'The tables that a restore loads.';

CREATE FUNCTION event_store.retry_dead_letters(v_view text, v_decider text DEFAULT NULL::text, v_decider_id text DEFAULT NULL::text, v_reason text DEFAULT NULL::text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  _now constant timestamptz := event_store.clock();
  _retried bigint;
begin
  if v_decider is null and v_decider_id is not null then
    perform event_store.refuse_request('v_decider_id without v_decider', 'A stream is a decider and a decider_id.');
  end if;
  perform event_store.known_view(v_view);
  update event_store.stream_locks k
  set parked_at = null, attempts = 0, locked_until = _now, updated_at = _now
  where k.view = v_view
    and k.parked_at is not null
    and (v_decider is null or k.decider = v_decider)
    and (v_decider_id is null or k.decider_id = v_decider_id);
  get diagnostics _retried = row_count;
  if _retried > 0 then
    perform event_store.audit(
      'retry_dead_letters', v_view, v_reason,
      jsonb_build_object('decider', v_decider, 'decider_id', v_decider_id, 'streams', _retried)
    );
  end if;
  return _retried;
end
$$;

COMMENT ON FUNCTION event_store.retry_dead_letters(v_view text, v_decider text, v_decider_id text, v_reason text) IS 'Lets parked streams be tried again; returns how many. MR005, MR010.';

CREATE FUNCTION event_store.retry_delay(v_attempts integer) RETURNS interval
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
  select least(interval '5 seconds' * 2 ^ least(v_attempts - 1, 20), interval '1 hour')
$$;

COMMENT ON FUNCTION event_store.retry_delay(v_attempts integer) IS 'The wait after so many failed attempts: exponential, 5 s to 1 h.';

CREATE FUNCTION event_store.schedule_nack_event(v_view text, v_decider_id text, v_milliseconds bigint, v_offset bigint DEFAULT NULL::bigint, v_lease_token bigint DEFAULT NULL::bigint, v_error text DEFAULT NULL::text) RETURNS SETOF event_store.locks
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
  select * from event_store.give_back_event(v_view, v_decider_id, v_milliseconds, v_offset, v_lease_token, v_error)
$$;

COMMENT ON FUNCTION event_store.schedule_nack_event(v_view text, v_decider_id text, v_milliseconds bigint, v_offset bigint, v_lease_token bigint, v_error text) IS 'Gives back the event in flight for a later delivery. MR005, MR010, MR012, MR016 not in flight.';

CREATE FUNCTION event_store.schedule_nack_event(v_view text, v_decider_id uuid, v_milliseconds bigint, v_offset bigint DEFAULT NULL::bigint, v_lease_token bigint DEFAULT NULL::bigint, v_error text DEFAULT NULL::text) RETURNS SETOF event_store.locks
    LANGUAGE sql
    AS $$
  select * from event_store.schedule_nack_event(v_view, v_decider_id::text, v_milliseconds, v_offset, v_lease_token, v_error)
$$;

COMMENT ON FUNCTION event_store.schedule_nack_event(v_view text, v_decider_id uuid, v_milliseconds bigint, v_offset bigint, v_lease_token bigint, v_error text) IS 'schedule_nack_event for UUID identifiers.';

CREATE FUNCTION event_store.seek_view(v_view text, v_kind text, v_offset bigint DEFAULT NULL::bigint, v_timestamp timestamp with time zone DEFAULT NULL::timestamp with time zone, v_partition integer DEFAULT NULL::integer, v_dry_run boolean DEFAULT false, v_reason text DEFAULT NULL::text) RETURNS TABLE(partition integer, from_position bigint, to_position bigint, earliest_offset bigint, high_water_mark bigint, locks_removed bigint, dead_letters_removed bigint, note text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
#variable_conflict use_column
declare
  _fault text := case
    when v_kind is null or v_kind not in (
      'EXACT_OFFSET', 'RESET_TO_OFFSET', 'RESET_TO_EARLIEST', 'RESET_TO_LATEST', 'RESUME_OR_EARLIEST', 'RESUME_OR_LATEST', 'EXACT_TIMESTAMP'
    ) then format('v_kind is %L', v_kind)
    when v_kind in ('EXACT_OFFSET', 'RESET_TO_OFFSET') <> (v_offset is not null) then
      format('%s with v_offset %s', v_kind, coalesce(v_offset::text, 'null'))
    when (v_kind = 'EXACT_TIMESTAMP') <> (v_timestamp is not null) then
      format('%s with v_timestamp %s', v_kind, coalesce(v_timestamp::text, 'null'))
    when v_offset is not null and v_partition is null then format('%s without v_partition', v_kind)
    when v_dry_run is null then 'v_dry_run is null'
  end;
  _row record;
  _stays boolean;
begin
  if _fault is not null then
    perform event_store.refuse_request(
      _fault,
      'EXACT_OFFSET and RESET_TO_OFFSET take v_offset and v_partition, EXACT_TIMESTAMP takes v_timestamp; RESET_TO_EARLIEST, RESET_TO_LATEST, RESUME_OR_EARLIEST and RESUME_OR_LATEST take neither.'
    );
  end if;
  if v_partition is not null then
    perform event_store.require_partition(v_partition);
  end if;
  -- What lasts is said first; and again when nobody can change it any more.
  perform event_store.known_view(v_view);
  perform event_store.refuse_read_model(v_view);
  perform event_store.lock_idle_view(v_view, v_dry_run);
  perform event_store.refuse_read_model(v_view);
  -- the log keeps what we are placed before
  perform pg_advisory_xact_lock_shared(event_store.history_key());
  perform event_store.sequence_events();

  for _row in
    select c.partition, c.position, p as marks, at_time.partition_offset as at_time
    from event_store.checkpoints c
    join event_store.partitions p using (partition)
    left join event_store.offsets_for_timestamp(
      v_timestamp, case when v_partition is not null then array[v_partition] end
    ) at_time using (partition)
    where c.view = v_view and (v_partition is null or c.partition = v_partition)
    order by c.partition
  loop
    partition := _row.partition;
    from_position := _row.position;
    earliest_offset := (_row.marks).earliest_offset;
    high_water_mark := (_row.marks).high_water_mark;
    to_position := case v_kind
      when 'RESET_TO_EARLIEST' then earliest_offset
      when 'RESET_TO_LATEST' then high_water_mark
      when 'RESUME_OR_EARLIEST' then case when from_position < earliest_offset then earliest_offset else from_position end
      when 'RESUME_OR_LATEST' then case when from_position < earliest_offset then high_water_mark else from_position end
      when 'EXACT_TIMESTAMP' then _row.at_time
      else v_offset
    end;
    if to_position < 0 then
      perform event_store.refuse_offset(_row.marks, format('%s is negative', to_position));
    elsif to_position < earliest_offset then
      perform event_store.refuse_offset(_row.marks, format('%s lies below the earliest offset', to_position));
    elsif v_kind = 'EXACT_OFFSET' and to_position >= high_water_mark then
      perform event_store.refuse_offset(_row.marks, format('there is no event at %s yet', to_position));
    end if;
    note := case
      when from_position < earliest_offset then format('the position %s lies below the earliest offset', from_position)
      when to_position > high_water_mark then 'waits beyond the high-water mark'
    end;
    _stays := v_kind in ('RESUME_OR_EARLIEST', 'RESUME_OR_LATEST') and to_position = from_position;
    select count(*), count(k.parked_at) into locks_removed, dead_letters_removed
    from event_store.stream_locks k
    where k.view = v_view and k.partition = _row.partition and not _stays;
    if not v_dry_run then
      delete from event_store.stream_locks k
      where k.view = v_view and k.partition = _row.partition and not _stays;
      -- also where it stands there already: with the locks removed, who works with an older snapshot must fail (40001)
      update event_store.checkpoints c set position = to_position where c.view = v_view and c.partition = _row.partition;
      perform event_store.audit(
        'seek_view', v_view, v_reason,
        jsonb_build_object(
          'kind', v_kind, 'offset', v_offset, 'timestamp', v_timestamp, 'partition', _row.partition, 'from_position', from_position,
          'to_position', to_position, 'locks_removed', locks_removed, 'dead_letters_removed', dead_letters_removed
        )
      );
    end if;
    return next;
  end loop;
end
$$;

COMMENT ON FUNCTION event_store.seek_view(v_view text, v_kind text, v_offset bigint, v_timestamp timestamp with time zone, v_partition integer, v_dry_run boolean, v_reason text) IS 'Moves a view to another position; audited, with a dry run. MR005 malformed, MR010 unknown view, MR013 unknown partition, MR015 out of range, MR017 in use, MR019 belongs to a read model.';

CREATE FUNCTION event_store.sequence_events() RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_hashjoin TO 'on'
    AS $$
declare
  _now constant timestamptz := event_store.clock();
  _last event_store.sequencer;
  _committed pg_snapshot;
  _partitions bigint;
  _sequenced bigint;
begin
  select * into _last from event_store.sequencer for update skip locked;
  -- a restore has begun: finish_restore says what is sequenced
  if not found or _last.sequenced_at = 'infinity' then
    return 0;
  end if;

  -- Transaction ids alone do not tell: the new cluster may have overtaken the old one's before the first call.
  if _last.cluster <> (select system_identifier from pg_control_system())
    or pg_snapshot_xmax(_last.snapshot) > pg_snapshot_xmax(pg_current_snapshot())
    or exists (
      select from (select transaction_id from event_store.events order by transaction_id desc limit 1) newest
      where newest.transaction_id >= pg_snapshot_xmax(pg_current_snapshot())
        and newest.transaction_id is distinct from pg_current_xact_id_if_assigned()
    )
  then
    perform event_store.rebase_sequencer();
    return 0;
  end if;

  -- after the lock, so that it is not older than the one our predecessor stored
  _committed := event_store.committed_snapshot();
  _partitions := (select count(*) from event_store.partitions);

  with fresh as materialized (
    select event_store.stream_partition(e.decider_id, _partitions) as partition, e."offset"
    from event_store.events e
    where e.transaction_id >= pg_snapshot_xmax(_last.snapshot)
      and e.transaction_id < pg_snapshot_xmax(_committed)
      and pg_visible_in_snapshot(e.transaction_id, _committed)
    union all
    select event_store.stream_partition(e.decider_id, _partitions), e."offset"
    from event_store.events e
    where e.transaction_id = any (array(select pg_snapshot_xip(_last.snapshot)))
      and pg_visible_in_snapshot(e.transaction_id, _committed)
  ), raised as (
    update event_store.partitions p
    set high_water_mark = p.high_water_mark + f.events
    from (select partition, count(*) as events from fresh group by partition) f
    where p.partition = f.partition
    returning p.partition, p.high_water_mark - f.events as first_offset
  )
  insert into event_store.event_log (partition, partition_offset, "offset")
  select
    f.partition,
    r.first_offset + row_number() over (partition by f.partition order by f."offset") - 1,
    f."offset"
  from fresh f
  join raised r using (partition);
  get diagnostics _sequenced = row_count;

  if _sequenced > 0 then
    update event_store.sequencer set snapshot = _committed, sequenced_at = _now;
  elsif _last.sequenced_at < _now - interval '500 milliseconds' then
    update event_store.sequencer set sequenced_at = _now;
  end if;
  return _sequenced;
end
$$;

COMMENT ON FUNCTION event_store.sequence_events() IS 'Gives every committed event its dense partition offset; returns how many. 0 at once where another session is at it.';

CREATE FUNCTION event_store.sequenced_streams() RETURNS TABLE(decider text, decider_id text, last_event_id uuid, last_offset bigint, version bigint, final boolean)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
  with late as materialized (
    -- as sequence_events finds them: without a look at those that have theirs
    select distinct on (e.decider_id, e.decider)
      e.decider, e.decider_id, e."offset", e.previous_id, count(*) over (partition by e.decider_id, e.decider) as events
    from event_store.events e
    cross join event_store.sequencer q
    where (
        e.transaction_id >= pg_snapshot_xmax(q.snapshot)
        or e.transaction_id = any (array(select pg_snapshot_xip(q.snapshot)))
      )
      and not exists (select from event_store.event_log l where l."offset" = e."offset")
    order by e.decider_id, e.decider, e."offset"
  )
  select
    s.decider,
    s.decider_id,
    coalesce(l.previous_id, s.last_event_id),
    case
      when l."offset" is null then s.last_offset
      -- where the event before it was purged, the greatest offset that it can have had
      else coalesce(
        (
          select max(e."offset") from event_store.events e
          where e.decider_id = s.decider_id and e.decider = s.decider and e."offset" < l."offset"
        ),
        l."offset" - 1
      )
    end,
    s.version - coalesce(l.events, 0),
    s.final and l."offset" is null
  from event_store.streams s
  left join late l on l.decider_id = s.decider_id and l.decider = s.decider
  where l."offset" is null or l.previous_id is not null
$$;

COMMENT ON FUNCTION event_store.sequenced_streams() IS 'The heads of all streams at the high-water marks of the log.';

CREATE FUNCTION event_store.stream_events(v_view_name text, v_limit integer DEFAULT 1, v_seconds integer DEFAULT NULL::integer) RETURNS SETOF event_store.recorded_events
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
declare
  _delivered constant bigint[] := event_store.lease_streams(v_view_name, v_limit, v_seconds);
begin
  return query
  select r.* from event_store.recorded_events r where r."offset" = any (_delivered) order by r."offset";
end
$$;

COMMENT ON FUNCTION event_store.stream_events(v_view_name text, v_limit integer, v_seconds integer) IS 'Leases free streams of a rows view and returns the next event of each. MR005 malformed, MR010 unknown view, MR012 other mode.';

CREATE FUNCTION event_store.stream_head(v_decider_id text, v_decider text) RETURNS TABLE(last_event_id uuid, last_offset bigint, version bigint, final boolean)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
  select s.last_event_id, s.last_offset, s.version, s.final
  from event_store.streams s
  where s.decider_id = v_decider_id and s.decider = v_decider
$$;

COMMENT ON FUNCTION event_store.stream_head(v_decider_id text, v_decider text) IS 'Where one stream stands, also after its events were deleted; none for a stream without events.';

CREATE FUNCTION event_store.stream_head(v_decider_id uuid, v_decider text) RETURNS TABLE(last_event_id uuid, last_offset bigint, version bigint, final boolean)
    LANGUAGE sql STABLE
    AS $$
  select * from event_store.stream_head(v_decider_id::text, v_decider)
$$;

COMMENT ON FUNCTION event_store.stream_head(v_decider_id uuid, v_decider text) IS 'stream_head for UUID identifiers.';

CREATE FUNCTION event_store.stream_partition(v_decider_id text, v_partitions bigint) RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
  -- % keeps the dividend's sign
  select (((hashtextextended(v_decider_id collate "C", 0) % v_partitions) + v_partitions) % v_partitions)::int
$$;

COMMENT ON FUNCTION event_store.stream_partition(v_decider_id text, v_partitions bigint) IS 'The log partition, from 0, of a decider_id in a database with so many log partitions.';

CREATE FUNCTION event_store.sweep_locks(v_view event_store.views, v_partitions integer[], v_all boolean) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'event_store', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
declare
  _now constant timestamptz := event_store.clock();
  _candidates tid[];
  _removed bigint;
begin
  -- Lock first, look in another statement. Two queries, for each has its own index.
  if v_all then
    _candidates := array(
      select k.ctid from event_store.stream_locks k
      where k.view = v_view.view and k.partition = any (v_partitions) and k.parked_at is null and k.locked_until <= _now
      limit 20000
      for update skip locked
    );
  else
    _candidates := array(
      select k.ctid from event_store.stream_locks k
      where k.view = v_view.view and k.partition = any (v_partitions) and k.caught_up and k.parked_at is null and k.locked_until <= _now
      limit 20000
      for update skip locked
    );
  end if;
  if cardinality(_candidates) = 0 then
    return 0;
  end if;
  update event_store.stream_locks k
  set caught_up = false
  where k.ctid = any (_candidates)
    and k.caught_up
    and exists (
      select from event_store.events e
      where e.decider_id = k.decider_id and e.decider = k.decider and e."offset" > k.last_offset
        and event_store.wants(v_view.deciders, v_view.events, e.decider, e.event)
    );
  delete from event_store.stream_locks k
  using event_store.checkpoints c
  where k.ctid = any (_candidates)
    and c.view = k.view and c.partition = k.partition
    and not exists (
      select from event_store.events e
      where e.decider_id = k.decider_id and e.decider = k.decider and e."offset" > k.last_offset
        and event_store.wants(v_view.deciders, v_view.events, e.decider, e.event)
    )
    and coalesce(
      (
        -- a bulk view acknowledges up to an offset that may be no event of the stream
        select l.partition_offset
        from event_store.events e
        join event_store.event_log l using ("offset")
        where e.decider_id = k.decider_id and e.decider = k.decider and e."offset" <= k.last_offset
        order by e."offset" desc
        limit 1
      ) < c.position,
      true
    );
  get diagnostics _removed = row_count;
  return _removed;
end
$$;

COMMENT ON FUNCTION event_store.sweep_locks(v_view event_store.views, v_partitions integer[], v_all boolean) IS 'Removes the locks of log partitions that have nothing left; returns how many.';

CREATE FUNCTION event_store.unregister_view(v_view text, v_reason text DEFAULT NULL::text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  _view event_store.views;
begin
  -- What lasts is said first; and again when nobody can change it any more.
  perform event_store.known_view(v_view);
  perform event_store.refuse_read_model(v_view);
  _view := event_store.lock_idle_view(v_view);
  perform event_store.refuse_read_model(v_view);
  perform event_store.audit(
    'unregister_view',
    v_view,
    v_reason,
    jsonb_build_object(
      'view', to_jsonb(_view),
      'positions', (select jsonb_object_agg(partition, position) from event_store.checkpoints where view = v_view),
      'locks', (select count(*) from event_store.stream_locks where view = v_view)
    )
  );
  delete from event_store.views where view = v_view;
end
$$;

COMMENT ON FUNCTION event_store.unregister_view(v_view text, v_reason text) IS 'Removes a view with all its state. MR010 unknown view, MR017 in use, MR019 belongs to a read model.';

CREATE FUNCTION event_store.validate_offset_range(v_partition integer, v_from_offset bigint, v_to_offset bigint) RETURNS void
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  _partition constant event_store.partitions := event_store.require_partition(v_partition);
  _fault text := case
    when v_from_offset < 0 then format('%s is negative', v_from_offset)
    when v_from_offset < _partition.earliest_offset then format('%s lies below the earliest offset', v_from_offset)
    when v_to_offset < v_from_offset then format('the range ends at %s before it begins at %s', v_to_offset, v_from_offset)
    when v_to_offset > _partition.high_water_mark then format('%s lies beyond the high-water mark', v_to_offset)
  end;
begin
  if v_from_offset is null or v_to_offset is null then
    perform event_store.refuse_request('an end of the range is null', 'A range has two ends.');
  end if;
  if _fault is not null then
    perform event_store.refuse_offset(_partition, _fault);
  end if;
end
$$;

COMMENT ON FUNCTION event_store.validate_offset_range(v_partition integer, v_from_offset bigint, v_to_offset bigint) IS 'Refuses a range that the log does not hold. MR005 malformed, MR013 unknown partition, MR015 out of range.';

CREATE FUNCTION event_store.view_info(v_view text DEFAULT NULL::text) RETURNS TABLE(view text, mode text, enabled boolean, lag bigint, in_flight bigint, waiting bigint, dead_letters bigint, leased_partitions bigint, consumers bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
#variable_conflict use_column
declare
  _now constant timestamptz := event_store.clock();
begin
  if v_view is not null then
    perform event_store.known_view(v_view);
  end if;
  return query
  select
    v.view, v.mode, v.enabled, coalesce(c.lag, 0)::bigint, coalesce(k.in_flight, 0), coalesce(k.waiting, 0),
    coalesce(k.dead_letters, 0), coalesce(c.leased, 0), coalesce(a.consumers, 0)
  from event_store.views v
  left join (
    select
      c.view,
      sum(greatest(p.high_water_mark - c.position, 0)) as lag,
      count(*) filter (where c.leased_until > _now) as leased
    from event_store.checkpoints c
    join event_store.partitions p using (partition)
    where v_view is null or c.view = v_view
    group by c.view
  ) c using (view)
  left join (
    select
      k.view,
      count(*) filter (where k.in_flight is not null and k.locked_until > _now) as in_flight,
      count(*) filter (where k.parked_at is null and not k.caught_up and (k.in_flight is null or k.locked_until <= _now)) as waiting,
      count(k.parked_at) as dead_letters
    from event_store.stream_locks k
    where v_view is null or k.view = v_view
    group by k.view
  ) k using (view)
  left join event_store.attached_consumers() a on a.view_hash = hashtext(v.view)
  where v_view is null or v.view = v_view
  order by v.view;
end
$$;

COMMENT ON FUNCTION event_store.view_info(v_view text) IS 'For every view, or one: lag, streams in flight, waiting and parked, leases, consumers. MR010 unknown view.';

CREATE FUNCTION event_store.view_key(v_view text) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
  select hashtextextended('event_store.views ' || v_view, 0)
$$;

COMMENT ON FUNCTION event_store.view_key(v_view text) IS 'The key of the advisory lock of a view.';

CREATE FUNCTION event_store.view_lag(v_view text) RETURNS TABLE(partition integer, "position" bigint, high_water_mark bigint, lag bigint, pending bigint, pending_age_s double precision)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
#variable_conflict use_column
declare
  _now constant timestamptz := event_store.clock();
  _view constant event_store.views := event_store.known_view(v_view);
begin
  return query
  select
    c.partition,
    c.position,
    p.high_water_mark,
    greatest(p.high_water_mark - c.position, 0),
    coalesce(ahead.events, 0) + coalesce(held.events, 0),
    extract(epoch from _now - least(ahead.oldest, held.oldest))::double precision
  from event_store.checkpoints c
  join event_store.partitions p using (partition)
  left join lateral (
    select count(*) as events, min(e.created_at) as oldest
    from event_store.event_log l
    join event_store.events e using ("offset")
    where l.partition = c.partition
      and l.partition_offset >= c.position
      and event_store.wants(_view.deciders, _view.events, e.decider, e.event)
      and c.position < p.high_water_mark
  ) ahead on true
  left join lateral (
    select count(*) as events, min(e.created_at) as oldest
    from event_store.stream_locks k
    join event_store.events e on e.decider_id = k.decider_id and e.decider = k.decider and e."offset" > k.last_offset
    join event_store.event_log l using ("offset")
    where k.view = c.view
      and k.partition = c.partition
      and l.partition = c.partition
      and l.partition_offset < c.position
      and event_store.wants(_view.deciders, _view.events, e.decider, e.event)
  ) held on true
  where c.view = v_view
  order by c.partition;
end
$$;

COMMENT ON FUNCTION event_store.view_lag(v_view text) IS 'A view''s distance to the high-water mark per log partition, in events and in seconds. MR010 unknown view.';

CREATE FUNCTION event_store.wants(v_deciders text[], v_events text[], v_decider text, v_event text) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
  select (v_deciders is null or v_decider = any (v_deciders)) and (v_events is null or v_event = any (v_events))
$$;

COMMENT ON FUNCTION event_store.wants(v_deciders text[], v_events text[], v_decider text, v_event text) IS 'Whether a view with these filters wants an event; null filters want all.';

CREATE TABLE event_store.archive (
    singleton boolean DEFAULT true NOT NULL,
    archive_id uuid DEFAULT gen_random_uuid() NOT NULL,
    CONSTRAINT archive_has_one_row CHECK (singleton)
);

COMMENT ON TABLE event_store.archive IS 'Which archive is this store''s: another store''s files are neither read nor removed.';

COMMENT ON COLUMN event_store.archive.singleton IS 'Always true: there is one row.';

COMMENT ON COLUMN event_store.archive.archive_id IS 'What the root of the archive, and a backup, must bear to be taken for this store''s.';

CREATE TABLE event_store.archive_files (
    partition integer NOT NULL,
    from_offset bigint NOT NULL,
    to_offset bigint NOT NULL,
    path text NOT NULL,
    events bigint NOT NULL,
    bytes bigint NOT NULL,
    checksum text NOT NULL,
    archived_at timestamp with time zone NOT NULL,
    CONSTRAINT archive_files_hold_every_event CHECK ((events = (to_offset - from_offset))),
    CONSTRAINT archive_files_hold_something CHECK (((0 <= from_offset) AND (from_offset < to_offset) AND (bytes > 0)))
);

COMMENT ON TABLE event_store.archive_files IS 'The files of the archive: written, read back and checked. A file that is not listed is never read.';

COMMENT ON COLUMN event_store.archive_files.partition IS 'The log partition.';

COMMENT ON COLUMN event_store.archive_files.from_offset IS 'The first partition offset in the file.';

COMMENT ON COLUMN event_store.archive_files.to_offset IS 'The partition offset after the last one in the file.';

COMMENT ON COLUMN event_store.archive_files.path IS 'Where the file is, below the root of the archive.';

COMMENT ON COLUMN event_store.archive_files.events IS 'How many events the file holds.';

COMMENT ON COLUMN event_store.archive_files.bytes IS 'The size of the file.';

COMMENT ON COLUMN event_store.archive_files.checksum IS 'The SHA-256 of the file, in hexadecimal digits.';

COMMENT ON COLUMN event_store.archive_files.archived_at IS 'When the file was listed.';

CREATE TABLE event_store.audit_log (
    audit_id bigint NOT NULL,
    done_at timestamp with time zone NOT NULL,
    done_by text NOT NULL,
    operation text NOT NULL,
    view text,
    reason text,
    detail jsonb NOT NULL,
    CONSTRAINT audit_log_operation_is_known CHECK ((operation = ANY (ARRAY['seek_view'::text, 'discard_dead_letter'::text, 'retry_dead_letters'::text, 'enable_view'::text, 'unregister_view'::text, 'raise_low_water_mark'::text, 'restore'::text])))
);

COMMENT ON TABLE event_store.audit_log IS 'What operators did to views and to history, who and why.';

COMMENT ON COLUMN event_store.audit_log.audit_id IS 'Rises with time.';

COMMENT ON COLUMN event_store.audit_log.done_at IS 'When, by the store''s clock.';

COMMENT ON COLUMN event_store.audit_log.done_by IS 'The database user who called.';

COMMENT ON COLUMN event_store.audit_log.operation IS 'The function that was called.';

COMMENT ON COLUMN event_store.audit_log.view IS 'The view it was done to; null where it was none.';

COMMENT ON COLUMN event_store.audit_log.reason IS 'Why, in the operator''s words.';

COMMENT ON COLUMN event_store.audit_log.detail IS 'What exactly was changed, and from what.';

ALTER TABLE event_store.audit_log ALTER COLUMN audit_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME event_store.audit_log_audit_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

COMMENT ON SEQUENCE event_store.audit_log_audit_id_seq IS 'Numbers the entries of audit_log.';

CREATE TABLE event_store.dispatches (
    view text NOT NULL,
    dispatched_at timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    swept_at timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL
)
WITH (fillfactor='50');

COMMENT ON TABLE event_store.dispatches IS 'When the new events of each view were last dispatched (rows mode).';

COMMENT ON COLUMN event_store.dispatches.view IS 'The view.';

COMMENT ON COLUMN event_store.dispatches.dispatched_at IS 'When somebody last dispatched its new events, to half a second.';

COMMENT ON COLUMN event_store.dispatches.swept_at IS 'When somebody last looked at all of its locks for those with nothing left.';

CREATE TABLE event_store.event_log (
    partition integer NOT NULL,
    partition_offset bigint NOT NULL,
    "offset" bigint NOT NULL
);

COMMENT ON TABLE event_store.event_log IS 'The order of events within each log partition: dense, from 0, in the order of commits.';

COMMENT ON COLUMN event_store.event_log.partition IS 'The log partition.';

COMMENT ON COLUMN event_store.event_log.partition_offset IS 'The position within the log partition, without gaps.';

COMMENT ON COLUMN event_store.event_log."offset" IS 'The event at this position.';

CREATE SEQUENCE event_store.events_offset_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;

ALTER SEQUENCE event_store.events_offset_seq OWNED BY event_store.events."offset";

COMMENT ON SEQUENCE event_store.events_offset_seq IS 'Gives events."offset". It leaves gaps on rollback, so it never is a cursor.';

CREATE SEQUENCE event_store.lease_token_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;

COMMENT ON SEQUENCE event_store.lease_token_seq IS 'Gives the tokens of leases and locks. It outlives every view, so a view that is registered again never repeats a token.';

CREATE TABLE event_store.migrations (
    version integer NOT NULL,
    name text NOT NULL,
    applied_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

COMMENT ON TABLE event_store.migrations IS 'Which migrations are applied. Version 0 stands for the functions and privileges; its name is their hash.';

COMMENT ON COLUMN event_store.migrations.version IS 'The migration''s number.';

COMMENT ON COLUMN event_store.migrations.name IS 'The migration''s file, or the hash of the functions and privileges for version 0.';

COMMENT ON COLUMN event_store.migrations.applied_at IS 'When it was applied.';

CREATE TABLE event_store.sequencer (
    singleton boolean DEFAULT true NOT NULL,
    snapshot pg_snapshot NOT NULL,
    cluster bigint NOT NULL,
    sequenced_at timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    CONSTRAINT sequencer_has_one_row CHECK (singleton)
)
WITH (fillfactor='50');

COMMENT ON TABLE event_store.sequencer IS 'Up to where events are sequenced. The lock of its one row makes the sequencer the only writer of the log''s order.';

COMMENT ON COLUMN event_store.sequencer.singleton IS 'Always true: there is one row.';

COMMENT ON COLUMN event_store.sequencer.snapshot IS 'Every event of a transaction visible in this snapshot has its partition offset.';

COMMENT ON COLUMN event_store.sequencer.cluster IS 'The system identifier of the cluster whose transaction ids these are: a restore into another one shows by it.';

COMMENT ON COLUMN event_store.sequencer.sequenced_at IS 'When somebody last looked for new events, to half a second.';

CREATE SEQUENCE read_models.batch_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;

COMMENT ON SEQUENCE read_models.batch_seq IS 'Numbers the batches whose rows are staged.';

CREATE TABLE read_models.declarations (
    model text NOT NULL,
    view text NOT NULL,
    fingerprint text NOT NULL,
    declared_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    version integer NOT NULL,
    serves boolean NOT NULL,
    unbuilt integer[] NOT NULL
);

COMMENT ON TABLE read_models.declarations IS 'The declarations that each model''s tables were made from: of the version that serves, and of one that is built beside it.';

COMMENT ON COLUMN read_models.declarations.model IS 'The read model.';

COMMENT ON COLUMN read_models.declarations.view IS 'The event store''s view that this version is consumed as.';

COMMENT ON COLUMN read_models.declarations.fingerprint IS 'The hash of the declaration; another declaration must not write these tables.';

COMMENT ON COLUMN read_models.declarations.declared_at IS 'When the tables were made.';

COMMENT ON COLUMN read_models.declarations.version IS 'Counts the declarations of a model, from 1; the tables of later ones have it in their names.';

COMMENT ON COLUMN read_models.declarations.serves IS 'Whether the model''s SQL view shows this version.';

COMMENT ON COLUMN read_models.declarations.unbuilt IS 'The log partitions whose first events are only in the archive, and that no rebuild has read yet.';

INSERT INTO event_store.archive VALUES (true, '0221527b-a66d-4022-85ca-9a63a930ca2e');

INSERT INTO event_store.checkpoints VALUES ('invoices', 0, 7, NULL, 0, NULL, NULL, NULL, false);
INSERT INTO event_store.checkpoints VALUES ('invoices', 1, 7, NULL, 0, NULL, NULL, NULL, false);
INSERT INTO event_store.checkpoints VALUES ('invoices', 2, 4, NULL, 0, NULL, NULL, NULL, false);
INSERT INTO event_store.checkpoints VALUES ('invoices', 3, 12, NULL, 0, NULL, NULL, NULL, false);
INSERT INTO event_store.checkpoints VALUES ('orders', 0, 7, NULL, 4, NULL, NULL, NULL, false);
INSERT INTO event_store.checkpoints VALUES ('orders', 3, 5, NULL, 5, NULL, NULL, NULL, false);
INSERT INTO event_store.checkpoints VALUES ('orders', 2, 0, 'drain-1', 7, '2076-02-12 12:00:00+00', 0, 2, false);
INSERT INTO event_store.checkpoints VALUES ('orders', 1, 7, NULL, 6, NULL, NULL, NULL, false);

INSERT INTO event_store.deciders VALUES ('order', 'placed', 1, 'order was placed');
INSERT INTO event_store.deciders VALUES ('order', 'paid', 1, 'order was paid');
INSERT INTO event_store.deciders VALUES ('order', 'shipped', 1, 'order was shipped');
INSERT INTO event_store.deciders VALUES ('invoice', 'placed', 1, 'invoice was placed');
INSERT INTO event_store.deciders VALUES ('invoice', 'paid', 1, 'invoice was paid');
INSERT INTO event_store.deciders VALUES ('invoice', 'shipped', 1, 'invoice was shipped');

INSERT INTO event_store.dispatches VALUES ('orders', '-infinity', '-infinity');
INSERT INTO event_store.dispatches VALUES ('invoices', '2026-01-05 12:00:00+00', '2026-01-05 12:00:00+00');

INSERT INTO event_store.event_log VALUES (0, 0, 1);
INSERT INTO event_store.event_log VALUES (0, 1, 5);
INSERT INTO event_store.event_log VALUES (0, 2, 8);
INSERT INTO event_store.event_log VALUES (0, 3, 13);
INSERT INTO event_store.event_log VALUES (0, 4, 17);
INSERT INTO event_store.event_log VALUES (0, 5, 20);
INSERT INTO event_store.event_log VALUES (0, 6, 25);
INSERT INTO event_store.event_log VALUES (1, 0, 4);
INSERT INTO event_store.event_log VALUES (1, 1, 11);
INSERT INTO event_store.event_log VALUES (1, 2, 16);
INSERT INTO event_store.event_log VALUES (1, 3, 23);
INSERT INTO event_store.event_log VALUES (1, 4, 28);
INSERT INTO event_store.event_log VALUES (1, 5, 29);
INSERT INTO event_store.event_log VALUES (1, 6, 30);
INSERT INTO event_store.event_log VALUES (2, 0, 9);
INSERT INTO event_store.event_log VALUES (2, 1, 12);
INSERT INTO event_store.event_log VALUES (2, 2, 21);
INSERT INTO event_store.event_log VALUES (2, 3, 24);
INSERT INTO event_store.event_log VALUES (3, 0, 2);
INSERT INTO event_store.event_log VALUES (3, 1, 3);
INSERT INTO event_store.event_log VALUES (3, 2, 6);
INSERT INTO event_store.event_log VALUES (3, 3, 7);
INSERT INTO event_store.event_log VALUES (3, 4, 10);
INSERT INTO event_store.event_log VALUES (3, 5, 14);
INSERT INTO event_store.event_log VALUES (3, 6, 15);
INSERT INTO event_store.event_log VALUES (3, 7, 18);
INSERT INTO event_store.event_log VALUES (3, 8, 19);
INSERT INTO event_store.event_log VALUES (3, 9, 22);
INSERT INTO event_store.event_log VALUES (3, 10, 26);
INSERT INTO event_store.event_log VALUES (3, 11, 27);

INSERT INTO event_store.events VALUES ('placed', '58af45cb-4537-4331-a1c5-55b7955db8fd', 1, 'order', 'o-0', '{"n": 1}', '56f03b19-d5fb-4c66-91af-b7d7ea47a033', NULL, false, '2026-01-05 12:00:00+00', 1, '863');
INSERT INTO event_store.events VALUES ('placed', '5ee07cd0-b2c9-4a73-841c-7048ba247747', 1, 'order', 'o-1', '{"n": 1}', '8fc47858-2232-4846-bc53-dc7e95ceda64', NULL, false, '2026-01-05 12:00:00+00', 2, '863');
INSERT INTO event_store.events VALUES ('placed', '1200553a-1a8b-4ddc-a0ad-ca2abd02ae2f', 1, 'order', 'o-2', '{"n": 1}', 'ee545895-8038-410b-a853-3690d21e8b2a', NULL, false, '2026-01-05 12:00:00+00', 3, '863');
INSERT INTO event_store.events VALUES ('placed', 'f0ebf11c-98da-4e0c-8acb-6107c96724d4', 1, 'order', 'o-3', '{"n": 1}', '78c3ed0b-31aa-4c41-8269-b5f7fc88ea66', NULL, false, '2026-01-05 12:00:00+00', 4, '863');
INSERT INTO event_store.events VALUES ('placed', '0dbc89a6-9c99-4baf-981b-4b04411a77af', 1, 'order', 'o-4', '{"n": 1}', '28b3fc80-1bdb-4eae-adaa-f3aa193fdda4', NULL, false, '2026-01-05 12:00:00+00', 5, '863');
INSERT INTO event_store.events VALUES ('placed', 'b5308ef6-9d69-44dc-b8dc-957a94034208', 1, 'order', 'o-5', '{"n": 1}', '51dc1f66-2ba5-4ad2-bb77-56c75035342a', NULL, false, '2026-01-05 12:00:00+00', 6, '863');
INSERT INTO event_store.events VALUES ('placed', 'b1f27287-e94f-4ed5-a2d4-811e3537f5fc', 1, 'order', 'o-6', '{"n": 1}', '23517d6f-f0e9-4a7f-b914-ddb9a76ec369', NULL, false, '2026-01-05 12:00:00+00', 7, '863');
INSERT INTO event_store.events VALUES ('placed', '39118c60-dccd-4066-b21c-a67e5c7d8376', 1, 'order', 'o-7', '{"n": 1}', 'ba252d0c-1d25-4f6b-8fbd-8b42f5381156', NULL, false, '2026-01-05 12:00:00+00', 8, '863');
INSERT INTO event_store.events VALUES ('placed', 'aa200d2d-e1a9-4e9f-bf20-4fcd38c5e8ee', 1, 'order', 'o-8', '{"n": 1}', '2d190abf-f32b-43d2-8a9d-24fdd4a762f9', NULL, false, '2026-01-05 12:00:00+00', 9, '863');
INSERT INTO event_store.events VALUES ('placed', '19d8b22c-bf23-4dc7-9cc0-ecbc2cbd4a60', 1, 'order', 'o-9', '{"n": 1}', 'c133c0a2-7868-466e-893e-93dbd0de30fd', NULL, false, '2026-01-05 12:00:00+00', 10, '863');
INSERT INTO event_store.events VALUES ('placed', 'afca16e8-5d59-4301-8c19-d9f80c47e64a', 1, 'order', 'o-10', '{"n": 1}', '7dbc13fc-8448-475b-9729-5bb4ccec810a', NULL, false, '2026-01-05 12:00:00+00', 11, '863');
INSERT INTO event_store.events VALUES ('placed', '3c0f24c2-b679-41a0-be35-f8b462c87e02', 1, 'order', 'o-11', '{"n": 1}', 'f8885540-07d7-4654-8d96-ebcc63cbd7af', NULL, false, '2026-01-05 12:00:00+00', 12, '863');
INSERT INTO event_store.events VALUES ('placed', 'a90c92c2-cb61-4152-9520-fbc55a00f2c4', 1, 'order', 'o-0', '{"n": 1}', 'ee8bb1c1-592f-4529-b899-cfe6720a5381', '58af45cb-4537-4331-a1c5-55b7955db8fd', false, '2026-01-05 12:00:00+00', 13, '863');
INSERT INTO event_store.events VALUES ('placed', '231682c5-db3a-44be-a2e8-d1038d04358e', 1, 'order', 'o-1', '{"n": 1}', 'f53d0e62-0e61-43ea-a851-6f0c81ca814e', '5ee07cd0-b2c9-4a73-841c-7048ba247747', false, '2026-01-05 12:00:00+00', 14, '863');
INSERT INTO event_store.events VALUES ('placed', '6fdb1f93-5dc1-4bf5-a81e-f79f8b0ef099', 1, 'order', 'o-2', '{"n": 1}', '428823cc-e90c-48a8-81d1-839e3154c2c2', '1200553a-1a8b-4ddc-a0ad-ca2abd02ae2f', false, '2026-01-05 12:00:00+00', 15, '863');
INSERT INTO event_store.events VALUES ('placed', '6c70703f-7300-478c-9bdd-c79b8f972b54', 1, 'order', 'o-3', '{"n": 1}', 'e88c9dc2-a0cb-484f-bde0-4271a702861b', 'f0ebf11c-98da-4e0c-8acb-6107c96724d4', false, '2026-01-05 12:00:00+00', 16, '863');
INSERT INTO event_store.events VALUES ('placed', '53125032-75c2-4c7b-89ba-2b0dab54bc8b', 1, 'order', 'o-4', '{"n": 1}', '4b3b2bc5-caec-412c-b58b-f883233561b7', '0dbc89a6-9c99-4baf-981b-4b04411a77af', false, '2026-01-05 12:00:00+00', 17, '863');
INSERT INTO event_store.events VALUES ('placed', 'ab90ea0c-1d1a-4627-94d6-5940d5cb405a', 1, 'order', 'o-5', '{"n": 1}', 'ece05473-2d60-4eb3-99a2-0cc743f45284', 'b5308ef6-9d69-44dc-b8dc-957a94034208', false, '2026-01-05 12:00:00+00', 18, '863');
INSERT INTO event_store.events VALUES ('placed', '3baa2359-86ce-4962-a5d6-fbb6f64e0d3b', 1, 'order', 'o-6', '{"n": 1}', 'cab776ba-fb2e-454a-8965-202108c9f52f', 'b1f27287-e94f-4ed5-a2d4-811e3537f5fc', false, '2026-01-05 12:00:00+00', 19, '863');
INSERT INTO event_store.events VALUES ('placed', '86b09f91-4939-44b4-a958-db8cae47f17b', 1, 'order', 'o-7', '{"n": 1}', '2b3d60a5-486c-4889-8407-a90328fba01a', '39118c60-dccd-4066-b21c-a67e5c7d8376', false, '2026-01-05 12:00:00+00', 20, '863');
INSERT INTO event_store.events VALUES ('placed', 'a9369261-91cd-471a-af79-0ec48c375587', 1, 'order', 'o-8', '{"n": 1}', '7547dba8-c0dc-4ed1-9ddf-b6ccb8687341', 'aa200d2d-e1a9-4e9f-bf20-4fcd38c5e8ee', false, '2026-01-05 12:00:00+00', 21, '863');
INSERT INTO event_store.events VALUES ('placed', '352c15f0-44c5-4818-adcf-01055aa4bf4c', 1, 'order', 'o-9', '{"n": 1}', 'd630d936-6fc1-43c4-8786-50baffceeef0', '19d8b22c-bf23-4dc7-9cc0-ecbc2cbd4a60', false, '2026-01-05 12:00:00+00', 22, '863');
INSERT INTO event_store.events VALUES ('placed', '140645bc-549b-46c6-a43c-f42267c70305', 1, 'order', 'o-10', '{"n": 1}', '356616a7-4244-4fb0-84a6-c6d5ab80d0ef', 'afca16e8-5d59-4301-8c19-d9f80c47e64a', false, '2026-01-05 12:00:00+00', 23, '863');
INSERT INTO event_store.events VALUES ('placed', '76e826c2-fded-4b12-bb74-cec40b242237', 1, 'order', 'o-11', '{"n": 1}', '3ef993ec-db89-4180-b4e3-08ed6bd0fd5a', '3c0f24c2-b679-41a0-be35-f8b462c87e02', false, '2026-01-05 12:00:00+00', 24, '863');
INSERT INTO event_store.events VALUES ('placed', 'd44c495a-16d9-49ee-8438-6c16382819e2', 1, 'order', 'o-0', '{"n": 1}', 'bfe361a8-e856-4220-aa00-3e70d335bf0e', 'a90c92c2-cb61-4152-9520-fbc55a00f2c4', false, '2026-01-05 12:00:00+00', 25, '863');
INSERT INTO event_store.events VALUES ('placed', '6790b798-96f7-468f-b484-6644e5a1bf75', 1, 'order', 'o-1', '{"n": 1}', 'a428f61e-9c2c-440d-9d68-652d649c0a07', '231682c5-db3a-44be-a2e8-d1038d04358e', false, '2026-01-05 12:00:00+00', 26, '863');
INSERT INTO event_store.events VALUES ('placed', 'f6085843-93d7-47e1-8b2e-12b80df9955d', 1, 'order', 'o-2', '{"n": 1}', '0d10f23b-d238-4be9-b645-892504bba74e', '6fdb1f93-5dc1-4bf5-a81e-f79f8b0ef099', false, '2026-01-05 12:00:00+00', 27, '863');
INSERT INTO event_store.events VALUES ('placed', 'f9d0132b-4f23-48ec-97f6-56cf1e8420bf', 1, 'order', 'o-3', '{"n": 1}', '0a77d463-eb43-4b53-9d53-e0e7bf64e04d', '6c70703f-7300-478c-9bdd-c79b8f972b54', false, '2026-01-05 12:00:00+00', 28, '863');
INSERT INTO event_store.events VALUES ('placed', '552731c7-a609-41ca-b921-708ee336f36e', 1, 'invoice', '8a3b4c5d-0000-4000-8000-000000000001', '{"n": 1}', '9c7ccab3-1ba8-4b57-8f22-06d74f743213', NULL, false, '2026-01-05 12:00:00+00', 29, '865');
INSERT INTO event_store.events VALUES ('paid', '780b9007-fd0f-46bb-8d9c-234f3fd528d4', 1, 'invoice', '8a3b4c5d-0000-4000-8000-000000000001', '{"n": 1}', '4407fc3d-bb0b-4408-b1cb-d60f7be08c25', '552731c7-a609-41ca-b921-708ee336f36e', true, '2026-01-05 12:00:00+00', 30, '866');
INSERT INTO event_store.events VALUES ('placed', 'fb6fee19-7bd6-4add-90d6-707af8b78c41', 1, 'order', 'o-6', '{"n": 1}', 'b4f20aff-b450-4d60-a41f-86e0ab3c7a52', '3baa2359-86ce-4962-a5d6-fbb6f64e0d3b', false, '2026-01-05 12:00:00+00', 41, '878');
INSERT INTO event_store.events VALUES ('placed', 'b61aba8f-a659-4556-8664-b7950adec705', 1, 'order', 'o-7', '{"n": 1}', '0f7d818c-f7d1-4930-80ff-7327d48a728f', '86b09f91-4939-44b4-a958-db8cae47f17b', false, '2026-01-05 12:00:00+00', 42, '878');
INSERT INTO event_store.events VALUES ('placed', '8c7f1872-7ded-4c8e-a650-ed37df45cd17', 1, 'order', 'o-8', '{"n": 1}', 'd1b4c3c1-3d9a-4e4f-8db1-0a0e962c0fd0', 'a9369261-91cd-471a-af79-0ec48c375587', false, '2026-01-05 12:00:00+00', 43, '878');
INSERT INTO event_store.events VALUES ('placed', '24fe81ce-26a7-440e-a247-6502d79c32c2', 1, 'order', 'o-9', '{"n": 1}', '1d9c83e6-e2f4-425b-9003-fa76911974e4', '352c15f0-44c5-4818-adcf-01055aa4bf4c', false, '2026-01-05 12:00:00+00', 44, '878');
INSERT INTO event_store.events VALUES ('placed', 'ff06f6eb-a02d-4b17-b2a3-a0273170526f', 1, 'order', 'o-10', '{"n": 1}', 'c4b363f8-953a-4cb0-80a6-78da614922b8', '140645bc-549b-46c6-a43c-f42267c70305', false, '2026-01-05 12:00:00+00', 45, '878');
INSERT INTO event_store.events VALUES ('placed', '8798fa3d-b5da-46e6-9864-9b1d41e156f5', 1, 'order', 'o-11', '{"n": 1}', '8be7efc4-b4af-48b5-b003-3c9b99bc52eb', '76e826c2-fded-4b12-bb74-cec40b242237', false, '2026-01-05 12:00:00+00', 46, '878');
INSERT INTO event_store.events VALUES ('placed', 'bff2b88c-e037-4505-a82e-7128873609f3', 1, 'order', 'o-0', '{"n": 1}', 'e9843cbd-de55-41da-9248-7c2dfd2ca91c', 'd44c495a-16d9-49ee-8438-6c16382819e2', false, '2026-01-05 12:00:00+00', 47, '878');
INSERT INTO event_store.events VALUES ('placed', '7a016d1e-a20f-41c8-a791-8da58e1734d6', 1, 'order', 'o-1', '{"n": 1}', '0ab650c8-9ac8-48c2-86d4-b45a9054a53e', '6790b798-96f7-468f-b484-6644e5a1bf75', false, '2026-01-05 12:00:00+00', 48, '878');
INSERT INTO event_store.events VALUES ('placed', '690b21f8-3173-4893-82ea-c46e71928936', 1, 'order', 'o-2', '{"n": 1}', 'a822811c-efad-45b1-88cc-63cfd35bcaac', 'f6085843-93d7-47e1-8b2e-12b80df9955d', false, '2026-01-05 12:00:00+00', 49, '878');
INSERT INTO event_store.events VALUES ('placed', 'f7e8a22d-f8b4-4016-80e4-be540bbd2e72', 1, 'order', 'o-3', '{"n": 1}', 'd6ce46ea-a5af-4060-9b09-94a9afb32f7c', 'f9d0132b-4f23-48ec-97f6-56cf1e8420bf', false, '2026-01-05 12:00:00+00', 50, '878');

INSERT INTO event_store.migrations VALUES (1, '0001_event_store', '2026-11-22 01:26:14.854937+00');
INSERT INTO event_store.migrations VALUES (2, '0002_read_models', '2026-11-22 01:26:14.871163+00');
INSERT INTO event_store.migrations VALUES (3, '0003_failing_streams_and_retention', '2026-11-22 01:26:14.874402+00');
INSERT INTO event_store.migrations VALUES (4, '0004_deliveries', '2026-11-22 01:26:14.881756+00');
INSERT INTO event_store.migrations VALUES (5, '0005_archive', '2026-11-22 01:26:14.886655+00');
INSERT INTO event_store.migrations VALUES (6, '0006_versions', '2026-11-22 01:26:14.891477+00');
INSERT INTO event_store.migrations VALUES (0, 'd5e643c6019118cb8521a0572e854684c073ed25a1e6b14dc9c1ba3063de2140', '2026-11-22 01:26:14.894387+00');

INSERT INTO event_store.partitions VALUES (0, 7, 0, 0);
INSERT INTO event_store.partitions VALUES (1, 7, 0, 0);
INSERT INTO event_store.partitions VALUES (3, 12, 0, 0);
INSERT INTO event_store.partitions VALUES (2, 4, 0, 0);

INSERT INTO event_store.sequencer VALUES (true, '867:867:', 7710801061256854810, '2026-01-05 12:00:00+00');

INSERT INTO event_store.stream_locks VALUES ('invoices', 'order', 'o-4', 0, 4, '2026-01-05 12:00:00+00', NULL, 0, NULL, NULL, '2026-01-05 12:00:00+00', '2026-01-05 12:00:00+00', 0, NULL, false, false, false);
INSERT INTO event_store.stream_locks VALUES ('invoices', 'order', 'o-3', 1, 3, '2026-01-05 12:00:00+00', NULL, 0, NULL, NULL, '2026-01-05 12:00:00+00', '2026-01-05 12:00:00+00', 0, NULL, false, false, false);
INSERT INTO event_store.stream_locks VALUES ('invoices', 'order', 'o-8', 2, 8, '2026-01-05 12:00:00+00', NULL, 0, NULL, NULL, '2026-01-05 12:00:00+00', '2026-01-05 12:00:00+00', 0, NULL, false, false, false);
INSERT INTO event_store.stream_locks VALUES ('invoices', 'order', 'o-5', 3, 5, '2026-01-05 12:00:00+00', NULL, 0, NULL, NULL, '2026-01-05 12:00:00+00', '2026-01-05 12:00:00+00', 0, NULL, false, false, false);
INSERT INTO event_store.stream_locks VALUES ('invoices', 'order', 'o-10', 1, 10, '2026-01-05 12:00:00+00', NULL, 0, NULL, NULL, '2026-01-05 12:00:00+00', '2026-01-05 12:00:00+00', 0, NULL, false, false, false);
INSERT INTO event_store.stream_locks VALUES ('invoices', 'order', 'o-7', 0, 7, '2026-01-05 12:00:00+00', NULL, 0, NULL, NULL, '2026-01-05 12:00:00+00', '2026-01-05 12:00:00+00', 0, NULL, false, false, false);
INSERT INTO event_store.stream_locks VALUES ('invoices', 'order', 'o-9', 3, 9, '2026-01-05 12:00:00+00', NULL, 0, NULL, NULL, '2026-01-05 12:00:00+00', '2026-01-05 12:00:00+00', 0, NULL, false, false, false);
INSERT INTO event_store.stream_locks VALUES ('invoices', 'order', 'o-6', 3, 6, '2026-01-05 12:00:00+00', NULL, 0, NULL, NULL, '2026-01-05 12:00:00+00', '2026-01-05 12:00:00+00', 0, NULL, false, false, false);
INSERT INTO event_store.stream_locks VALUES ('invoices', 'order', 'o-11', 2, 11, '2026-01-05 12:00:00+00', NULL, 0, NULL, NULL, '2026-01-05 12:00:00+00', '2026-01-05 12:00:00+00', 0, NULL, false, false, false);
INSERT INTO event_store.stream_locks VALUES ('invoices', 'invoice', '8a3b4c5d-0000-4000-8000-000000000001', 1, 28, '2026-01-05 12:00:00+00', NULL, 0, NULL, NULL, '2026-01-05 12:00:00+00', '2026-01-05 12:00:00+00', 0, NULL, false, false, false);
INSERT INTO event_store.stream_locks VALUES ('invoices', 'order', 'o-2', 3, 2, '2076-02-12 12:00:00+00', 3, 1, NULL, NULL, '2026-01-05 12:00:00+00', '2026-01-05 12:00:00+00', 2, 32046, false, false, false);
INSERT INTO event_store.stream_locks VALUES ('invoices', 'order', 'o-0', 0, 1, '2026-01-05 12:00:00+00', NULL, 0, NULL, NULL, '2026-01-05 12:00:00+00', '2026-01-05 12:00:00+00', 1, 32046, false, false, false);
INSERT INTO event_store.stream_locks VALUES ('invoices', 'order', 'o-1', 3, 1, '2026-01-05 12:01:00+00', NULL, 0, NULL, NULL, '2026-01-05 12:00:00+00', '2026-01-05 12:00:00+00', 3, 32046, false, false, false);

INSERT INTO event_store.streams VALUES ('order', 'o-4', '53125032-75c2-4c7b-89ba-2b0dab54bc8b', 17, 2, false);
INSERT INTO event_store.streams VALUES ('order', 'o-5', 'ab90ea0c-1d1a-4627-94d6-5940d5cb405a', 18, 2, false);
INSERT INTO event_store.streams VALUES ('invoice', '8a3b4c5d-0000-4000-8000-000000000001', '780b9007-fd0f-46bb-8d9c-234f3fd528d4', 30, 2, true);
INSERT INTO event_store.streams VALUES ('order', 'o-0', 'bff2b88c-e037-4505-a82e-7128873609f3', 47, 4, false);
INSERT INTO event_store.streams VALUES ('order', 'o-1', '7a016d1e-a20f-41c8-a791-8da58e1734d6', 48, 4, false);
INSERT INTO event_store.streams VALUES ('order', 'o-10', 'ff06f6eb-a02d-4b17-b2a3-a0273170526f', 45, 3, false);
INSERT INTO event_store.streams VALUES ('order', 'o-11', '8798fa3d-b5da-46e6-9864-9b1d41e156f5', 46, 3, false);
INSERT INTO event_store.streams VALUES ('order', 'o-2', '690b21f8-3173-4893-82ea-c46e71928936', 49, 4, false);
INSERT INTO event_store.streams VALUES ('order', 'o-3', 'f7e8a22d-f8b4-4016-80e4-be540bbd2e72', 50, 4, false);
INSERT INTO event_store.streams VALUES ('order', 'o-6', 'fb6fee19-7bd6-4add-90d6-707af8b78c41', 41, 3, false);
INSERT INTO event_store.streams VALUES ('order', 'o-7', 'b61aba8f-a659-4556-8664-b7950adec705', 42, 3, false);
INSERT INTO event_store.streams VALUES ('order', 'o-8', '8c7f1872-7ded-4c8e-a650-ed37df45cd17', 43, 3, false);
INSERT INTO event_store.streams VALUES ('order', 'o-9', '24fe81ce-26a7-440e-a247-6502d79c32c2', 44, 3, false);

INSERT INTO event_store.views VALUES ('invoices', '-infinity', 60, NULL, NULL, '2026-01-05 12:00:00+00', '2026-01-05 12:00:00+00', 'rows', NULL, NULL, true, 5);
INSERT INTO event_store.views VALUES ('orders', '-infinity', 300, NULL, NULL, '2026-01-05 12:00:00+00', '2026-01-05 12:00:00+00', 'bulk', '{order}', NULL, true, 5);

SELECT pg_catalog.setval('event_store.audit_log_audit_id_seq', 1, false);

SELECT pg_catalog.setval('event_store.events_offset_seq', 50, true);

SELECT pg_catalog.setval('event_store.lease_token_seq', 7, true);

SELECT pg_catalog.setval('read_models.batch_seq', 1, false);

ALTER TABLE ONLY event_store.archive_files
    ADD CONSTRAINT archive_files_path_key UNIQUE (path);

ALTER TABLE ONLY event_store.archive_files
    ADD CONSTRAINT archive_files_pkey PRIMARY KEY (partition, from_offset);

ALTER TABLE ONLY event_store.archive
    ADD CONSTRAINT archive_pkey PRIMARY KEY (singleton);

ALTER TABLE ONLY event_store.audit_log
    ADD CONSTRAINT audit_log_pkey PRIMARY KEY (audit_id);

ALTER TABLE ONLY event_store.checkpoints
    ADD CONSTRAINT checkpoints_pkey PRIMARY KEY (view, partition);

ALTER TABLE ONLY event_store.deciders
    ADD CONSTRAINT deciders_pkey PRIMARY KEY (decider, event, event_version);

ALTER TABLE ONLY event_store.dispatches
    ADD CONSTRAINT dispatches_pkey PRIMARY KEY (view);

ALTER TABLE ONLY event_store.event_log
    ADD CONSTRAINT event_log_offset_key UNIQUE ("offset");

ALTER TABLE ONLY event_store.event_log
    ADD CONSTRAINT event_log_pkey PRIMARY KEY (partition, partition_offset);

ALTER TABLE ONLY event_store.events
    ADD CONSTRAINT events_event_id_key UNIQUE (event_id);

ALTER TABLE ONLY event_store.events
    ADD CONSTRAINT events_pkey PRIMARY KEY ("offset");

ALTER TABLE ONLY event_store.migrations
    ADD CONSTRAINT migrations_pkey PRIMARY KEY (version);

ALTER TABLE ONLY event_store.partitions
    ADD CONSTRAINT partitions_pkey PRIMARY KEY (partition);

ALTER TABLE ONLY event_store.sequencer
    ADD CONSTRAINT sequencer_pkey PRIMARY KEY (singleton);

ALTER TABLE ONLY event_store.stream_locks
    ADD CONSTRAINT stream_locks_pkey PRIMARY KEY (view, decider_id, decider);

ALTER TABLE ONLY event_store.streams
    ADD CONSTRAINT streams_pkey PRIMARY KEY (decider_id, decider);

ALTER TABLE ONLY event_store.views
    ADD CONSTRAINT views_pkey PRIMARY KEY (view);

ALTER TABLE ONLY read_models.declarations
    ADD CONSTRAINT declarations_pkey PRIMARY KEY (model, version);

ALTER TABLE ONLY read_models.declarations
    ADD CONSTRAINT declarations_view_key UNIQUE (view);

CREATE INDEX events_created_at_idx ON event_store.events USING brin (created_at);

CREATE INDEX events_stream_idx ON event_store.events USING btree (decider_id, decider, "offset");

CREATE INDEX events_transaction_id_idx ON event_store.events USING btree (transaction_id);

CREATE INDEX stream_locks_caught_up_idx ON event_store.stream_locks USING btree (view, partition) WHERE caught_up;

CREATE INDEX stream_locks_due_idx ON event_store.stream_locks USING btree (view, locked_until, last_offset) WHERE (parked_at IS NULL);

COMMENT ON INDEX event_store.stream_locks_due_idx IS 'The whole order of stream_events, so that a fetch reads no more locks than it takes.';

CREATE INDEX stream_locks_in_flight_idx ON event_store.stream_locks USING btree (view, partition) WHERE ((in_flight IS NOT NULL) AND (lease_pid IS NULL));

COMMENT ON INDEX event_store.stream_locks_in_flight_idx IS 'What is delivered and not answered: read_batch and commit_batch look here for the retries of a lease.';

CREATE INDEX stream_locks_parked_idx ON event_store.stream_locks USING btree (view, parked_at) WHERE (parked_at IS NOT NULL);

CREATE UNIQUE INDEX declarations_serving_key ON read_models.declarations USING btree (model) WHERE serves;

CREATE TRIGGER forbid_change BEFORE DELETE OR UPDATE OR TRUNCATE ON event_store.deciders FOR EACH STATEMENT EXECUTE FUNCTION event_store.forbid_change();

COMMENT ON TRIGGER forbid_change ON event_store.deciders IS 'Raises, or warns where changes are ignored.';

CREATE TRIGGER forbid_change BEFORE DELETE OR UPDATE OF event, event_id, event_version, decider, decider_id, data, command_id, previous_id, final, created_at, "offset" OR TRUNCATE ON event_store.events FOR EACH STATEMENT EXECUTE FUNCTION event_store.forbid_change();

COMMENT ON TRIGGER forbid_change ON event_store.events IS 'Raises, or warns where changes are ignored.';

CREATE TRIGGER forbid_restamp BEFORE UPDATE OF transaction_id ON event_store.events FOR EACH STATEMENT WHEN ((current_setting('event_store.rebasing'::text, true) IS DISTINCT FROM 'on'::text)) EXECUTE FUNCTION event_store.forbid_change();

COMMENT ON TRIGGER forbid_restamp ON event_store.events IS 'Lets nobody but rebase_sequencer change transaction_id.';

CREATE TRIGGER guard_append BEFORE INSERT ON event_store.events FOR EACH ROW WHEN ((current_setting('event_store.streams_advanced'::text, true) IS DISTINCT FROM 'on'::text)) EXECUTE FUNCTION event_store.guard_append();

COMMENT ON TRIGGER guard_append ON event_store.events IS 'Protects every path into events.';

CREATE CONSTRAINT TRIGGER require_finished_restore AFTER UPDATE ON event_store.sequencer DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN ((new.sequenced_at = 'infinity'::timestamp with time zone)) EXECUTE FUNCTION event_store.require_finished_restore();

COMMENT ON TRIGGER require_finished_restore ON event_store.sequencer IS 'Lets no transaction commit what begin_restore began and finish_restore did not end.';

CREATE TRIGGER skip_change BEFORE DELETE OR UPDATE ON event_store.deciders FOR EACH ROW EXECUTE FUNCTION event_store.forbid_change();

COMMENT ON TRIGGER skip_change ON event_store.deciders IS 'Skips the rows where changes are ignored.';

CREATE TRIGGER skip_change BEFORE DELETE OR UPDATE OF event, event_id, event_version, decider, decider_id, data, command_id, previous_id, final, created_at, "offset" ON event_store.events FOR EACH ROW EXECUTE FUNCTION event_store.forbid_change();

COMMENT ON TRIGGER skip_change ON event_store.events IS 'Skips the rows where changes are ignored.';

CREATE TRIGGER skip_restamp BEFORE UPDATE OF transaction_id ON event_store.events FOR EACH ROW WHEN ((current_setting('event_store.rebasing'::text, true) IS DISTINCT FROM 'on'::text)) EXECUTE FUNCTION event_store.forbid_change();

COMMENT ON TRIGGER skip_restamp ON event_store.events IS 'Skips the rows where changes are ignored.';

ALTER TABLE ONLY event_store.archive_files
    ADD CONSTRAINT archive_files_partition_fkey FOREIGN KEY (partition) REFERENCES event_store.partitions(partition);

ALTER TABLE ONLY event_store.checkpoints
    ADD CONSTRAINT checkpoints_partition_fkey FOREIGN KEY (partition) REFERENCES event_store.partitions(partition);

ALTER TABLE ONLY event_store.checkpoints
    ADD CONSTRAINT checkpoints_view_fkey FOREIGN KEY (view) REFERENCES event_store.views(view) ON DELETE CASCADE;

ALTER TABLE ONLY event_store.dispatches
    ADD CONSTRAINT dispatches_view_fkey FOREIGN KEY (view) REFERENCES event_store.views(view) ON DELETE CASCADE;

ALTER TABLE ONLY event_store.stream_locks
    ADD CONSTRAINT stream_locks_view_fkey FOREIGN KEY (view) REFERENCES event_store.views(view) ON DELETE CASCADE;

GRANT USAGE ON SCHEMA event_store TO event_store_writer;
GRANT USAGE ON SCHEMA event_store TO event_store_consumer;
GRANT USAGE ON SCHEMA event_store TO event_store_reader;
GRANT USAGE ON SCHEMA event_store TO event_store_owner;

GRANT USAGE ON SCHEMA read_models TO event_store_reader;
GRANT ALL ON SCHEMA read_models TO event_store_owner;

GRANT SELECT ON TABLE event_store.stream_locks TO event_store_reader;
GRANT SELECT ON TABLE event_store.stream_locks TO event_store_owner;

GRANT SELECT ON TABLE event_store.streams TO event_store_reader;
GRANT SELECT ON TABLE event_store.streams TO event_store_owner;

GRANT SELECT ON TABLE event_store.locks TO event_store_reader;
GRANT SELECT ON TABLE event_store.locks TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.ack_event(v_view text, v_decider_id text, v_offset bigint, v_lease_token bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.ack_event(v_view text, v_decider_id text, v_offset bigint, v_lease_token bigint) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.ack_event(v_view text, v_decider_id text, v_offset bigint, v_lease_token bigint) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.ack_event(v_view text, v_decider_id uuid, v_offset bigint, v_lease_token bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.ack_event(v_view text, v_decider_id uuid, v_offset bigint, v_lease_token bigint) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.ack_event(v_view text, v_decider_id uuid, v_offset bigint, v_lease_token bigint) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.ack_events(v_view text, v_offsets bigint[], v_lease_tokens bigint[]) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.ack_events(v_view text, v_offsets bigint[], v_lease_tokens bigint[]) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.ack_events(v_view text, v_offsets bigint[], v_lease_tokens bigint[]) TO event_store_owner;

GRANT SELECT ON TABLE event_store.events TO event_store_reader;
GRANT SELECT ON TABLE event_store.events TO event_store_owner;

GRANT SELECT ON TABLE event_store.recorded_events TO event_store_reader;
GRANT SELECT ON TABLE event_store.recorded_events TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.append_event(v_event text, v_event_id uuid, v_decider text, v_decider_id text, v_data jsonb, v_command_id uuid, v_previous_id uuid, v_event_version bigint, v_final boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.append_event(v_event text, v_event_id uuid, v_decider text, v_decider_id text, v_data jsonb, v_command_id uuid, v_previous_id uuid, v_event_version bigint, v_final boolean) TO event_store_writer;
GRANT ALL ON FUNCTION event_store.append_event(v_event text, v_event_id uuid, v_decider text, v_decider_id text, v_data jsonb, v_command_id uuid, v_previous_id uuid, v_event_version bigint, v_final boolean) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.append_event(v_event text, v_event_id uuid, v_decider text, v_decider_id uuid, v_data jsonb, v_command_id uuid, v_previous_id uuid, v_event_version bigint, v_final boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.append_event(v_event text, v_event_id uuid, v_decider text, v_decider_id uuid, v_data jsonb, v_command_id uuid, v_previous_id uuid, v_event_version bigint, v_final boolean) TO event_store_writer;
GRANT ALL ON FUNCTION event_store.append_event(v_event text, v_event_id uuid, v_decider text, v_decider_id uuid, v_data jsonb, v_command_id uuid, v_previous_id uuid, v_event_version bigint, v_final boolean) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.append_events(v_events jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.append_events(v_events jsonb) TO event_store_writer;
GRANT ALL ON FUNCTION event_store.append_events(v_events jsonb) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.archive_state(v_partition integer) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.archive_state(v_partition integer) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.archive_state(v_partition integer) TO event_store_reader;
GRANT ALL ON FUNCTION event_store.archive_state(v_partition integer) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.attach_consumer(v_view text) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.attach_consumer(v_view text) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.attach_consumer(v_view text) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.attached_consumers() FROM PUBLIC;

REVOKE ALL ON FUNCTION event_store.audit(v_operation text, v_view text, v_reason text, v_detail jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION event_store.available_offset_range(v_partition integer) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.available_offset_range(v_partition integer) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.available_offset_range(v_partition integer) TO event_store_reader;
GRANT ALL ON FUNCTION event_store.available_offset_range(v_partition integer) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.backup_cut() FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.backup_cut() TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.begin_restore() FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.begin_restore() TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.claim_batch(v_view text, v_owner text, v_limit bigint, v_lease_s bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.claim_batch(v_view text, v_owner text, v_limit bigint, v_lease_s bigint) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.claim_batch(v_view text, v_owner text, v_limit bigint, v_lease_s bigint) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.claim_partition(v_view text, v_partition integer, v_owner text, v_lease_s bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.claim_partition(v_view text, v_partition integer, v_owner text, v_lease_s bigint) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.claim_partition(v_view text, v_partition integer, v_owner text, v_lease_s bigint) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.clock() FROM PUBLIC;

REVOKE ALL ON FUNCTION event_store.commit_batch(v_view text, v_partition integer[], v_to_offset bigint[], v_lease_token bigint[]) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.commit_batch(v_view text, v_partition integer[], v_to_offset bigint[], v_lease_token bigint[]) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.commit_batch(v_view text, v_partition integer[], v_to_offset bigint[], v_lease_token bigint[]) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.committed_snapshot() FROM PUBLIC;

REVOKE ALL ON FUNCTION event_store.consumer_class() FROM PUBLIC;

REVOKE ALL ON FUNCTION event_store.dead_letters(v_view text) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.dead_letters(v_view text) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.dead_letters(v_view text) TO event_store_reader;
GRANT ALL ON FUNCTION event_store.dead_letters(v_view text) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.discard_dead_letter(v_view text, v_decider text, v_decider_id text, v_reason text, v_offset bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.discard_dead_letter(v_view text, v_decider text, v_decider_id text, v_reason text, v_offset bigint) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.dispatch_events(v_view text, v_window integer, v_max_waiting integer) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.dispatch_events(v_view text, v_window integer, v_max_waiting integer) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.dispatch_events(v_view text, v_window integer, v_max_waiting integer) TO event_store_owner;

GRANT SELECT ON TABLE event_store.views TO event_store_reader;
GRANT SELECT ON TABLE event_store.views TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.enable_view(v_view text, v_enabled boolean, v_reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.enable_view(v_view text, v_enabled boolean, v_reason text) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.event_fault(v_event text, v_event_id uuid, v_event_version bigint, v_decider text, v_decider_id text, v_data jsonb, v_command_id uuid, v_final boolean) FROM PUBLIC;

REVOKE ALL ON FUNCTION event_store.extend_lease(v_view text, v_partition integer[], v_lease_token bigint[], v_lease_s bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.extend_lease(v_view text, v_partition integer[], v_lease_token bigint[], v_lease_s bigint) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.extend_lease(v_view text, v_partition integer[], v_lease_token bigint[], v_lease_s bigint) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.extend_lock(v_view text, v_decider_id text, v_offset bigint, v_seconds integer, v_lease_token bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.extend_lock(v_view text, v_decider_id text, v_offset bigint, v_seconds integer, v_lease_token bigint) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.extend_lock(v_view text, v_decider_id text, v_offset bigint, v_seconds integer, v_lease_token bigint) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.extend_lock(v_view text, v_decider_id uuid, v_offset bigint, v_seconds integer, v_lease_token bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.extend_lock(v_view text, v_decider_id uuid, v_offset bigint, v_seconds integer, v_lease_token bigint) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.extend_lock(v_view text, v_decider_id uuid, v_offset bigint, v_seconds integer, v_lease_token bigint) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.fail_event(v_view text, v_decider_id text, v_offset bigint, v_error text, v_lease_token bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.fail_event(v_view text, v_decider_id text, v_offset bigint, v_error text, v_lease_token bigint) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.fail_event(v_view text, v_decider_id text, v_offset bigint, v_error text, v_lease_token bigint) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.fail_event(v_view text, v_decider_id uuid, v_offset bigint, v_error text, v_lease_token bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.fail_event(v_view text, v_decider_id uuid, v_offset bigint, v_error text, v_lease_token bigint) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.fail_event(v_view text, v_decider_id uuid, v_offset bigint, v_error text, v_lease_token bigint) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.fail_streams(v_view text, v_partition integer, v_lease_token bigint, v_failures jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.fail_streams(v_view text, v_partition integer, v_lease_token bigint, v_failures jsonb) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.fail_streams(v_view text, v_partition integer, v_lease_token bigint, v_failures jsonb) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.finish_restore(v_partition integer[], v_earliest_offset bigint[], v_high_water_mark bigint[], v_last_offset bigint, v_lease_token bigint, v_detail jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.finish_restore(v_partition integer[], v_earliest_offset bigint[], v_high_water_mark bigint[], v_last_offset bigint, v_lease_token bigint, v_detail jsonb) TO event_store_owner;

GRANT SELECT ON TABLE event_store.checkpoints TO event_store_reader;
GRANT SELECT ON TABLE event_store.checkpoints TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.first_delivered(v_view event_store.views, v_lease event_store.checkpoints, v_decider text, v_decider_id text) FROM PUBLIC;

REVOKE ALL ON FUNCTION event_store.forbid_change() FROM PUBLIC;

REVOKE ALL ON FUNCTION event_store.get_events(v_decider_id text, v_decider text) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.get_events(v_decider_id text, v_decider text) TO event_store_writer;
GRANT ALL ON FUNCTION event_store.get_events(v_decider_id text, v_decider text) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.get_events(v_decider_id text, v_decider text) TO event_store_reader;
GRANT ALL ON FUNCTION event_store.get_events(v_decider_id text, v_decider text) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.get_events(v_decider_id uuid, v_decider text) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.get_events(v_decider_id uuid, v_decider text) TO event_store_writer;
GRANT ALL ON FUNCTION event_store.get_events(v_decider_id uuid, v_decider text) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.get_events(v_decider_id uuid, v_decider text) TO event_store_reader;
GRANT ALL ON FUNCTION event_store.get_events(v_decider_id uuid, v_decider text) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.get_last_event(v_decider_id text, v_decider text) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.get_last_event(v_decider_id text, v_decider text) TO event_store_writer;
GRANT ALL ON FUNCTION event_store.get_last_event(v_decider_id text, v_decider text) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.get_last_event(v_decider_id text, v_decider text) TO event_store_reader;
GRANT ALL ON FUNCTION event_store.get_last_event(v_decider_id text, v_decider text) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.get_last_event(v_decider_id uuid, v_decider text) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.get_last_event(v_decider_id uuid, v_decider text) TO event_store_writer;
GRANT ALL ON FUNCTION event_store.get_last_event(v_decider_id uuid, v_decider text) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.get_last_event(v_decider_id uuid, v_decider text) TO event_store_reader;
GRANT ALL ON FUNCTION event_store.get_last_event(v_decider_id uuid, v_decider text) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.give_back_event(v_view text, v_decider_id text, v_milliseconds bigint, v_offset bigint, v_lease_token bigint, v_error text) FROM PUBLIC;

REVOKE ALL ON FUNCTION event_store.guard_append() FROM PUBLIC;

REVOKE ALL ON FUNCTION event_store.has_caught_up(v_view text, v_other text) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.has_caught_up(v_view text, v_other text) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.history_key() FROM PUBLIC;

REVOKE ALL ON FUNCTION event_store.holds_lock(v_lock event_store.stream_locks, v_offset bigint, v_lease_token bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION event_store.is_stored(v_event text, v_event_id uuid, v_event_version bigint, v_decider text, v_decider_id text, v_data jsonb, v_command_id uuid, v_previous_id uuid, v_final boolean) FROM PUBLIC;

REVOKE ALL ON FUNCTION event_store.known_view(v_view text, v_mode text) FROM PUBLIC;

REVOKE ALL ON FUNCTION event_store.lease_duration(v_view event_store.views, v_lease_s bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION event_store.lease_events(v_view text, v_limit integer, v_seconds integer) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.lease_events(v_view text, v_limit integer, v_seconds integer) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.lease_events(v_view text, v_limit integer, v_seconds integer) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.lease_free_streams(v_view event_store.views, v_limit integer, v_seconds integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION event_store.lease_owners(v_view text) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.lease_owners(v_view text) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.lease_owners(v_view text) TO event_store_reader;
GRANT ALL ON FUNCTION event_store.lease_owners(v_view text) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.lease_streams(v_view text, v_limit integer, v_seconds integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION event_store.list_archive_file(v_partition integer, v_from_offset bigint, v_to_offset bigint, v_path text, v_bytes bigint, v_checksum text) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.list_archive_file(v_partition integer, v_from_offset bigint, v_to_offset bigint, v_path text, v_bytes bigint, v_checksum text) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.lock_archive(v_partition integer) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.lock_archive(v_partition integer) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.lock_idle_view(v_view text, v_dry_run boolean) FROM PUBLIC;

REVOKE ALL ON FUNCTION event_store.lock_of_stream(v_view text, v_decider_id text, v_decider text) FROM PUBLIC;

REVOKE ALL ON FUNCTION event_store.lock_view(v_view text, v_mode text) FROM PUBLIC;

REVOKE ALL ON FUNCTION event_store.locked_partitions(v_view text, v_partition integer[], v_lease_token bigint[]) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.locked_partitions(v_view text, v_partition integer[], v_lease_token bigint[]) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.locked_partitions(v_view text, v_partition integer[], v_lease_token bigint[]) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.mark_archived(v_partition integer, v_to_offset bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.mark_archived(v_partition integer, v_to_offset bigint) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.nack_event(v_view text, v_decider_id text, v_offset bigint, v_lease_token bigint, v_error text) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.nack_event(v_view text, v_decider_id text, v_offset bigint, v_lease_token bigint, v_error text) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.nack_event(v_view text, v_decider_id text, v_offset bigint, v_lease_token bigint, v_error text) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.nack_event(v_view text, v_decider_id uuid, v_offset bigint, v_lease_token bigint, v_error text) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.nack_event(v_view text, v_decider_id uuid, v_offset bigint, v_lease_token bigint, v_error text) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.nack_event(v_view text, v_decider_id uuid, v_offset bigint, v_lease_token bigint, v_error text) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.offset_for_timestamp(v_partition integer, v_timestamp timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.offset_for_timestamp(v_partition integer, v_timestamp timestamp with time zone) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.offset_for_timestamp(v_partition integer, v_timestamp timestamp with time zone) TO event_store_reader;
GRANT ALL ON FUNCTION event_store.offset_for_timestamp(v_partition integer, v_timestamp timestamp with time zone) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.offsets_for_timestamp(v_timestamp timestamp with time zone, v_partitions integer[]) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.offsets_for_timestamp(v_timestamp timestamp with time zone, v_partitions integer[]) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.offsets_for_timestamp(v_timestamp timestamp with time zone, v_partitions integer[]) TO event_store_reader;
GRANT ALL ON FUNCTION event_store.offsets_for_timestamp(v_timestamp timestamp with time zone, v_partitions integer[]) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.partition_info() FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.partition_info() TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.partition_info() TO event_store_reader;
GRANT ALL ON FUNCTION event_store.partition_info() TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.pass_over_unwanted(v_view text) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.pass_over_unwanted(v_view text) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.pass_over_unwanted(v_view text) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.poll_views() FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.poll_views() TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.poll_views() TO event_store_reader;
GRANT ALL ON FUNCTION event_store.poll_views() TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.purge_events(v_partition integer, v_limit bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.purge_events(v_partition integer, v_limit bigint) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.raise_low_water_mark(v_partition integer, v_offset bigint, v_reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.raise_low_water_mark(v_partition integer, v_offset bigint, v_reason text) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.read_batch(v_view text, v_partition integer, v_lease_token bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.read_batch(v_view text, v_partition integer, v_lease_token bigint) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.read_batch(v_view text, v_partition integer, v_lease_token bigint) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.read_log(v_partition integer, v_from_offset bigint, v_limit bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.read_log(v_partition integer, v_from_offset bigint, v_limit bigint) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.read_log(v_partition integer, v_from_offset bigint, v_limit bigint) TO event_store_reader;
GRANT ALL ON FUNCTION event_store.read_log(v_partition integer, v_from_offset bigint, v_limit bigint) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.rebase_sequencer() FROM PUBLIC;

REVOKE ALL ON FUNCTION event_store.refuse_append(v_decider text, v_decider_id text, v_event_id uuid, v_previous_id uuid) FROM PUBLIC;

REVOKE ALL ON FUNCTION event_store.refuse_lost_lease(v_view text, v_partition integer[], v_lease_token bigint[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION event_store.refuse_not_in_flight(v_view text, v_decider_id text, v_offset bigint, v_lease_token bigint) FROM PUBLIC;

GRANT SELECT ON TABLE event_store.partitions TO event_store_reader;
GRANT SELECT ON TABLE event_store.partitions TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.refuse_offset(v_partition event_store.partitions, v_fault text) FROM PUBLIC;

REVOKE ALL ON FUNCTION event_store.refuse_read_model(v_view text) FROM PUBLIC;

REVOKE ALL ON FUNCTION event_store.refuse_request(v_fault text, v_hint text) FROM PUBLIC;

REVOKE ALL ON FUNCTION event_store.refuse_reused_event_id(v_event_id uuid) FROM PUBLIC;

REVOKE ALL ON FUNCTION event_store.refuse_unregistered_event(v_decider text, v_event text, v_event_version bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION event_store.refuse_view_in_use(v_view text, v_used_by text) FROM PUBLIC;

GRANT SELECT ON TABLE event_store.deciders TO event_store_reader;
GRANT SELECT ON TABLE event_store.deciders TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.register_decider_event(v_decider text, v_event text, v_description text, v_event_version bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.register_decider_event(v_decider text, v_event text, v_description text, v_event_version bigint) TO event_store_writer;
GRANT ALL ON FUNCTION event_store.register_decider_event(v_decider text, v_event text, v_description text, v_event_version bigint) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.register_view(v_view text, v_start_at timestamp with time zone, v_lock_timeout_s bigint, v_pooling_delay_s bigint, v_edge_function_url text, v_mode text, v_deciders text[], v_events text[], v_max_attempts integer) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.register_view(v_view text, v_start_at timestamp with time zone, v_lock_timeout_s bigint, v_pooling_delay_s bigint, v_edge_function_url text, v_mode text, v_deciders text[], v_events text[], v_max_attempts integer) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.register_view(v_view text, v_start_at timestamp with time zone, v_lock_timeout_s bigint, v_pooling_delay_s bigint, v_edge_function_url text, v_mode text, v_deciders text[], v_events text[], v_max_attempts integer) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.release_batch(v_view text, v_partition integer[], v_lease_token bigint[]) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.release_batch(v_view text, v_partition integer[], v_lease_token bigint[]) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.release_batch(v_view text, v_partition integer[], v_lease_token bigint[]) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.release_owner(v_owner text) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.release_owner(v_owner text) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.release_owner(v_owner text) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.require_finished_restore() FROM PUBLIC;

REVOKE ALL ON FUNCTION event_store.require_leases(v_view text, v_partition integer[], v_lease_token bigint[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION event_store.require_partition(v_partition integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION event_store.restore_tables() FROM PUBLIC;

REVOKE ALL ON FUNCTION event_store.retry_dead_letters(v_view text, v_decider text, v_decider_id text, v_reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.retry_dead_letters(v_view text, v_decider text, v_decider_id text, v_reason text) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.retry_delay(v_attempts integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION event_store.schedule_nack_event(v_view text, v_decider_id text, v_milliseconds bigint, v_offset bigint, v_lease_token bigint, v_error text) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.schedule_nack_event(v_view text, v_decider_id text, v_milliseconds bigint, v_offset bigint, v_lease_token bigint, v_error text) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.schedule_nack_event(v_view text, v_decider_id text, v_milliseconds bigint, v_offset bigint, v_lease_token bigint, v_error text) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.schedule_nack_event(v_view text, v_decider_id uuid, v_milliseconds bigint, v_offset bigint, v_lease_token bigint, v_error text) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.schedule_nack_event(v_view text, v_decider_id uuid, v_milliseconds bigint, v_offset bigint, v_lease_token bigint, v_error text) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.schedule_nack_event(v_view text, v_decider_id uuid, v_milliseconds bigint, v_offset bigint, v_lease_token bigint, v_error text) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.seek_view(v_view text, v_kind text, v_offset bigint, v_timestamp timestamp with time zone, v_partition integer, v_dry_run boolean, v_reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.seek_view(v_view text, v_kind text, v_offset bigint, v_timestamp timestamp with time zone, v_partition integer, v_dry_run boolean, v_reason text) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.sequence_events() FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.sequence_events() TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.sequence_events() TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.sequenced_streams() FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.sequenced_streams() TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.stream_events(v_view_name text, v_limit integer, v_seconds integer) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.stream_events(v_view_name text, v_limit integer, v_seconds integer) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.stream_events(v_view_name text, v_limit integer, v_seconds integer) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.stream_head(v_decider_id text, v_decider text) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.stream_head(v_decider_id text, v_decider text) TO event_store_writer;
GRANT ALL ON FUNCTION event_store.stream_head(v_decider_id text, v_decider text) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.stream_head(v_decider_id text, v_decider text) TO event_store_reader;
GRANT ALL ON FUNCTION event_store.stream_head(v_decider_id text, v_decider text) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.stream_head(v_decider_id uuid, v_decider text) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.stream_head(v_decider_id uuid, v_decider text) TO event_store_writer;
GRANT ALL ON FUNCTION event_store.stream_head(v_decider_id uuid, v_decider text) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.stream_head(v_decider_id uuid, v_decider text) TO event_store_reader;
GRANT ALL ON FUNCTION event_store.stream_head(v_decider_id uuid, v_decider text) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.stream_partition(v_decider_id text, v_partitions bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.stream_partition(v_decider_id text, v_partitions bigint) TO event_store_writer;
GRANT ALL ON FUNCTION event_store.stream_partition(v_decider_id text, v_partitions bigint) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.stream_partition(v_decider_id text, v_partitions bigint) TO event_store_reader;
GRANT ALL ON FUNCTION event_store.stream_partition(v_decider_id text, v_partitions bigint) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.sweep_locks(v_view event_store.views, v_partitions integer[], v_all boolean) FROM PUBLIC;

REVOKE ALL ON FUNCTION event_store.unregister_view(v_view text, v_reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.unregister_view(v_view text, v_reason text) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.validate_offset_range(v_partition integer, v_from_offset bigint, v_to_offset bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.validate_offset_range(v_partition integer, v_from_offset bigint, v_to_offset bigint) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.validate_offset_range(v_partition integer, v_from_offset bigint, v_to_offset bigint) TO event_store_reader;
GRANT ALL ON FUNCTION event_store.validate_offset_range(v_partition integer, v_from_offset bigint, v_to_offset bigint) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.view_info(v_view text) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.view_info(v_view text) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.view_info(v_view text) TO event_store_reader;
GRANT ALL ON FUNCTION event_store.view_info(v_view text) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.view_key(v_view text) FROM PUBLIC;

REVOKE ALL ON FUNCTION event_store.view_lag(v_view text) FROM PUBLIC;
GRANT ALL ON FUNCTION event_store.view_lag(v_view text) TO event_store_consumer;
GRANT ALL ON FUNCTION event_store.view_lag(v_view text) TO event_store_reader;
GRANT ALL ON FUNCTION event_store.view_lag(v_view text) TO event_store_owner;

REVOKE ALL ON FUNCTION event_store.wants(v_deciders text[], v_events text[], v_decider text, v_event text) FROM PUBLIC;

GRANT SELECT ON TABLE event_store.archive TO event_store_reader;
GRANT SELECT ON TABLE event_store.archive TO event_store_owner;

GRANT SELECT ON TABLE event_store.archive_files TO event_store_reader;
GRANT SELECT ON TABLE event_store.archive_files TO event_store_owner;

GRANT SELECT ON TABLE event_store.audit_log TO event_store_reader;
GRANT SELECT ON TABLE event_store.audit_log TO event_store_owner;

GRANT SELECT ON TABLE event_store.dispatches TO event_store_reader;
GRANT SELECT ON TABLE event_store.dispatches TO event_store_owner;

GRANT SELECT ON TABLE event_store.event_log TO event_store_reader;
GRANT SELECT ON TABLE event_store.event_log TO event_store_owner;

GRANT SELECT ON TABLE event_store.migrations TO event_store_reader;
GRANT SELECT ON TABLE event_store.migrations TO event_store_owner;

GRANT SELECT ON TABLE event_store.sequencer TO event_store_reader;
GRANT SELECT ON TABLE event_store.sequencer TO event_store_owner;

GRANT ALL ON SEQUENCE read_models.batch_seq TO event_store_owner;

GRANT SELECT ON TABLE read_models.declarations TO event_store_reader;
GRANT ALL ON TABLE read_models.declarations TO event_store_owner;

ALTER DEFAULT PRIVILEGES FOR ROLE postgres IN SCHEMA read_models GRANT SELECT ON TABLES TO event_store_reader;
ALTER DEFAULT PRIVILEGES FOR ROLE postgres IN SCHEMA read_models GRANT SELECT ON TABLES TO event_store_owner;

-- PostgreSQL database dump complete
