-- A command handler reads only the events behind the state. It reads them with the current upcasts: a version of the
-- model that used other upcasts does not match this declaration. A stream with a lock failed, and its state lacks some
-- events.
-- It runs with its caller's rights, because the tables of read models belong to their owners. So a service needs
-- event_store_reader as well as event_store_writer.
-- Races: all of it is as of one moment.
-- Example: select state, version from stream_state('carts', '5e88…', 'cart', 'cart-1')
create or replace function event_store.stream_state(
  v_model text,
  v_fingerprint text,
  v_decider text,
  v_decider_id text
)
returns table (
  state json,
  version bigint,
  "offset" bigint
)
language plpgsql
stable
rows 1
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered nested once
#variable_conflict use_column
declare
  _partition int;
  _version read_models.declarations;
  _table text;
  _key text;
  _state json;
  _position bigint;
  _offset bigint;
begin
  if num_nulls(v_model, v_fingerprint, v_decider, v_decider_id) > 0 then
    return;
  end if;
  _partition := event_store.stream_partition(v_decider_id, (select count(*) from event_store.log_partitions));
  select d.* into _version from read_models.declarations d
  join event_store.views w using (view)
  where d.model = v_model and not _partition = any (d.unbuilt)
    and d.fingerprint = v_fingerprint || (
      -- as in the fingerprints of functions, behind the number of the tables' layout
      select '+' || encode(sha256(convert_to('2' || coalesce(string_agg(
        format(E'%s %s %s %s\n', u.decider, u.event, u.to_version, u.digest), '' order by u.event collate "C", u.to_version
      ), ''), 'UTF8')), 'hex')
      from event_store.event_upcasts u
      where u.decider = v_decider and (w.events is null or u.event = any (w.events)) and u.moves <> '[]'
    )
  order by d.version desc
  limit 1;
  if not found
    or exists (
      select from event_store.stream_locks k
      where k.view = _version.view and k.decider_id = v_decider_id and k.decider = v_decider
    )
    or exists (
      select from event_store.audit_log a
      where a.operation = 'discard_dead_letter'
        and a.detail ->> 'decider_id' = v_decider_id and a.detail ->> 'decider' = v_decider and a.view = _version.view
    )
  then
    return;
  end if;
  _table := _version.model || '_state' || case when _version.version > 1 then '_v' || _version.version else '' end;
  -- the column behind the log partition: a fold of one decider has no other key
  select a.attname into _key from pg_catalog.pg_attribute a
  where a.attrelid = to_regclass(format('read_models.%I', _table)) and a.attnum = 2;
  execute format(
    'select s._state, s._position from read_models.%I s where s.partition = $1 and s.%I = $2', _table, _key
  ) into _state, _position using _partition, v_decider_id;
  if _position is null then
    return;
  end if;
  -- By its key: a condition on the stream could make the plan read all of its events.
  select l."offset" into _offset from event_store.event_log l where l.partition = _partition and l.position = _position;
  return query select _state, e.version, e."offset" from event_store.events e where e."offset" = _offset;
  if not found then
    -- The event was purged; the events kept since are unwanted by the view, or come behind it.
    return query
    select _state, p.version, p.last_offset
    from event_store.purged_streams p
    where p.decider_id = v_decider_id and p.decider = v_decider;
  end if;
end
$$;

comment on function event_store.stream_state(text, text, text, text) is
'Returns the snapshot that the fold read model v_model, as the declaration with v_fingerprint, has of the stream '
'(v_decider, v_decider_id): its state, and the version and offset of the last event before it. No row if there is no '
'valid snapshot: nothing is stored, the stream has a lock, an event of it was discarded, or the log partition is to '
'be rebuilt. It runs with the caller''s rights.';
revoke all on function event_store.stream_state(text, text, text, text) from public;
grant execute on function event_store.stream_state(text, text, text, text) to event_store_reader, event_store_owner;
