-- A URL of opened values shows them: a role without keys must not choose it, nor the events that go there.
create or replace function event_store_private.require_push(
  v_view event_store.views
)
returns void
language plpgsql
stable
set search_path = event_store, pg_temp
as $$
declare
  _fault constant text := case
    when v_view.mode = 'bulk' and v_view.edge_function_url is not null then 'only a rows view is pushed to an edge_function_url'
    when v_view.push_unseal and not event_store_private.may_use('event_store_personal')
      then 'only a member of event_store_personal changes a view that is sent opened values'
  end;
begin
  if _fault is not null then
    perform event_store_private.refuse_request(
      format('view %L: %s', v_view.view, _fault), 'Correct it; nothing was registered or changed.'
    );
  end if;
end
$$;

comment on function event_store_private.require_push(event_store.views) is
'Raises MR005 if a view cannot be pushed as its settings say, or its caller may not let that be.';
