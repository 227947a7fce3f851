-- So a writer learns whether a read model shows an event that it appended. An event that an operator discarded counts
-- as acknowledged. An event that is not committed is not_stored.
-- Races: all of it is as of one moment. Seen events stay seen, but for seek_view and resets. It waits for no session.
-- Example: select seen, never from has_seen('orders', 'order', 'o-1', 17)
create or replace function event_store.has_seen(
  v_view text,
  v_decider text,
  v_decider_id text,
  v_offset bigint
)
returns table (
  seen boolean,
  never text,
  detail text
)
language plpgsql
stable
security definer
set search_path = event_store, pg_temp
as $$
-- planner: indexed ordered nested once
declare
  _partition int;
  _position bigint;
  -- a model comes first: a view of its name is one of its versions, or another consumer's that must not answer for it
  _name constant text :=
    coalesce((select d.view from read_models.declarations d where d.model = v_view and d.serves), v_view);
  _view event_store.views;
  _event text;
  _lock event_store.stream_locks;
  _checkpoint bigint;
begin
  if v_view is null or v_decider is null or v_decider_id is null or v_offset is null then
    perform event_store_private.refuse_request(
      'v_view, v_decider, v_decider_id or v_offset is null', 'State all four: they name a view and an event of a stream.'
    );
  end if;
  select * into _view from event_store.views v where v.view = _name;
  if not found then
    return query select false, 'unknown', format('no view or read model is named %L', v_view);
    return;
  end if;
  _partition := event_store.stream_partition(v_decider_id, (select count(*) from event_store.log_partitions));
  select c.position into _checkpoint from event_store_private.checkpoint_of(_name, _partition) c;
  select k.* into _lock from event_store_private.newest_lock(_name, v_decider_id, v_decider) k;
  select e.event, l.position into _event, _position
  from (select x.* from event_store.events x where x."offset" = v_offset offset 0) e -- by its index, not all of the stream
  left join event_store.event_log l using ("offset")
  where e.decider_id = v_decider_id and e.decider = v_decider;
  if not found then
    -- no view needs a purged event
    if exists (
      select from event_store.purged_streams p
      where p.decider_id = v_decider_id and p.decider = v_decider and p.last_offset >= v_offset
    ) then
      return query select true, null::text, null::text;
    else
      return query select
        false, 'not_stored', format('stream (%s, %s) has no committed event at offset %s', v_decider, v_decider_id, v_offset);
    end if;
  elsif not event_store_private.wants(_view.deciders, _view.events, v_decider, _event) then
    return query select false, 'unwanted', format('view %L does not want %s of %s', _name, _event, v_decider);
  elsif (case when _lock.view is not null then v_offset <= _lock.last_offset else _position < _checkpoint end) then
    return query select true, null::text, null::text;
  elsif _lock.parked_at is not null then
    return query select false, 'parked', format(
      'view %L: stream (%s, %s) is a dead letter since %s, behind offset %s', _name, v_decider, v_decider_id,
      _lock.parked_at, _lock.last_offset
    );
  elsif not _view.enabled then
    return query select false, 'disabled', format('view %L is disabled', _name);
  elsif _lock.in_flight is null and _lock.locked_until > event_store_private.clock() then
    return query select false, 'retrying', format(
      'view %L: stream (%s, %s) waits behind offset %s until %s, after %s failed attempts', _name, v_decider, v_decider_id,
      _lock.last_offset, _lock.locked_until, _lock.attempts
    );
  else
    return query select false, null::text, null::text;
  end if;
end
$$;

comment on function event_store.has_seen(text, text, text, bigint) is
'Returns whether v_view, the name of a read model or else a view, has the event at v_offset of the stream (v_decider, v_decider_id): '
'it is acknowledged, or in the rows of the version that serves. If it never will be by itself, never says why: unknown, '
'disabled, unwanted, not_stored, parked or retrying, and detail explains it; null if it only takes time. MR005 an '
'argument is null.';
revoke all on function event_store.has_seen(text, text, text, bigint) from public;
grant execute on function event_store.has_seen(text, text, text, bigint)
to event_store_writer, event_store_consumer, event_store_reader, event_store_owner;
