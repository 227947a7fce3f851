-- This is known_view for roles that may change and consume the view.
create or replace function event_store_private.own_view(
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
  -- as in known_view, but without another call: every call of a consumer comes here
  select * into _view from event_store.views where view = v_view;
  if not found or _view.mode <> v_mode then
    return event_store_private.known_view(v_view, v_mode);
  end if;
  if not event_store_private.may_use(_view.owner) then
    perform event_store_private.refuse_foreign_view(v_view, _view.owner);
  end if;
  return _view;
end
$$;

comment on function event_store_private.own_view(text, text) is
'A view''s registration, for roles that may use it. MR010 not registered, MR012 consumed in the other mode, MR041 it is '
'another role''s.';
