-- Registers a view, or changes its settings. Its progress is set once, at the first registration, from v_start_at.
-- Events whose transaction is still open then have no partition offset yet, so they lie ahead of the view: it gets them.
-- v_mode: rows (stream_events) or bulk (claim_batch). v_deciders and v_events: what the view wants; null for all.
-- Example: select * from register_view('invoices', '-infinity')
create or replace function event_store.register_view(
  v_view text,
  v_start_at timestamptz default null,
  v_lock_timeout_s bigint default 300,
  v_pooling_delay_s bigint default null,
  v_edge_function_url text default null,
  v_mode text default null,
  v_deciders text[] default null,
  v_events text[] default null
)
returns setof event_store.views
language plpgsql
volatile
set search_path = event_store, pg_temp
as $$
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

comment on function event_store.register_view(text, timestamptz, bigint, bigint, text, text, text[], text[]) is 'Registers a view or changes its settings, never its progress. MR005 malformed, MR012 other mode.';
