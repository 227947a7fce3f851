-- Registers a view, or changes its settings: all of them are what this call says. Its progress is set once, at the
-- first registration, from v_start_at. Events whose transaction is still open then have no position yet, so they lie
-- ahead of the view: it gets them.
-- Register a view in a short transaction: until that ends, events may get no position.
-- v_mode: rows (stream_events) or bulk (claim_batch); null for rows, or what it is. Another mode is taken up where the
-- view stands, streams that wait or are parked included, but not while something is in flight (MR017).
-- v_deciders and v_events: what the view wants; null for all. v_max_attempts: after how many a failing stream is
-- parked.
-- Example: select * from register_view('invoices', '-infinity')
create or replace function event_store.register_view(
  v_view text,
  v_start_at timestamptz default null,
  v_lock_timeout_s bigint default 300,
  v_pooling_delay_s bigint default null,
  v_edge_function_url text default null,
  v_mode text default null,
  v_deciders text[] default null,
  v_events text[] default null,
  v_max_attempts int default 5
)
returns setof event_store.views
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
as $$
declare
  _now constant timestamptz := event_store_private.clock();
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
    perform event_store_private.refuse_request(format('view %L: %s', v_view, _fault), 'Correct it; nothing was registered or changed.');
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
      perform event_store_private.refuse_request(
        format('view %L: only a rows view is pushed to an edge_function_url', v_view), 'Correct it; nothing was registered or changed.'
      );
    end if;
    insert into event_store.dispatches (view) values (v_view);
    -- the log keeps what we are placed before; shared, so that it waits for nobody but a call that is as short
    perform pg_advisory_xact_lock_shared(event_store_private.history_lock_key());
    -- History is searched before the sequencer's row is ours, which nobody else can have then. What gets its position
    -- from now on is passed only if it is from before the start and was committed when this call began: an append in
    -- flight is delivered.
    insert into event_store.checkpoints (view, partition, position)
    select v_view, found.partition, found.position
    from event_store.offsets_for_timestamp(_view.start_at) found;
    perform event_store.sequence_events();
    update event_store.checkpoints c
    set position = coalesce(
      (
        select min(l.position)
        from event_store.event_log l
        join event_store.events e using ("offset")
        where l.partition = c.partition and l.position >= c.position
          and (e.created_at >= _view.start_at or not pg_visible_in_snapshot(e.transaction_id, _begun))
      ),
      (select p.high_water_mark from event_store.partitions p where p.partition = c.partition)
    )
    from event_store.event_log first
    join event_store.events e using ("offset")
    where c.view = v_view
      and first.partition = c.partition and first.position = c.position
      and e.created_at < _view.start_at and pg_visible_in_snapshot(e.transaction_id, _begun);
    return next _view;
    return;
  end if;

  -- not `for update`: that would wait for an open transaction that dispatched, as its new locks refer to the view
  select * into _view from event_store.views where view = v_view for no key update;
  if v_mode <> _view.mode then
    perform event_store_private.refuse_if_read_model(v_view);
    perform event_store_private.lock_idle_view(v_view);
  end if;
  if coalesce(v_mode, _view.mode) = 'bulk' and v_edge_function_url is not null then
    perform event_store_private.refuse_request(
      format('view %L: only a rows view is pushed to an edge_function_url', v_view), 'Correct it; nothing was registered or changed.'
    );
  end if;
  if (_view.deciders, _view.events) is distinct from (v_deciders, v_events) then
    -- the next dispatch looks for locks that hold nothing any more which the view wants; if one is under way, that in a
    -- minute
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

comment on function event_store.register_view(text, timestamptz, bigint, bigint, text, text, text[], text[], int) is
'Registers a view, or sets all settings of a registered one to what this call says, and returns it. Its progress is '
'set once, by v_start_at (null: now; -infinity: all events). v_mode is rows (stream_events) or bulk (claim_batch), '
'null for rows or what it is. v_deciders and v_events are what it wants, null for all; v_lock_timeout_s is how long a'
' lock or lease lasts, v_pooling_delay_s the wait between two polls that found nothing, v_edge_function_url where a '
'rows view is pushed to, v_max_attempts after how many failures a stream is parked. MR005 an argument is malformed; '
'MR017 another mode while something is leased or in flight; MR019 another mode for the view of a read model.';
revoke all on function event_store.register_view(text, timestamptz, bigint, bigint, text, text, text[], text[], int) from public;
grant execute on function event_store.register_view(text, timestamptz, bigint, bigint, text, text, text[], text[], int)
to event_store_consumer, event_store_owner;
