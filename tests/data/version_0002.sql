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
    CONSTRAINT stream_locks_delivery_is_ahead CHECK ((in_flight > last_offset))
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

COMMENT ON COLUMN event_store.stream_locks.attempts IS 'How often the event after last_offset was delivered.';

COMMENT ON COLUMN event_store.stream_locks.last_error IS 'Why the last attempt failed.';

COMMENT ON COLUMN event_store.stream_locks.parked_at IS 'When the stream was given up and became a dead letter; null while it is not.';

COMMENT ON COLUMN event_store.stream_locks.created_at IS 'When the lock was made.';

COMMENT ON COLUMN event_store.stream_locks.updated_at IS 'When the lock last changed.';

CREATE TABLE event_store.streams (
    decider text NOT NULL COLLATE pg_catalog."C",
    decider_id text NOT NULL COLLATE pg_catalog."C",
    last_event_id uuid,
    last_offset bigint NOT NULL,
    version bigint NOT NULL,
    final boolean DEFAULT false NOT NULL,
    CONSTRAINT streams_empty_until_first_event CHECK (((version = 0) = (last_event_id IS NULL)))
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

CREATE FUNCTION event_store.ack_event(v_view text, v_decider_id text, v_offset bigint) RETURNS SETOF event_store.locks
    LANGUAGE plpgsql
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  _now constant timestamptz := event_store.clock();
  _decider text;
begin
  perform event_store.known_view(v_view, 'rows');
  update event_store.stream_locks
  set last_offset = v_offset, in_flight = null, attempts = 0, last_error = null, locked_until = _now, updated_at = _now
  where view = v_view and decider_id = v_decider_id and in_flight = v_offset
  returning decider into _decider;
  if not found then
    perform event_store.refuse_not_in_flight(v_view, v_decider_id, v_offset);
  end if;
  return query
  select l.view, l.decider_id, s.last_offset, l.last_offset, l.locked_until, s.final, l.created_at, l.updated_at
  from event_store.stream_locks l
  join event_store.streams s using (decider_id, decider)
  where l.view = v_view and l.decider_id = v_decider_id and l.decider = _decider;
end
$$;

COMMENT ON FUNCTION event_store.ack_event(v_view text, v_decider_id text, v_offset bigint) IS 'Acknowledges the event in flight and frees its stream. MR010, MR012, MR016 not in flight.';

CREATE FUNCTION event_store.ack_event(v_view text, v_decider_id uuid, v_offset bigint) RETURNS SETOF event_store.locks
    LANGUAGE sql
    AS $$
  select * from event_store.ack_event(v_view, v_decider_id::text, v_offset)
$$;

COMMENT ON FUNCTION event_store.ack_event(v_view text, v_decider_id uuid, v_offset bigint) IS 'ack_event for UUID identifiers.';

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
    LANGUAGE plpgsql
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
    LANGUAGE plpgsql
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
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

COMMENT ON FUNCTION event_store.append_events(v_events jsonb) IS 'Appends a JSON array of events over any streams, all or nothing; returns one row per event in order. MR001 to MR005 as append_event.';

CREATE FUNCTION event_store.attach_consumer(v_view text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
begin
  perform event_store.known_view(v_view);
  perform pg_advisory_lock_shared(event_store.consumer_class(), hashtext(v_view));
end
$$;

COMMENT ON FUNCTION event_store.attach_consumer(v_view text) IS 'Marks this session as a live consumer of a view until it ends. MR010 unknown view.';

CREATE FUNCTION event_store.claim_batch(v_view text, v_owner text, v_limit bigint DEFAULT 100000, v_lease_s bigint DEFAULT NULL::bigint) RETURNS TABLE(partition integer, from_offset bigint, to_offset bigint, lease_token bigint)
    LANGUAGE plpgsql
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
#variable_conflict use_column
declare
  _view constant event_store.views := event_store.known_view(v_view, 'bulk');
  _lease constant interval := event_store.lease_duration(_view, v_owner, v_lease_s);
  _claimed int[];
begin
  if coalesce(v_limit, 0) <= 0 then
    raise exception 'claim is malformed'
      using errcode = 'MR005', detail = format('v_limit is %s', v_limit), hint = 'v_limit must be at least 1.';
  end if;
  if not _view.enabled then
    return;
  end if;
  perform event_store.sequence_events();

  -- locks them; the ranges are read in the statement after that
  _claimed := event_store.pass_over_unwanted(v_view);

  return query
  with pending as (
    select c.partition, c.position, p.high_water_mark, oldest."offset" as oldest
    from event_store.checkpoints c
    join event_store.partitions p using (partition)
    join event_store.event_log oldest on oldest.partition = c.partition and oldest.partition_offset = c.position
    where c.view = v_view and c.partition = any (_claimed) and c.position < p.high_water_mark
  ), shared as (
    select
      q.partition, q.high_water_mark,
      coalesce(
        sum(q.high_water_mark - q.position) over (order by q.oldest rows between unbounded preceding and 1 preceding), 0
      )::bigint as taken_before
    from pending q
  )
  update event_store.checkpoints c
  set lease_owner = v_owner, lease_token = c.lease_token + 1, leased_until = event_store.clock() + _lease
  from shared s
  where c.view = v_view and c.partition = s.partition and s.taken_before < v_limit
  returning c.partition, c.position, least(s.high_water_mark, c.position + v_limit - s.taken_before), c.lease_token;
end
$$;

COMMENT ON FUNCTION event_store.claim_batch(v_view text, v_owner text, v_limit bigint, v_lease_s bigint) IS 'Leases log partitions with pending events and returns the ranges to read; none when there is nothing to do. MR005 malformed, MR010 unknown view, MR012 other mode.';

CREATE FUNCTION event_store.claim_partition(v_view text, v_partition integer, v_owner text, v_lease_s bigint DEFAULT NULL::bigint) RETURNS TABLE(partition integer, from_offset bigint, to_offset bigint, lease_token bigint)
    LANGUAGE plpgsql
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
#variable_conflict use_column
declare
  _view constant event_store.views := event_store.known_view(v_view, 'bulk');
  _lease constant interval := event_store.lease_duration(_view, v_owner, v_lease_s);
  _checkpoint event_store.checkpoints;
begin
  perform event_store.sequence_events();
  select * into _checkpoint from event_store.checkpoints c
  where c.view = v_view and c.partition = v_partition
  for update;
  if not found then
    raise exception 'log partition does not exist'
      using
        errcode = 'MR013',
        detail = format('partition %s', v_partition),
        hint = (select format('Log partitions are 0 to %s.', max(p.partition)) from event_store.partitions p);
  end if;
  if _checkpoint.leased_until > event_store.clock() then
    raise exception 'log partition is leased'
      using
        errcode = 'MR014',
        detail = format('partition %s of view %L is leased by %s until %s', v_partition, v_view, _checkpoint.lease_owner, _checkpoint.leased_until),
        hint = 'Try again when the lease is given back or has expired.';
  end if;
  return query
  update event_store.checkpoints c
  set lease_owner = v_owner, lease_token = c.lease_token + 1, leased_until = event_store.clock() + _lease
  from event_store.partitions p
  where c.view = v_view and c.partition = v_partition and p.partition = c.partition
  returning c.partition, p.earliest_offset, p.high_water_mark, c.lease_token;
end
$$;

COMMENT ON FUNCTION event_store.claim_partition(v_view text, v_partition integer, v_owner text, v_lease_s bigint) IS 'Leases one log partition for a rebuild and returns all that it holds as a range. MR005, MR010, MR012, MR013 unknown partition, MR014 leased.';

CREATE FUNCTION event_store.clock() RETURNS timestamp with time zone
    LANGUAGE sql PARALLEL SAFE
    AS $$
  select coalesce(nullif(current_setting('event_store.clock', true), '')::timestamptz, clock_timestamp())
$$;

COMMENT ON FUNCTION event_store.clock() IS 'The time by which leases expire and events are stamped; the setting event_store.clock overrides it.';

CREATE FUNCTION event_store.commit_batch(v_view text, v_partition integer[], v_to_offset bigint[], v_lease_token bigint[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  _bad text;
begin
  perform event_store.require_leases(v_view, v_partition, v_lease_token);
  select string_agg(
    format('partition %s: to %s, position %s, high-water mark %s', b.partition, b.to_offset, c.position, p.high_water_mark),
    '; ' order by b.partition
  )
  into _bad
  from unnest(v_partition, v_to_offset) b(partition, to_offset)
  left join event_store.checkpoints c on c.view = v_view and c.partition = b.partition
  left join event_store.partitions p on p.partition = b.partition
  where (b.to_offset between c.position and p.high_water_mark) is not true;
  if _bad is not null then
    raise exception 'checkpoint cannot move there'
      using errcode = 'MR015', detail = _bad, hint = 'Commit an offset from the position up to the high-water mark.';
  end if;
  update event_store.checkpoints c
  set position = b.to_offset, lease_owner = null, leased_until = null
  from unnest(v_partition, v_to_offset) b(partition, to_offset)
  where c.view = v_view and c.partition = b.partition;
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

CREATE FUNCTION event_store.dispatch_events(v_view text, v_window integer DEFAULT 5000) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  _now constant timestamptz := event_store.clock();
  _view constant event_store.views := event_store.known_view(v_view, 'rows');
  _claimed int[];
  _passed bigint;
begin
  -- Partitions with new events, and those where a lock may have to go: a remover that another dispatcher overtakes would
  -- remove the lock that this one relies on.
  _claimed := array(
    select c.partition
    from event_store.checkpoints c
    join event_store.partitions p using (partition)
    where c.view = v_view
      and (
        c.position < p.high_water_mark
        or c.partition in (
          select k.partition
          from event_store.stream_locks k
          where k.view = v_view and k.in_flight is null and k.parked_at is null and k.locked_until <= _now
        )
      )
    for update of c skip locked
  );

  with passed as materialized (
    select l.partition, l.partition_offset, e."offset", e.decider, e.decider_id,
      (_view.deciders is null or e.decider = any (_view.deciders))
      and (_view.events is null or e.event = any (_view.events)) as wanted
    from event_store.checkpoints c
    join event_store.event_log l
      on l.partition = c.partition and l.partition_offset >= c.position and l.partition_offset < c.position + v_window
    join event_store.events e using ("offset")
    where c.view = v_view and c.partition = any (_claimed)
  ), locked as (
    -- locked until now: it waits behind the streams that were freed before
    insert into event_store.stream_locks (
      view, decider, decider_id, partition, last_offset, locked_until, created_at, updated_at
    )
    select v_view, p.decider, p.decider_id, p.partition, min(p."offset") - 1, _now, _now, _now
    from passed p
    where p.wanted
      -- `on conflict do nothing` would wait for a consumer that has this lock in an open transaction
      and not exists (
        select from event_store.stream_locks k
        where k.view = v_view and k.decider_id = p.decider_id and k.decider = p.decider
      )
    group by p.decider, p.decider_id, p.partition
  ), moved as (
    update event_store.checkpoints c
    set position = p.position
    from (select partition, max(partition_offset) + 1 as position from passed group by partition) p
    where c.view = v_view and c.partition = p.partition
  )
  select count(*) into _passed from passed;

  -- A lock may go once nothing of its stream lies between it and the checkpoint. LATERAL … LIMIT 1 stays an index probe
  -- where EXISTS becomes a hash join.
  delete from event_store.stream_locks k
  using (
    select x.decider_id, x.decider
    from event_store.stream_locks x
    join event_store.checkpoints c on c.view = x.view and c.partition = x.partition
    left join event_store.event_log acked on acked."offset" = x.last_offset
    left join lateral (
      select 1 as one
      from event_store.events e
      where e.decider_id = x.decider_id and e.decider = x.decider and e."offset" > x.last_offset
        and (_view.events is null or e.event = any (_view.events))
      limit 1
    ) pending on true
    where x.view = v_view
      and x.partition = any (_claimed)
      and x.in_flight is null
      and x.parked_at is null
      and x.locked_until <= _now
      and pending.one is null
      and acked.partition_offset < c.position
    limit 20000
    for update of x skip locked
  ) empty
  where k.view = v_view and k.decider_id = empty.decider_id and k.decider = empty.decider;

  if _passed > 0 or _view.dispatched_at < _now - interval '500 milliseconds' then
    update event_store.views set dispatched_at = _now
    where view = (select view from event_store.views where view = v_view for update skip locked);
  end if;
  return _passed;
end
$$;

COMMENT ON FUNCTION event_store.dispatch_events(v_view text, v_window integer) IS 'Locks the streams that have new events for a rows view and moves its checkpoints past them; returns how many log positions were passed. MR010, MR012.';

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
    LANGUAGE plpgsql
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  _until timestamptz;
begin
  perform event_store.require_leases(v_view, v_partition, v_lease_token);
  _until := event_store.clock() + event_store.lease_duration(event_store.known_view(v_view, 'bulk'), 'owner', v_lease_s);
  update event_store.checkpoints set leased_until = _until where view = v_view and partition = any (v_partition);
  return _until;
end
$$;

COMMENT ON FUNCTION event_store.extend_lease(v_view text, v_partition integer[], v_lease_token bigint[], v_lease_s bigint) IS 'Extends leases in force and returns until when. MR005, MR010, MR011 lease lost, MR012.';

CREATE FUNCTION event_store.forbid_change() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  _ignore boolean := tg_op <> 'TRUNCATE' and current_setting('event_store.on_forbidden_change', true) = 'ignore';
begin
  if tg_level = 'ROW' then
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
    LANGUAGE sql STABLE
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
    LANGUAGE sql STABLE
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

CREATE FUNCTION event_store.guard_append() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  _fault text := event_store.event_fault(
    new.event, new.event_id, new.event_version, new.decider, new.decider_id, new.data, new.command_id, new.final
  );
begin
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

  if new.previous_id is null then
    insert into event_store.streams as s (decider, decider_id, last_event_id, last_offset, version, final)
    values (new.decider, new.decider_id, new.event_id, nextval('event_store.events_offset_seq'), 1, new.final)
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
    returning s.last_offset into new."offset";
  end if;

  if not found then
    if event_store.is_stored(
      new.event, new.event_id, new.event_version, new.decider, new.decider_id, new.data, new.command_id, new.previous_id, new.final
    ) then
      return null;
    end if;
    perform event_store.refuse_append(new.decider, new.decider_id, new.event_id, new.previous_id);
  end if;

  -- The insert would find this too, but `on conflict do nothing` would then leave the stream's row ahead of its events.
  if exists (select from event_store.events where event_id = new.event_id) then
    perform event_store.refuse_reused_event_id(new.event_id);
  end if;

  new.created_at := event_store.clock();
  new.transaction_id := pg_current_xact_id();
  return new;
end
$$;

COMMENT ON FUNCTION event_store.guard_append() IS 'Trigger: checks an event, advances its stream and draws its offset, or raises MR001 to MR005.';

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
    dispatched_at timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
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

COMMENT ON COLUMN event_store.views.dispatched_at IS 'When somebody last dispatched this view''s new events, to half a second (rows mode).';

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
        hint = 'rows: stream_events, ack_event, nack_event, schedule_nack_event. bulk: claim_batch, commit_batch, extend_lease, release_batch.';
  end if;
  return _view;
end
$$;

COMMENT ON FUNCTION event_store.known_view(v_view text, v_mode text) IS 'A view''s registration. MR010 not registered, MR012 consumed in the other mode.';

CREATE FUNCTION event_store.lease_duration(v_view event_store.views, v_owner text, v_lease_s bigint) RETURNS interval
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
begin
  if coalesce(v_owner, '') = '' or v_lease_s <= 0 then
    raise exception 'claim is malformed'
      using
        errcode = 'MR005',
        detail = format('owner %L, lease of %s s', v_owner, v_lease_s),
        hint = 'An owner is named, and a lease lasts at least 1 s; null means the view''s lock_timeout_s.';
  end if;
  return make_interval(secs => coalesce(v_lease_s, v_view.lock_timeout_s));
end
$$;

COMMENT ON FUNCTION event_store.lease_duration(v_view event_store.views, v_owner text, v_lease_s bigint) IS 'The length of a lease. MR005 for an owner without a name or a length below 1 s.';

CREATE FUNCTION event_store.lease_owners(v_view text) RETURNS SETOF text
    LANGUAGE sql
    AS $$
  select distinct c.lease_owner
  from event_store.checkpoints c
  where c.view = v_view and c.leased_until > event_store.clock()
  order by 1
$$;

COMMENT ON FUNCTION event_store.lease_owners(v_view text) IS 'The owners of the live leases of a view.';

CREATE FUNCTION event_store.nack_event(v_view text, v_decider_id text) RETURNS SETOF event_store.locks
    LANGUAGE sql
    AS $$
  select * from event_store.schedule_nack_event(v_view, v_decider_id, 0)
$$;

COMMENT ON FUNCTION event_store.nack_event(v_view text, v_decider_id text) IS 'Gives back the event in flight. MR010, MR012, MR016 not in flight.';

CREATE FUNCTION event_store.nack_event(v_view text, v_decider_id uuid) RETURNS SETOF event_store.locks
    LANGUAGE sql
    AS $$
  select * from event_store.nack_event(v_view, v_decider_id::text)
$$;

COMMENT ON FUNCTION event_store.nack_event(v_view text, v_decider_id uuid) IS 'nack_event for UUID identifiers.';

CREATE FUNCTION event_store.offset_for_timestamp(v_partition integer, v_timestamp timestamp with time zone) RETURNS bigint
    LANGUAGE sql STABLE
    AS $$
  select case
    when v_timestamp = '-infinity' then p.earliest_offset
    else coalesce(
      (
        select min(l.partition_offset)
        from event_store.events e
        join event_store.event_log l using ("offset")
        where e.created_at >= v_timestamp and l.partition = v_partition
      ),
      p.high_water_mark
    )
  end
  from event_store.partitions p
  where p.partition = v_partition
$$;

COMMENT ON FUNCTION event_store.offset_for_timestamp(v_partition integer, v_timestamp timestamp with time zone) IS 'The first kept partition offset appended at or after a time; the high-water mark if none; null for an unknown partition.';

CREATE FUNCTION event_store.pass_over_unwanted(v_view text) RETURNS integer[]
    LANGUAGE plpgsql
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  _view constant event_store.views := event_store.known_view(v_view, 'bulk');
  _locked int[];
begin
  -- Lock first. The clock is read after the lock is ours, the marks in the statements after that: an older look could take
  -- a partition for which nothing is left.
  _locked := array(
    select c.partition
    from event_store.checkpoints c
    join event_store.partitions p using (partition)
    where c.view = v_view
      and c.position < p.high_water_mark
      and (c.leased_until is null or c.leased_until <= event_store.clock())
    for update of c skip locked
  );
  if _view.deciders is null and _view.events is null then
    return _locked;
  end if;

  update event_store.checkpoints c
  set position = wanted.position
  from (
    select p.partition, coalesce(first.partition_offset, p.high_water_mark) as position
    from event_store.checkpoints at
    join event_store.partitions p using (partition)
    left join lateral (
      select l.partition_offset
      from event_store.event_log l
      join event_store.events e using ("offset")
      where l.partition = at.partition
        and l.partition_offset >= at.position
        and l.partition_offset < p.high_water_mark
        and (_view.deciders is null or e.decider = any (_view.deciders))
        and (_view.events is null or e.event = any (_view.events))
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

CREATE FUNCTION event_store.poll_views() RETURNS TABLE(view text, mode text, enabled boolean, pooling_delay_s bigint, edge_function_url text, lag bigint, consumers bigint)
    LANGUAGE sql
    AS $$
  select
    v.view,
    v.mode,
    v.enabled,
    v.pooling_delay_s,
    v.edge_function_url,
    coalesce(c.lag, 0)::bigint + (
      select count(*) from event_store.stream_locks k
      where k.view = v.view and k.parked_at is null and k.locked_until <= event_store.clock()
    ),
    coalesce(a.consumers, 0)
  from event_store.views v
  left join (
    select c.view, sum(greatest(p.high_water_mark - c.position, 0)) as lag
    from event_store.checkpoints c
    join event_store.partitions p using (partition)
    group by c.view
  ) c using (view)
  left join (
    -- pg_locks shows keys as oids, which have no sign
    select l.objid, count(*) as consumers
    from pg_locks l
    where l.locktype = 'advisory'
      and l.database = (select d.oid from pg_database d where d.datname = current_database())
      and l.classid = event_store.consumer_class()::bit(32)::bigint::oid
      and l.objsubid = 2
      and l.granted
    group by l.objid
  ) a on a.objid = hashtext(v.view)::bit(32)::bigint::oid
  order by v.view
$$;

COMMENT ON FUNCTION event_store.poll_views() IS 'For every view: is it enabled, how far is it behind, how many live consumers it has.';

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
    hint = 'Read the stream again, decide again, and append with its last event_id as previous_id.';
end
$$;

COMMENT ON FUNCTION event_store.refuse_append(v_decider text, v_decider_id text, v_event_id uuid, v_previous_id uuid) IS 'Raises MR001 (conflict) or MR002 (closed stream) with the stream''s state in DETAIL.';

CREATE FUNCTION event_store.refuse_not_in_flight(v_view text, v_decider_id text, v_offset bigint DEFAULT NULL::bigint) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
begin
  raise exception 'event is not in flight'
    using
      errcode = 'MR016',
      detail = format(
        'view %L, decider_id %L, offset %s; %s',
        v_view,
        v_decider_id,
        coalesce(v_offset::text, 'any'),
        coalesce(
          (
            select string_agg(
              format('%s: in flight %s, acknowledged up to %s', decider, coalesce(in_flight::text, 'none'), last_offset),
              '; ' order by decider
            )
            from event_store.stream_locks
            where view = v_view and decider_id = v_decider_id
          ),
          'nothing of this stream is waiting'
        )
      ),
      hint = 'Acknowledge or give back each event once, before its lease ends; fetch again with stream_events.';
end
$$;

COMMENT ON FUNCTION event_store.refuse_not_in_flight(v_view text, v_decider_id text, v_offset bigint) IS 'Raises MR016 and says what is in flight.';

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
    LANGUAGE plpgsql
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
begin
  if coalesce(v_decider, '') = '' or coalesce(v_event, '') = '' or v_description is null or v_event_version is null then
    raise exception 'event registration is malformed'
      using
        errcode = 'MR005',
        detail = format('decider %L, event %L, description %L, version %L', v_decider, v_event, v_description, v_event_version),
        hint = 'Decider and event must be named; description and version must not be null.';
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

CREATE FUNCTION event_store.register_view(v_view text, v_start_at timestamp with time zone DEFAULT NULL::timestamp with time zone, v_lock_timeout_s bigint DEFAULT 300, v_pooling_delay_s bigint DEFAULT NULL::bigint, v_edge_function_url text DEFAULT NULL::text, v_mode text DEFAULT NULL::text, v_deciders text[] DEFAULT NULL::text[], v_events text[] DEFAULT NULL::text[]) RETURNS SETOF event_store.views
    LANGUAGE plpgsql
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  _now constant timestamptz := event_store.clock();
  _view event_store.views;
begin
  if coalesce(v_view, '') = '' or coalesce(v_lock_timeout_s, 0) <= 0 or v_pooling_delay_s < 0
    or v_mode not in ('rows', 'bulk') or cardinality(v_deciders) = 0 or cardinality(v_events) = 0
  then
    raise exception 'view registration is malformed'
      using
        errcode = 'MR005',
        detail = format(
          'view %L, lock_timeout_s %s, pooling_delay_s %s, mode %L, deciders %L, events %L',
          v_view, v_lock_timeout_s, v_pooling_delay_s, v_mode, v_deciders, v_events
        ),
        hint = 'A view has a name, a positive lock_timeout_s, no negative pooling_delay_s, mode rows or bulk, and filters that are null or not empty.';
  end if;

  insert into event_store.views (
    view, start_at, lock_timeout_s, pooling_delay_s, edge_function_url, created_at, updated_at, mode, deciders, events
  )
  values (
    v_view, coalesce(v_start_at, _now), v_lock_timeout_s, v_pooling_delay_s, v_edge_function_url, _now, _now,
    coalesce(v_mode, 'rows'), v_deciders, v_events
  )
  on conflict (view) do nothing
  returning * into _view;

  if found then
    perform event_store.sequence_events();
    insert into event_store.checkpoints (view, partition, position)
    select v_view, p.partition, event_store.offset_for_timestamp(p.partition, _view.start_at)
    from event_store.partitions p;
    return next _view;
    return;
  end if;

  select * into _view from event_store.views where view = v_view for update;
  if v_mode <> _view.mode then
    raise exception 'view is registered in another mode'
      using
        errcode = 'MR012',
        detail = format('view %L is in mode %s, not %s', v_view, _view.mode, v_mode),
        hint = 'Register a view under another name.';
  end if;
  update event_store.views
  set
    lock_timeout_s = v_lock_timeout_s,
    pooling_delay_s = v_pooling_delay_s,
    edge_function_url = v_edge_function_url,
    deciders = v_deciders,
    events = v_events,
    updated_at = _now
  where view = v_view
    and (lock_timeout_s, pooling_delay_s, edge_function_url, deciders, events)
      is distinct from (v_lock_timeout_s, v_pooling_delay_s, v_edge_function_url, v_deciders, v_events);
  return query select * from event_store.views where view = v_view;
end
$$;

COMMENT ON FUNCTION event_store.register_view(v_view text, v_start_at timestamp with time zone, v_lock_timeout_s bigint, v_pooling_delay_s bigint, v_edge_function_url text, v_mode text, v_deciders text[], v_events text[]) IS 'Registers a view or changes its settings, never its progress. MR005 malformed, MR012 other mode.';

CREATE FUNCTION event_store.release_batch(v_view text, v_partition integer[], v_lease_token bigint[]) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  _released bigint;
begin
  perform event_store.known_view(v_view, 'bulk');
  with released as (
    update event_store.checkpoints c
    set lease_owner = null, leased_until = null
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
    LANGUAGE sql
    AS $$
  with released as (
    update event_store.checkpoints
    set lease_owner = null, leased_until = null
    where lease_owner = v_owner
    returning 1
  )
  select count(*) from released
$$;

COMMENT ON FUNCTION event_store.release_owner(v_owner text) IS 'Gives back every lease of one owner; returns how many.';

CREATE FUNCTION event_store.require_leases(v_view text, v_partition integer[], v_lease_token bigint[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  _lost text;
begin
  if v_partition is null or cardinality(v_partition) = 0 or cardinality(v_partition) <> coalesce(cardinality(v_lease_token), 0)
    -- one partition with two offsets would take either
    or (select count(*) <> count(distinct partition) from unnest(v_partition) b(partition))
  then
    raise exception 'batch is malformed'
      using
        errcode = 'MR005',
        detail = 'v_partition and v_lease_token must have the same, positive length, and name each partition once',
        hint = 'Pass on what claim_batch returned.';
  end if;
  perform event_store.known_view(v_view, 'bulk');
  perform from event_store.checkpoints
  where view = v_view and partition = any (v_partition)
  order by partition
  for update;
  select string_agg(
    format(
      'partition %s: token %s stated, token %s in force%s',
      b.partition, b.token, coalesce(c.lease_token::text, 'none'), coalesce(' for ' || c.lease_owner, ', no lease')
    ),
    '; ' order by b.partition
  )
  into _lost
  from unnest(v_partition, v_lease_token) b(partition, token)
  left join event_store.checkpoints c on c.view = v_view and c.partition = b.partition
  where c.lease_token is distinct from b.token or c.lease_owner is null;
  if _lost is not null then
    raise exception 'lease is lost'
      using errcode = 'MR011', detail = _lost, hint = 'Drop this batch and claim again; its events are delivered again.';
  end if;
end
$$;

COMMENT ON FUNCTION event_store.require_leases(v_view text, v_partition integer[], v_lease_token bigint[]) IS 'Locks the checkpoints of a batch; MR011 unless every token is that of a lease in force.';

CREATE FUNCTION event_store.schedule_nack_event(v_view text, v_decider_id text, v_milliseconds bigint) RETURNS SETOF event_store.locks
    LANGUAGE plpgsql
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  _now constant timestamptz := event_store.clock();
begin
  if v_milliseconds is null or v_milliseconds < 0 then
    raise exception 'request is malformed'
      using errcode = 'MR005', detail = format('v_milliseconds is %s', coalesce(v_milliseconds::text, 'null')), hint = 'v_milliseconds must be 0 or more.';
  end if;
  perform event_store.known_view(v_view, 'rows');
  update event_store.stream_locks
  set in_flight = null, locked_until = _now + v_milliseconds * interval '1 millisecond', updated_at = _now
  where view = v_view and decider_id = v_decider_id and in_flight is not null;
  if not found then
    perform event_store.refuse_not_in_flight(v_view, v_decider_id);
  end if;
  return query select * from event_store.locks l where l.view = v_view and l.decider_id = v_decider_id;
end
$$;

COMMENT ON FUNCTION event_store.schedule_nack_event(v_view text, v_decider_id text, v_milliseconds bigint) IS 'Gives back the event in flight for a later delivery. MR005, MR010, MR012, MR016 not in flight.';

CREATE FUNCTION event_store.schedule_nack_event(v_view text, v_decider_id uuid, v_milliseconds bigint) RETURNS SETOF event_store.locks
    LANGUAGE sql
    AS $$
  select * from event_store.schedule_nack_event(v_view, v_decider_id::text, v_milliseconds)
$$;

COMMENT ON FUNCTION event_store.schedule_nack_event(v_view text, v_decider_id uuid, v_milliseconds bigint) IS 'schedule_nack_event for UUID identifiers.';

CREATE FUNCTION event_store.sequence_events() RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  _now constant timestamptz := event_store.clock();
  _last event_store.sequencer;
  _committed pg_snapshot;
  _partitions bigint;
  _sequenced bigint;
begin
  select * into _last from event_store.sequencer for update skip locked;
  if not found then
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
  ), placed as (
    insert into event_store.event_log (partition, partition_offset, "offset")
    select
      f.partition,
      r.first_offset + row_number() over (partition by f.partition order by f."offset") - 1,
      f."offset"
    from fresh f
    join raised r using (partition)
    returning 1
  )
  select count(*) into _sequenced from placed;

  if _sequenced > 0 then
    update event_store.sequencer set snapshot = _committed, sequenced_at = _now;
  elsif _last.sequenced_at < _now - interval '500 milliseconds' then
    update event_store.sequencer set sequenced_at = _now;
  end if;
  return _sequenced;
end
$$;

COMMENT ON FUNCTION event_store.sequence_events() IS 'Gives every committed event its dense partition offset; returns how many. 0 at once where another session is at it.';

CREATE FUNCTION event_store.stream_events(v_view_name text, v_limit integer DEFAULT 1, v_seconds integer DEFAULT NULL::integer) RETURNS SETOF event_store.recorded_events
    LANGUAGE plpgsql
    SET search_path TO 'event_store', 'pg_temp'
    AS $$
declare
  _now timestamptz := event_store.clock();
  _recently constant timestamptz := _now - interval '1 second';
  _alone constant boolean := statement_timestamp() = transaction_timestamp();
  _view constant event_store.views := event_store.known_view(v_view_name, 'rows');
  _free tid[];
  _delivered bigint[];
begin
  if coalesce(v_limit, 0) <= 0 or v_seconds <= 0 then
    raise exception 'request is malformed'
      using
        errcode = 'MR005',
        detail = format('v_limit %s, v_seconds %s', v_limit, v_seconds),
        hint = 'v_limit and v_seconds must be at least 1; v_seconds null means the view''s lock_timeout_s.';
  end if;
  if not _view.enabled then
    return;
  end if;
  if _alone or (select sequenced_at from event_store.sequencer) < _recently then
    perform event_store.sequence_events();
  end if;
  if _alone or _view.dispatched_at < _recently then
    perform event_store.dispatch_events(v_view_name);
  end if;

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
        and (_view.events is null or e.event = any (_view.events))
      limit 1
    ) pending
    where k.view = v_view_name and k.parked_at is null and k.locked_until <= _now
    order by k.locked_until, k.last_offset
    limit v_limit
    for update of k skip locked
  );

  _now := event_store.clock();
  with delivered as (
    update event_store.stream_locks k
    set
      in_flight = next_event."offset",
      attempts = k.attempts + 1,
      locked_until = _now + make_interval(secs => coalesce(v_seconds, _view.lock_timeout_s)),
      updated_at = _now
    from event_store.stream_locks held
    cross join lateral (
      select e."offset"
      from event_store.events e
      join event_store.event_log l using ("offset")
      where e.decider_id = held.decider_id and e.decider = held.decider and e."offset" > held.last_offset
        and (_view.events is null or e.event = any (_view.events))
      order by e."offset"
      limit 1
    ) next_event
    where held.ctid = any (_free) and k.ctid = held.ctid and k.locked_until <= _now
    returning k.in_flight
  )
  select array_agg(in_flight) into _delivered from delivered;

  return query
  select r.* from event_store.recorded_events r where r."offset" = any (_delivered) order by r."offset";
end
$$;

COMMENT ON FUNCTION event_store.stream_events(v_view_name text, v_limit integer, v_seconds integer) IS 'Leases free streams of a rows view and returns the next event of each. MR005 malformed, MR010 unknown view, MR012 other mode.';

CREATE FUNCTION event_store.stream_partition(v_decider_id text, v_partitions bigint) RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
  -- % keeps the dividend's sign
  select (((hashtextextended(v_decider_id collate "C", 0) % v_partitions) + v_partitions) % v_partitions)::int
$$;

COMMENT ON FUNCTION event_store.stream_partition(v_decider_id text, v_partitions bigint) IS 'The log partition, from 0, of a decider_id in a database with so many log partitions.';

CREATE FUNCTION event_store.view_lag(v_view text) RETURNS TABLE(partition integer, "position" bigint, high_water_mark bigint, lag bigint, pending bigint, pending_age_s double precision)
    LANGUAGE plpgsql STABLE
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
      and (_view.deciders is null or e.decider = any (_view.deciders))
      and (_view.events is null or e.event = any (_view.events))
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
      and (_view.events is null or e.event = any (_view.events))
  ) held on true
  where c.view = v_view
  order by c.partition;
end
$$;

COMMENT ON FUNCTION event_store.view_lag(v_view text) IS 'A view''s distance to the high-water mark per log partition, in events and in seconds. MR010 unknown view.';

CREATE TABLE event_store.checkpoints (
    view text NOT NULL,
    partition integer NOT NULL,
    "position" bigint NOT NULL,
    lease_owner text,
    lease_token bigint DEFAULT 0 NOT NULL,
    leased_until timestamp with time zone,
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

CREATE TABLE event_store.migrations (
    version integer NOT NULL,
    name text NOT NULL,
    applied_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

COMMENT ON TABLE event_store.migrations IS 'Which migrations are applied. Version 0 stands for the functions; its name is their hash.';

COMMENT ON COLUMN event_store.migrations.version IS 'The migration''s number.';

COMMENT ON COLUMN event_store.migrations.name IS 'The migration''s file, or the hash of the functions for version 0.';

COMMENT ON COLUMN event_store.migrations.applied_at IS 'When it was applied.';

CREATE TABLE event_store.partitions (
    partition integer NOT NULL,
    high_water_mark bigint DEFAULT 0 NOT NULL,
    earliest_offset bigint DEFAULT 0 NOT NULL,
    CONSTRAINT partitions_marks_in_order CHECK (((0 <= earliest_offset) AND (earliest_offset <= high_water_mark)))
)
WITH (fillfactor='50');

COMMENT ON TABLE event_store.partitions IS 'The log partitions: hash buckets of decider_id. Their number is fixed when the database is made.';

COMMENT ON COLUMN event_store.partitions.partition IS 'The log partition, from 0.';

COMMENT ON COLUMN event_store.partitions.high_water_mark IS 'The partition offset that the next event will get.';

COMMENT ON COLUMN event_store.partitions.earliest_offset IS 'The first partition offset that is still kept.';

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
    declared_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

COMMENT ON TABLE read_models.declarations IS 'The declaration that each model''s tables were made from.';

COMMENT ON COLUMN read_models.declarations.model IS 'The read model.';

COMMENT ON COLUMN read_models.declarations.view IS 'The event store''s view that the model is consumed as.';

COMMENT ON COLUMN read_models.declarations.fingerprint IS 'The hash of the declaration; another declaration must not write these tables.';

COMMENT ON COLUMN read_models.declarations.declared_at IS 'When the tables were made.';

INSERT INTO event_store.checkpoints VALUES ('invoices', 0, 7, NULL, 0, NULL);
INSERT INTO event_store.checkpoints VALUES ('invoices', 1, 7, NULL, 0, NULL);
INSERT INTO event_store.checkpoints VALUES ('invoices', 2, 4, NULL, 0, NULL);
INSERT INTO event_store.checkpoints VALUES ('invoices', 3, 12, NULL, 0, NULL);
INSERT INTO event_store.checkpoints VALUES ('orders', 0, 7, NULL, 1, NULL);
INSERT INTO event_store.checkpoints VALUES ('orders', 3, 5, NULL, 1, NULL);
INSERT INTO event_store.checkpoints VALUES ('orders', 2, 0, 'drain-1', 1, '2076-02-12 12:00:00+00');
INSERT INTO event_store.checkpoints VALUES ('orders', 1, 7, NULL, 1, NULL);

INSERT INTO event_store.deciders VALUES ('order', 'placed', 1, 'order was placed');
INSERT INTO event_store.deciders VALUES ('order', 'paid', 1, 'order was paid');
INSERT INTO event_store.deciders VALUES ('order', 'shipped', 1, 'order was shipped');
INSERT INTO event_store.deciders VALUES ('invoice', 'placed', 1, 'invoice was placed');
INSERT INTO event_store.deciders VALUES ('invoice', 'paid', 1, 'invoice was paid');
INSERT INTO event_store.deciders VALUES ('invoice', 'shipped', 1, 'invoice was shipped');

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

INSERT INTO event_store.events VALUES ('placed', 'be370957-6019-47f8-be3b-8cfcf7bf8f97', 1, 'order', 'o-0', '{"n": 1}', 'dfe4c7de-b036-4dc0-b16c-8ad772a436e2', NULL, false, '2026-01-05 12:00:00+00', 1, '762');
INSERT INTO event_store.events VALUES ('placed', '243ac0f8-f95b-465c-bbc1-0c4e13d3116b', 1, 'order', 'o-1', '{"n": 1}', 'b9f70d71-8975-497f-8e15-2d4b571ebba8', NULL, false, '2026-01-05 12:00:00+00', 2, '762');
INSERT INTO event_store.events VALUES ('placed', '80f2f312-a18d-4246-a09f-47cf407e889b', 1, 'order', 'o-2', '{"n": 1}', '36407c83-74cb-4514-a986-f74ebe2d6e94', NULL, false, '2026-01-05 12:00:00+00', 3, '762');
INSERT INTO event_store.events VALUES ('placed', '681d5918-b8fa-4bca-8ac0-386240cdf0a4', 1, 'order', 'o-3', '{"n": 1}', '880b1b65-365d-407b-bf47-7bad5bf754ed', NULL, false, '2026-01-05 12:00:00+00', 4, '762');
INSERT INTO event_store.events VALUES ('placed', '52be9996-c8ec-4f8b-ab2c-c6415ce5064b', 1, 'order', 'o-4', '{"n": 1}', '87de3481-546a-4f4f-8f9b-46ba406e5531', NULL, false, '2026-01-05 12:00:00+00', 5, '762');
INSERT INTO event_store.events VALUES ('placed', 'e8a3b3f8-5003-4044-bf8d-ee95a1fb312c', 1, 'order', 'o-5', '{"n": 1}', 'c074f41d-8569-4d26-9596-efea44a483d2', NULL, false, '2026-01-05 12:00:00+00', 6, '762');
INSERT INTO event_store.events VALUES ('placed', '950a1499-2d85-4892-a275-9ab64b15905c', 1, 'order', 'o-6', '{"n": 1}', '6197d82e-1333-42d9-96ff-44a4df665b17', NULL, false, '2026-01-05 12:00:00+00', 7, '762');
INSERT INTO event_store.events VALUES ('placed', '77394f50-92cc-4311-98fa-52c910a81540', 1, 'order', 'o-7', '{"n": 1}', '70f97c18-d52f-48dc-bdcd-ca7191da0e19', NULL, false, '2026-01-05 12:00:00+00', 8, '762');
INSERT INTO event_store.events VALUES ('placed', '11c62039-5842-4e7c-be1a-40e1dc94b469', 1, 'order', 'o-8', '{"n": 1}', 'fea55300-22c9-429d-85a6-4b41087f4154', NULL, false, '2026-01-05 12:00:00+00', 9, '762');
INSERT INTO event_store.events VALUES ('placed', '4c8de52b-1999-48a1-a305-12f1ea3ce40b', 1, 'order', 'o-9', '{"n": 1}', 'a038aa80-9f0e-4ef4-a8e5-494f3ff89d1b', NULL, false, '2026-01-05 12:00:00+00', 10, '762');
INSERT INTO event_store.events VALUES ('placed', '0abedc77-5713-436e-89c6-987f081921ca', 1, 'order', 'o-10', '{"n": 1}', 'eeb39827-05c7-45ed-b818-125bcdaeb1a6', NULL, false, '2026-01-05 12:00:00+00', 11, '762');
INSERT INTO event_store.events VALUES ('placed', '748b1bfc-608d-4beb-9379-df8ddc8ec652', 1, 'order', 'o-11', '{"n": 1}', 'c28b0070-43c8-426b-8594-9cd9fb258ffd', NULL, false, '2026-01-05 12:00:00+00', 12, '762');
INSERT INTO event_store.events VALUES ('placed', '7b1814f3-7b2c-4aa8-85fd-f6e2a8c21f0a', 1, 'order', 'o-0', '{"n": 1}', '9e68ec65-5107-40aa-b778-e61e686135ec', 'be370957-6019-47f8-be3b-8cfcf7bf8f97', false, '2026-01-05 12:00:00+00', 13, '762');
INSERT INTO event_store.events VALUES ('placed', '87bc249c-73b4-4d9a-ac7a-45a0628986d3', 1, 'order', 'o-1', '{"n": 1}', 'ba16a7e7-21e0-458f-86fd-8d7e30af6246', '243ac0f8-f95b-465c-bbc1-0c4e13d3116b', false, '2026-01-05 12:00:00+00', 14, '762');
INSERT INTO event_store.events VALUES ('placed', '71b9e492-2679-4660-9d2c-dfcae6b921ff', 1, 'order', 'o-2', '{"n": 1}', 'da1a9a57-2a3d-44f6-a8e0-e0be14e4c29b', '80f2f312-a18d-4246-a09f-47cf407e889b', false, '2026-01-05 12:00:00+00', 15, '762');
INSERT INTO event_store.events VALUES ('placed', '18037e8a-39f4-4932-b14c-05b662daf6ba', 1, 'order', 'o-3', '{"n": 1}', '011d0e96-b7ca-4091-8bd6-649b041a3bd1', '681d5918-b8fa-4bca-8ac0-386240cdf0a4', false, '2026-01-05 12:00:00+00', 16, '762');
INSERT INTO event_store.events VALUES ('placed', '89dd8077-ffa3-4264-a6f7-93872f796ca9', 1, 'order', 'o-4', '{"n": 1}', '922614e4-9820-4e89-93f0-9a00cd419c77', '52be9996-c8ec-4f8b-ab2c-c6415ce5064b', false, '2026-01-05 12:00:00+00', 17, '762');
INSERT INTO event_store.events VALUES ('placed', '9887bcbc-704d-45a2-ab4d-e67c77ac1511', 1, 'order', 'o-5', '{"n": 1}', '6e55945e-c82a-4bac-809a-39f5f4ff40e2', 'e8a3b3f8-5003-4044-bf8d-ee95a1fb312c', false, '2026-01-05 12:00:00+00', 18, '762');
INSERT INTO event_store.events VALUES ('placed', '5fb65d70-a3e5-4e08-a43a-fe8c59083f24', 1, 'order', 'o-6', '{"n": 1}', '95b37d45-6fe3-44a1-93fd-adcc2c68ecc8', '950a1499-2d85-4892-a275-9ab64b15905c', false, '2026-01-05 12:00:00+00', 19, '762');
INSERT INTO event_store.events VALUES ('placed', '6e54e94f-4d1c-48b0-bd67-03198bf97ff3', 1, 'order', 'o-7', '{"n": 1}', '0fd18bc2-bca2-4ea5-9d9d-2efbe599c8ac', '77394f50-92cc-4311-98fa-52c910a81540', false, '2026-01-05 12:00:00+00', 20, '762');
INSERT INTO event_store.events VALUES ('placed', 'b1cb229c-6da6-4400-802c-d40db5368ea2', 1, 'order', 'o-8', '{"n": 1}', 'c47decd1-9178-4094-be24-6a68ef295d33', '11c62039-5842-4e7c-be1a-40e1dc94b469', false, '2026-01-05 12:00:00+00', 21, '762');
INSERT INTO event_store.events VALUES ('placed', '90a63701-1f24-4e75-a701-19590700555d', 1, 'order', 'o-9', '{"n": 1}', 'ec359e87-2cd0-4dfc-8768-db87f414e2d0', '4c8de52b-1999-48a1-a305-12f1ea3ce40b', false, '2026-01-05 12:00:00+00', 22, '762');
INSERT INTO event_store.events VALUES ('placed', '2a1aa165-ff24-493a-a117-7e516c64ba5d', 1, 'order', 'o-10', '{"n": 1}', '188fe81d-d23d-49cd-96e3-a5d08ce2d477', '0abedc77-5713-436e-89c6-987f081921ca', false, '2026-01-05 12:00:00+00', 23, '762');
INSERT INTO event_store.events VALUES ('placed', 'b3ae32ce-4237-4be3-b723-cb51d25ffae5', 1, 'order', 'o-11', '{"n": 1}', '7ac087de-a73b-49a1-8757-d1a2dcc21b96', '748b1bfc-608d-4beb-9379-df8ddc8ec652', false, '2026-01-05 12:00:00+00', 24, '762');
INSERT INTO event_store.events VALUES ('placed', '290be0f1-1d31-4d17-aed3-813f37228f81', 1, 'order', 'o-0', '{"n": 1}', '178b18ef-2372-4033-b4ed-4da98f1ed2ae', '7b1814f3-7b2c-4aa8-85fd-f6e2a8c21f0a', false, '2026-01-05 12:00:00+00', 25, '762');
INSERT INTO event_store.events VALUES ('placed', 'a575fe16-6f16-43bf-b4cb-9bc24800240a', 1, 'order', 'o-1', '{"n": 1}', '5560661b-779a-4750-953a-b9c4ed24af59', '87bc249c-73b4-4d9a-ac7a-45a0628986d3', false, '2026-01-05 12:00:00+00', 26, '762');
INSERT INTO event_store.events VALUES ('placed', '079db181-1098-4bc8-8eee-c2313bcba0ec', 1, 'order', 'o-2', '{"n": 1}', 'e855491a-bbd5-483d-a045-9c9363070102', '71b9e492-2679-4660-9d2c-dfcae6b921ff', false, '2026-01-05 12:00:00+00', 27, '762');
INSERT INTO event_store.events VALUES ('placed', '27f8e654-d0c3-4326-a105-a42efd148910', 1, 'order', 'o-3', '{"n": 1}', '08a731d1-aee3-4d24-b612-96f532c514d6', '18037e8a-39f4-4932-b14c-05b662daf6ba', false, '2026-01-05 12:00:00+00', 28, '762');
INSERT INTO event_store.events VALUES ('placed', '1062c263-dff3-4fd3-ab29-026979b3f788', 1, 'invoice', '8a3b4c5d-0000-4000-8000-000000000001', '{"n": 1}', '5a5d52ac-46ab-4331-9e09-3e1a639d6cd0', NULL, false, '2026-01-05 12:00:00+00', 29, '763');
INSERT INTO event_store.events VALUES ('paid', 'a2dea1bc-df1c-424c-99c6-0bde2e78def2', 1, 'invoice', '8a3b4c5d-0000-4000-8000-000000000001', '{"n": 1}', 'd24af99d-69d7-412f-9c30-3a92d11e5652', '1062c263-dff3-4fd3-ab29-026979b3f788', true, '2026-01-05 12:00:00+00', 30, '764');
INSERT INTO event_store.events VALUES ('placed', '20660523-5018-4e82-b301-2999f3fcb736', 1, 'order', 'o-6', '{"n": 1}', 'a7e5ba61-f6d0-48a5-9da2-6f160309611d', '5fb65d70-a3e5-4e08-a43a-fe8c59083f24', false, '2026-01-05 12:00:00+00', 31, '776');
INSERT INTO event_store.events VALUES ('placed', '559eb381-94e9-4861-b090-41c87e56c3d1', 1, 'order', 'o-7', '{"n": 1}', '61ce1175-e444-4ff5-b701-fc87811bb635', '6e54e94f-4d1c-48b0-bd67-03198bf97ff3', false, '2026-01-05 12:00:00+00', 32, '776');
INSERT INTO event_store.events VALUES ('placed', '6ec3914c-66e0-4aa8-9d73-aa17dd03ad6f', 1, 'order', 'o-8', '{"n": 1}', '5e4f9a69-a966-43c7-8d5d-2fa8f196a380', 'b1cb229c-6da6-4400-802c-d40db5368ea2', false, '2026-01-05 12:00:00+00', 33, '776');
INSERT INTO event_store.events VALUES ('placed', 'a49fdf5c-cbe3-49e6-b0e1-1af766b8b3b8', 1, 'order', 'o-9', '{"n": 1}', 'fe8123c9-a6d3-4934-a66d-99c164eab1d0', '90a63701-1f24-4e75-a701-19590700555d', false, '2026-01-05 12:00:00+00', 34, '776');
INSERT INTO event_store.events VALUES ('placed', '48ec6e9c-20f8-437b-a49a-43e6625b61e5', 1, 'order', 'o-10', '{"n": 1}', 'd53e7cf9-64b1-46ef-87e6-9271bcd7c1ad', '2a1aa165-ff24-493a-a117-7e516c64ba5d', false, '2026-01-05 12:00:00+00', 35, '776');
INSERT INTO event_store.events VALUES ('placed', 'c4897be7-1ebe-4a33-8182-1b72ba5edc67', 1, 'order', 'o-11', '{"n": 1}', '2b30ca8d-509f-4d49-9d9e-1a2aebdf809a', 'b3ae32ce-4237-4be3-b723-cb51d25ffae5', false, '2026-01-05 12:00:00+00', 36, '776');
INSERT INTO event_store.events VALUES ('placed', '8d627f46-57cb-474d-be1e-4c22f5e3d04c', 1, 'order', 'o-0', '{"n": 1}', '7518c232-8eed-463e-9b96-ef38d97d6c78', '290be0f1-1d31-4d17-aed3-813f37228f81', false, '2026-01-05 12:00:00+00', 37, '776');
INSERT INTO event_store.events VALUES ('placed', 'eb9e19e8-d5b4-46c4-958a-00b14275c5f5', 1, 'order', 'o-1', '{"n": 1}', '2fc8e1e8-fbbc-46a2-bca8-1651f7d2278d', 'a575fe16-6f16-43bf-b4cb-9bc24800240a', false, '2026-01-05 12:00:00+00', 38, '776');
INSERT INTO event_store.events VALUES ('placed', '07a8b163-e4d0-41ac-85f0-ee15329f6661', 1, 'order', 'o-2', '{"n": 1}', 'bdb84756-2917-4a93-95aa-626e677210fb', '079db181-1098-4bc8-8eee-c2313bcba0ec', false, '2026-01-05 12:00:00+00', 39, '776');
INSERT INTO event_store.events VALUES ('placed', '322fcbf0-b037-47e2-9068-4bebf7fd5ee2', 1, 'order', 'o-3', '{"n": 1}', 'e7384c19-0c98-40a9-a936-b679ceb73954', '27f8e654-d0c3-4326-a105-a42efd148910', false, '2026-01-05 12:00:00+00', 40, '776');

INSERT INTO event_store.migrations VALUES (1, '0001_event_store', '2026-11-21 16:04:50.928851+00');
INSERT INTO event_store.migrations VALUES (2, '0002_read_models', '2026-11-21 16:04:50.953556+00');
INSERT INTO event_store.migrations VALUES (0, 'cfbd22b97dec57118da38e9334d31476633ba43b33037d740a0f9e150f6dc226', '2026-11-21 16:04:50.957466+00');

INSERT INTO event_store.partitions VALUES (0, 7, 0);
INSERT INTO event_store.partitions VALUES (1, 7, 0);
INSERT INTO event_store.partitions VALUES (2, 4, 0);
INSERT INTO event_store.partitions VALUES (3, 12, 0);

INSERT INTO event_store.sequencer VALUES (true, '765:765:', 7710656388915676299, '2026-01-05 12:00:00+00');

INSERT INTO event_store.stream_locks VALUES ('invoices', 'invoice', '8a3b4c5d-0000-4000-8000-000000000001', 1, 28, '2026-01-05 12:00:00+00', NULL, 0, NULL, NULL, '2026-01-05 12:00:00+00', '2026-01-05 12:00:00+00');
INSERT INTO event_store.stream_locks VALUES ('invoices', 'order', 'o-10', 1, 10, '2026-01-05 12:00:00+00', NULL, 0, NULL, NULL, '2026-01-05 12:00:00+00', '2026-01-05 12:00:00+00');
INSERT INTO event_store.stream_locks VALUES ('invoices', 'order', 'o-11', 2, 11, '2026-01-05 12:00:00+00', NULL, 0, NULL, NULL, '2026-01-05 12:00:00+00', '2026-01-05 12:00:00+00');
INSERT INTO event_store.stream_locks VALUES ('invoices', 'order', 'o-3', 1, 3, '2026-01-05 12:00:00+00', NULL, 0, NULL, NULL, '2026-01-05 12:00:00+00', '2026-01-05 12:00:00+00');
INSERT INTO event_store.stream_locks VALUES ('invoices', 'order', 'o-4', 0, 4, '2026-01-05 12:00:00+00', NULL, 0, NULL, NULL, '2026-01-05 12:00:00+00', '2026-01-05 12:00:00+00');
INSERT INTO event_store.stream_locks VALUES ('invoices', 'order', 'o-5', 3, 5, '2026-01-05 12:00:00+00', NULL, 0, NULL, NULL, '2026-01-05 12:00:00+00', '2026-01-05 12:00:00+00');
INSERT INTO event_store.stream_locks VALUES ('invoices', 'order', 'o-6', 3, 6, '2026-01-05 12:00:00+00', NULL, 0, NULL, NULL, '2026-01-05 12:00:00+00', '2026-01-05 12:00:00+00');
INSERT INTO event_store.stream_locks VALUES ('invoices', 'order', 'o-7', 0, 7, '2026-01-05 12:00:00+00', NULL, 0, NULL, NULL, '2026-01-05 12:00:00+00', '2026-01-05 12:00:00+00');
INSERT INTO event_store.stream_locks VALUES ('invoices', 'order', 'o-8', 2, 8, '2026-01-05 12:00:00+00', NULL, 0, NULL, NULL, '2026-01-05 12:00:00+00', '2026-01-05 12:00:00+00');
INSERT INTO event_store.stream_locks VALUES ('invoices', 'order', 'o-9', 3, 9, '2026-01-05 12:00:00+00', NULL, 0, NULL, NULL, '2026-01-05 12:00:00+00', '2026-01-05 12:00:00+00');
INSERT INTO event_store.stream_locks VALUES ('invoices', 'order', 'o-2', 3, 2, '2076-02-12 12:00:00+00', 3, 1, NULL, NULL, '2026-01-05 12:00:00+00', '2026-01-05 12:00:00+00');
INSERT INTO event_store.stream_locks VALUES ('invoices', 'order', 'o-0', 0, 1, '2026-01-05 12:00:00+00', NULL, 0, NULL, NULL, '2026-01-05 12:00:00+00', '2026-01-05 12:00:00+00');
INSERT INTO event_store.stream_locks VALUES ('invoices', 'order', 'o-1', 3, 1, '2026-01-05 12:01:00+00', NULL, 1, NULL, NULL, '2026-01-05 12:00:00+00', '2026-01-05 12:00:00+00');

INSERT INTO event_store.streams VALUES ('order', 'o-4', '89dd8077-ffa3-4264-a6f7-93872f796ca9', 17, 2, false);
INSERT INTO event_store.streams VALUES ('order', 'o-5', '9887bcbc-704d-45a2-ab4d-e67c77ac1511', 18, 2, false);
INSERT INTO event_store.streams VALUES ('invoice', '8a3b4c5d-0000-4000-8000-000000000001', 'a2dea1bc-df1c-424c-99c6-0bde2e78def2', 30, 2, true);
INSERT INTO event_store.streams VALUES ('order', 'o-0', '8d627f46-57cb-474d-be1e-4c22f5e3d04c', 37, 4, false);
INSERT INTO event_store.streams VALUES ('order', 'o-1', 'eb9e19e8-d5b4-46c4-958a-00b14275c5f5', 38, 4, false);
INSERT INTO event_store.streams VALUES ('order', 'o-10', '48ec6e9c-20f8-437b-a49a-43e6625b61e5', 35, 3, false);
INSERT INTO event_store.streams VALUES ('order', 'o-11', 'c4897be7-1ebe-4a33-8182-1b72ba5edc67', 36, 3, false);
INSERT INTO event_store.streams VALUES ('order', 'o-2', '07a8b163-e4d0-41ac-85f0-ee15329f6661', 39, 4, false);
INSERT INTO event_store.streams VALUES ('order', 'o-3', '322fcbf0-b037-47e2-9068-4bebf7fd5ee2', 40, 4, false);
INSERT INTO event_store.streams VALUES ('order', 'o-6', '20660523-5018-4e82-b301-2999f3fcb736', 31, 3, false);
INSERT INTO event_store.streams VALUES ('order', 'o-7', '559eb381-94e9-4861-b090-41c87e56c3d1', 32, 3, false);
INSERT INTO event_store.streams VALUES ('order', 'o-8', '6ec3914c-66e0-4aa8-9d73-aa17dd03ad6f', 33, 3, false);
INSERT INTO event_store.streams VALUES ('order', 'o-9', 'a49fdf5c-cbe3-49e6-b0e1-1af766b8b3b8', 34, 3, false);

INSERT INTO event_store.views VALUES ('orders', '-infinity', 300, NULL, NULL, '2026-01-05 12:00:00+00', '2026-01-05 12:00:00+00', 'bulk', '{order}', NULL, true, 5, '-infinity');
INSERT INTO event_store.views VALUES ('invoices', '-infinity', 60, NULL, NULL, '2026-01-05 12:00:00+00', '2026-01-05 12:00:00+00', 'rows', NULL, NULL, true, 5, '2026-01-05 12:00:00+00');

SELECT pg_catalog.setval('event_store.events_offset_seq', 40, true);

SELECT pg_catalog.setval('read_models.batch_seq', 1, false);

ALTER TABLE ONLY event_store.checkpoints
    ADD CONSTRAINT checkpoints_pkey PRIMARY KEY (view, partition);

ALTER TABLE ONLY event_store.deciders
    ADD CONSTRAINT deciders_pkey PRIMARY KEY (decider, event, event_version);

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
    ADD CONSTRAINT declarations_pkey PRIMARY KEY (model);

CREATE INDEX events_created_at_idx ON event_store.events USING brin (created_at);

CREATE INDEX events_stream_idx ON event_store.events USING btree (decider_id, decider, "offset");

CREATE INDEX events_transaction_id_idx ON event_store.events USING btree (transaction_id);

CREATE INDEX stream_locks_due_idx ON event_store.stream_locks USING btree (view, locked_until, last_offset);

CREATE TRIGGER forbid_change BEFORE DELETE OR UPDATE OR TRUNCATE ON event_store.deciders FOR EACH STATEMENT EXECUTE FUNCTION event_store.forbid_change();

COMMENT ON TRIGGER forbid_change ON event_store.deciders IS 'Raises, or warns where changes are ignored.';

CREATE TRIGGER forbid_change BEFORE DELETE OR UPDATE OF event, event_id, event_version, decider, decider_id, data, command_id, previous_id, final, created_at, "offset" OR TRUNCATE ON event_store.events FOR EACH STATEMENT EXECUTE FUNCTION event_store.forbid_change();

COMMENT ON TRIGGER forbid_change ON event_store.events IS 'Raises, or warns where changes are ignored.';

CREATE TRIGGER forbid_restamp BEFORE UPDATE OF transaction_id ON event_store.events FOR EACH STATEMENT WHEN ((current_setting('event_store.rebasing'::text, true) IS DISTINCT FROM 'on'::text)) EXECUTE FUNCTION event_store.forbid_change();

COMMENT ON TRIGGER forbid_restamp ON event_store.events IS 'Lets nobody but rebase_sequencer change transaction_id.';

CREATE TRIGGER guard_append BEFORE INSERT ON event_store.events FOR EACH ROW WHEN ((current_setting('event_store.streams_advanced'::text, true) IS DISTINCT FROM 'on'::text)) EXECUTE FUNCTION event_store.guard_append();

COMMENT ON TRIGGER guard_append ON event_store.events IS 'Protects every path into events.';

CREATE TRIGGER skip_change BEFORE DELETE OR UPDATE ON event_store.deciders FOR EACH ROW EXECUTE FUNCTION event_store.forbid_change();

COMMENT ON TRIGGER skip_change ON event_store.deciders IS 'Skips the rows where changes are ignored.';

CREATE TRIGGER skip_change BEFORE DELETE OR UPDATE OF event, event_id, event_version, decider, decider_id, data, command_id, previous_id, final, created_at, "offset" ON event_store.events FOR EACH ROW EXECUTE FUNCTION event_store.forbid_change();

COMMENT ON TRIGGER skip_change ON event_store.events IS 'Skips the rows where changes are ignored.';

CREATE TRIGGER skip_restamp BEFORE UPDATE OF transaction_id ON event_store.events FOR EACH ROW WHEN ((current_setting('event_store.rebasing'::text, true) IS DISTINCT FROM 'on'::text)) EXECUTE FUNCTION event_store.forbid_change();

COMMENT ON TRIGGER skip_restamp ON event_store.events IS 'Skips the rows where changes are ignored.';

ALTER TABLE ONLY event_store.checkpoints
    ADD CONSTRAINT checkpoints_partition_fkey FOREIGN KEY (partition) REFERENCES event_store.partitions(partition);

ALTER TABLE ONLY event_store.checkpoints
    ADD CONSTRAINT checkpoints_view_fkey FOREIGN KEY (view) REFERENCES event_store.views(view) ON DELETE CASCADE;

ALTER TABLE ONLY event_store.stream_locks
    ADD CONSTRAINT stream_locks_view_fkey FOREIGN KEY (view) REFERENCES event_store.views(view) ON DELETE CASCADE;

-- PostgreSQL database dump complete
