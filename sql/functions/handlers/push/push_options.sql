-- Example: select * from push_options('hook')
create or replace function event_store_platform.push_options(
  v_view text
)
returns table (edge_function_url text, push_format text, push_upcast boolean, push_unseal boolean)
language plpgsql
volatile -- as own_view is
security definer
set search_path = event_store, pg_temp
as $$
begin
  perform event_store_private.own_view(v_view, 'rows');
  return query select v.edge_function_url, v.push_format, v.push_upcast, v.push_unseal from event_store.views v where v.view = v_view;
end
$$;

comment on function event_store_platform.push_options(text) is
'Returns the URL and the form in which events of view v_view are pushed, json or cloudevents, whether their data are in the '
'newest shape of their event, and whether with personal values opened. MR010 unknown view; MR012 a bulk view; MR041 another role''s view.';
revoke all on function event_store_platform.push_options(text) from public;
grant execute on function event_store_platform.push_options(text) to event_store_consumer, event_store_owner;
