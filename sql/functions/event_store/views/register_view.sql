-- If a transaction is still open at the first registration, its events have no position yet and lie ahead of the view:
-- it gets them. Every consumer may use a view of event_store_consumer. Members of event_store_owner change and consume
-- each view, too.
-- Register a view in a short transaction: until that ends, events may get no position. Another registration of the view
-- waits for it for five seconds, and then names the process that it waits for.
-- v_version is that of the program that registers. Two versions of a service that start in turns, as in a rolling
-- deploy, do not undo each other's settings. With null, settings change in any case.
-- Example: select * from register_view('invoices', '-infinity')
create or replace function event_store.register_view(
  v_view text,
  v_start_at timestamptz default null,
  v_lock_timeout_s bigint default null,
  v_pooling_delay_s bigint default null,
  v_edge_function_url text default null,
  v_mode text default null,
  v_deciders text[] default null,
  v_events text[] default null,
  v_max_attempts int default null,
  v_owner text default null,
  v_version int default null,
  v_push_format text default null,
  v_push_upcast boolean default null,
  v_push_unseal boolean default null
)
returns setof event_store.views
language plpgsql
volatile
security definer
set search_path = event_store, pg_temp
set lock_timeout = '5s'
as $$
declare
  _now constant timestamptz := event_store_private.clock();
  _begun constant pg_snapshot := pg_current_snapshot();
  _view event_store.views;
  _new event_store.views;
  _change jsonb;
  _fault text := case
    when coalesce(v_view, '') = '' then 'the view has no name'
    when octet_length(v_view) > 200 then 'a name has at most 200 bytes'
    when v_view like '-%' and not exists (select from event_store.views where view = v_view)
      then 'a name begins with no -, which commands take for an option'
    when v_lock_timeout_s not between 1 and 3600 then 'v_lock_timeout_s must be from 1 to 3600, or null'
    -- the longest wait that a client can hold
    when v_pooling_delay_s not between 0 and 2147483647 then 'v_pooling_delay_s must be from 0 to 2147483647, or null'
    when length(v_edge_function_url) > 2000 then 'a URL has at most 2000 characters'
    when v_push_format not in ('json', 'cloudevents') then 'v_push_format must be json or cloudevents, or null'
    when v_mode not in ('rows', 'bulk') then 'v_mode must be rows or bulk, or null'
    when greatest(array_ndims(v_deciders), array_ndims(v_events)) > 1 then 'v_deciders and v_events each name one after the other'
    when array_position(v_deciders, null) is not null then 'v_deciders must name deciders; {} is for all, null leaves them'
    when array_position(v_events, null) is not null then 'v_events must name events; {} is for all, null leaves them'
    -- each is compared with each kind of event, for all views at once
    when greatest(cardinality(v_deciders), cardinality(v_events)) > 1000 then 'a filter names 1000 deciders and 1000 events at most'
    when exists (select from unnest(v_deciders || v_events) n(name) where octet_length(n.name) > 1024)
      then 'a decider and an event have names of at most 1024 bytes'
    when v_max_attempts <= 0 then 'v_max_attempts must be at least 1'
    when v_version < 0 then 'v_version must be at least 0, or null'
    when to_regrole(quote_ident(v_owner)) is null and v_owner is not null then format('there is no role %I', v_owner)
  end;
begin
  if _fault is not null then
    perform event_store_private.refuse_request(format('view %L: %s', v_view, _fault), 'Correct it; nothing was registered or changed.');
  end if;
  if not event_store_private.may_use(v_owner) then
    perform event_store_private.refuse_foreign_view(v_view, v_owner);
  end if;

  insert into event_store.views (
    view, start_at, lock_timeout_s, pooling_delay_s, edge_function_url, created_at, updated_at, mode, deciders, events,
    max_attempts, owner, version, push_format, push_upcast, push_unseal
  )
  values (
    v_view, coalesce(v_start_at, _now), coalesce(v_lock_timeout_s, 300), v_pooling_delay_s, nullif(v_edge_function_url, ''), _now, _now,
    coalesce(v_mode, 'rows'), nullif(v_deciders, '{}'), nullif(v_events, '{}'), coalesce(v_max_attempts, 5),
    coalesce(
      v_owner, case when event_store_private.is_operator() then 'event_store_consumer' else event_store_private.caller_role() end
    ),
    coalesce(v_version, 0),
    coalesce(v_push_format, 'json'),
    coalesce(v_push_upcast, false),
    coalesce(v_push_unseal, false)
  )
  on conflict (view) do nothing
  returning * into _view;

  if found then
    perform event_store_private.bound_idle_transaction();
    if not event_store_private.is_operator() and exists (select from read_models.declarations d where d.model = v_view) then
      perform event_store_private.refuse_request(
        format(
          'view %L: a read model has this name; its versions are consumed as %s', v_view,
          (select string_agg(d.view, ', ' order by d.version) from read_models.declarations d where d.model = v_view)
        ),
        'Register the view by another name; nothing was registered.'
      );
    end if;
    perform event_store_private.require_push(_view);
    perform event_store_private.audit(
      'register_view', v_view, null, jsonb_build_object('registered', event_store_private.settings(_view))
    );
    insert into event_store.dispatches (view) values (v_view);
    -- the log keeps the events ahead of the new view; the lock is shared, so that it waits only for a call as short
    perform event_store_private.share_history();
    -- History is searched before this session has the sequencer's row, which blocks all others. Later, an event that
    -- gets its position is passed over only if it is from before the start and was committed when this call began: an
    -- append in flight is delivered.
    insert into event_store.checkpoints (view, partition, position)
    select v_view, found.partition, found.position
    from event_store.offsets_for_timestamp(_view.start_at) found;
    perform event_store_platform.sequence_events();
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

  -- not `for update`: that would wait for an open transaction that dispatched, since its new locks refer to the view
  select * into _view from event_store.views where view = v_view for no key update;
  if not found then
    -- it was removed while this call waited
    return query
    select * from event_store.register_view(
      v_view, v_start_at, v_lock_timeout_s, v_pooling_delay_s, v_edge_function_url, v_mode, v_deciders, v_events, v_max_attempts, v_owner,
      v_version, v_push_format, v_push_upcast, v_push_unseal
    );
    return;
  end if;
  if not event_store_private.may_use(_view.owner) then
    perform event_store_private.refuse_foreign_view(v_view, _view.owner);
  end if;
  if v_version < _view.version then
    return next _view;
    return;
  end if;
  if v_mode <> _view.mode then
    raise exception 'a view stays in its mode'
      using
        errcode = 'MR012',
        detail = format('view %L is in mode %s; v_mode is %s', v_view, _view.mode, v_mode),
        hint = 'To consume it in the other mode, unregister it, register it with that mode, and seek_view it to a position.';
  end if;
  _new := _view;
  _new.version := coalesce(v_version, _view.version);
  _new.lock_timeout_s := coalesce(v_lock_timeout_s, _view.lock_timeout_s);
  _new.pooling_delay_s := coalesce(v_pooling_delay_s, _view.pooling_delay_s);
  _new.edge_function_url := nullif(coalesce(v_edge_function_url, _view.edge_function_url), '');
  _new.deciders := nullif(coalesce(v_deciders, _view.deciders), '{}');
  _new.events := nullif(coalesce(v_events, _view.events), '{}');
  _new.max_attempts := coalesce(v_max_attempts, _view.max_attempts);
  _new.owner := coalesce(v_owner, _view.owner);
  _new.push_format := coalesce(v_push_format, _view.push_format);
  _new.push_upcast := coalesce(v_push_upcast, _view.push_upcast);
  _new.push_unseal := coalesce(v_push_unseal, _view.push_unseal);
  if _new is not distinct from _view then
    return next _view;
    return;
  end if;
  perform event_store_private.require_push(_new);
  if (_view.deciders, _view.events) is distinct from (_new.deciders, _new.events) then
    -- the next dispatch searches locks without a wanted event; if a dispatch is under way, the one in a minute does
    update event_store.dispatches set swept_at = '-infinity'
    where view = (select view from event_store.dispatches where view = v_view for update skip locked);
  end if;
  update event_store.views
  set
    lock_timeout_s = _new.lock_timeout_s,
    pooling_delay_s = _new.pooling_delay_s,
    edge_function_url = _new.edge_function_url,
    deciders = _new.deciders,
    events = _new.events,
    max_attempts = _new.max_attempts,
    owner = _new.owner,
    version = _new.version,
    push_format = _new.push_format,
    push_upcast = _new.push_upcast,
    push_unseal = _new.push_unseal,
    updated_at = _now
  where view = v_view
  returning * into _new;
  select jsonb_object_agg(key, jsonb_build_object('from', before.value, 'to', after.value)) into _change
  from jsonb_each(event_store_private.settings(_view)) before
  join jsonb_each(event_store_private.settings(_new)) after using (key)
  where before.value <> after.value;
  perform event_store_private.audit('register_view', v_view, null, jsonb_build_object('changed', coalesce(_change, '{}')));
  return next _new;
exception when lock_not_available then
  raise exception 'another transaction registers or changes views, and does not end'
    using
      errcode = 'lock_not_available',
      detail = format('It is of process %s. Nothing was registered.', event_store_private.lock_holders('event_store.views')),
      hint = 'Try again when it has ended: register a view in a transaction of its own.';
end
$$;

comment on function event_store.register_view(text, timestamptz, bigint, bigint, text, text, text[], text[], int, text, int, text, boolean, boolean) is
'Registers a view, or changes settings of a registered one, and returns it: null leaves a setting as it is, '''' clears '
'the URL, {} a filter. v_start_at sets its progress, only once (null: now; -infinity: all events). v_mode is rows '
'(stream_events) or bulk (claim_batch), rows by default. v_deciders and v_events are what it wants, all by default; '
'v_lock_timeout_s is how long a lock or lease lasts (300), v_pooling_delay_s the wait between two polls that found '
'nothing, v_edge_function_url where a rows view is pushed to, v_push_format as what (json, or cloudevents), '
'v_push_upcast whether with data in the newest shape, v_push_unseal whether with personal values opened, which only '
'members of event_store_personal change, v_max_attempts after how many failures a stream is parked (5). '
'Members of the role v_owner may change and consume it: by default the login, and event_store_consumer where '
'that is a member of event_store_owner. With a lower v_version than the view''s nothing changes. Audited. MR005 an '
'argument is malformed, or a read model has the name of the new view; MR012 it is in the other mode, and stays in it; MR041 it is another role''s, or the caller is no '
'member of v_owner.';
revoke all on function event_store.register_view(text, timestamptz, bigint, bigint, text, text, text[], text[], int, text, int, text, boolean, boolean) from public;
grant execute on function event_store.register_view(text, timestamptz, bigint, bigint, text, text, text[], text[], int, text, int, text, boolean, boolean)
to event_store_consumer, event_store_owner;
