-- The registration of a view that is consumed in this mode, or the error that says what is wrong.
create or replace function event_store_private.known_view(
  v_view text,
  v_mode text default null
)
returns event_store.views
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
declare
  _view event_store.views;
begin
  select * into _view from event_store.views where view = v_view;
  if not found then
    raise exception 'view is not registered'
      using
        errcode = 'MR010',
        detail = format('view %L', v_view),
        -- no drain consumes a view of the model's own name
        hint = coalesce(
          (
            select 'It is a read model. Name the view of a version: ' || string_agg(d.view, ', ' order by d.version) || '.'
            from read_models.declarations d
            where d.model = v_view
          ),
          'Register it: select * from register_view(view).'
        );
  end if;
  if _view.mode <> v_mode then
    raise exception 'view is consumed in another mode'
      using
        errcode = 'MR012',
        detail = format('view %L is in mode %s; this call is for mode %s', v_view, _view.mode, v_mode),
        hint = 'rows: dispatch_events, stream_events, lease_events, ack_event, ack_events, nack_event, schedule_nack_event, fail_event, extend_lock, end_locks, set_push_secret, push_secrets, drop_push_secret, push_options. bulk: claim_batch, claim_views, claim_partition, locked_partitions, read_batch, fail_streams, commit_batch, extend_lease, release_batch, pass_over_unwanted.';
  end if;
  return _view;
end
$$;

comment on function event_store_private.known_view(text, text) is
'A view''s registration. MR010 not registered, MR012 consumed in the other mode.';
